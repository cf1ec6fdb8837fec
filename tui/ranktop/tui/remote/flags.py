"""The arguments of every command that takes a target, and the way to the far side that they mean."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ranktop.tui.cli import USAGE, fail
from ranktop.tui.completion import machines

if TYPE_CHECKING:
    from ranktop.tui.remote.ssh import Ssh, Way
    from ranktop.tui.remote.target import Target as Place

TARGET = "[USER@]HOST[:PORT]"

Target = Annotated[
    str, typer.Argument(metavar=TARGET, help="The machine, as ssh knows it; also ssh://.", autocompletion=machines)
]

MaybeTarget = Annotated[
    str | None,
    typer.Argument(
        metavar=f"[{TARGET}]", help="Another machine, by ssh; this one where it is left out.", autocompletion=machines
    ),
]

Options = Annotated[
    list[str] | None, typer.Option("-o", metavar="KEY=VALUE", help="An option for ssh, as ssh -o; may be repeated.")
]

Port = Annotated[int | None, typer.Option("-p", min=1, max=65535, metavar="PORT", help="As ssh -p.")]

Jump = Annotated[str | None, typer.Option("-J", metavar="HOST", help="As ssh -J.")]

Identity = Annotated[str | None, typer.Option("-i", metavar="FILE", help="As ssh -i.")]

Config = Annotated[str | None, typer.Option("-F", metavar="FILE", help="As ssh -F.")]

RemoteCommand = Annotated[
    str | None,
    typer.Option(
        "--remote-command",
        metavar="CMD",
        help="How ranktop is run there, where it is not found by itself: /path/to/venv/bin/ranktop.",
    ),
]


def ways(
    options: list[str] | None = None,
    remote_command: str | None = None,
    *,
    port: int | None = None,
    jump: str | None = None,
    identity: str | None = None,
    config: str | None = None,
) -> Way:
    """Return what makes the way to a machine; it raises SshError for what is none.

    What no flag says is taken from the configuration; its options come behind those of the command line, which ssh
    prefers.
    """
    from ranktop.tui.config import given, settings

    options = [*(options or ()), *settings().value("ssh.options")]
    jump, identity, config = given("ssh.jump", jump), given("ssh.identity", identity), given("ssh.config", config)
    remote_command = given("ssh.remote_command", remote_command)

    def made(place: Place) -> Ssh:
        from ranktop.tui.remote.ssh import Ssh, SshError

        if port is not None and place.port not in (None, port):
            raise SshError(f"{place.words} and -p {port} name different ports")
        place = replace(place, port=place.port or port)
        ssh = Ssh(place, tuple(options), jump or None, identity or None, config or None, remote_command or None)
        ssh.check()
        return ssh

    return made


def way(target: str, by: Way) -> Ssh:
    """Return the way to a machine; exits with one line and code 2 for what is none."""
    from ranktop.tui.remote.ssh import SshError
    from ranktop.tui.remote.target import TargetError, parse_target

    try:
        return by(parse_target(target))
    except (TargetError, SshError) as error:
        fail(str(error), USAGE)
