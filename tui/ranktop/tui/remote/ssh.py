"""How the user's own ssh is called: its arguments, and whose connection is shared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ranktop.tui.remote.target import Target

CONNECT_SECONDS: Final = 10
ALIVE_SECONDS: Final = 5
ALIVE_COUNT: Final = 3
"""A connection that gives no sign for ``ALIVE_SECONDS * ALIVE_COUNT`` is lost; ssh itself asks for them."""

ASK_SECONDS: Final = 10.0
"""How long ssh is waited for where it talks to no other machine."""

_OPTION: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:=|\s).+", re.DOTALL)

_OURS: Final = (
    # What the user's configuration wants of a login is not wanted here: no port is opened, nothing is forwarded,
    # no other command runs. ``ExitOnForwardFailure`` would make a port of the configuration that is taken fatal.
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "RemoteCommand=none",
    "RequestTTY=no",
    "PermitLocalCommand=no",
    "StreamLocalBindUnlink=yes",
)

_DEFAULTS: Final = (
    f"ConnectTimeout={CONNECT_SECONDS}",
    f"ServerAliveInterval={ALIVE_SECONDS}",
    f"ServerAliveCountMax={ALIVE_COUNT}",
    # What ranks say repeats itself: eight of them take 19 KB/s, compressed 3.
    "Compression=yes",
)
"""Unless the command line says otherwise."""


class SshError(Exception):
    """ssh cannot be used, or has failed; the text is one line: what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Ssh:
    """The way to one machine."""

    target: Target
    options: tuple[str, ...] = ()
    """As ``ssh -o`` takes them."""
    jump: str | None = None
    identity: str | None = None
    config: str | None = None
    remote_command: str | None = None
    """How ranktop is run there, as a shell line without arguments; None: it is searched for."""

    def check(self) -> None:
        """Raise SshError for what ssh would take for something else, or when there is no ssh."""
        for option in self.options:
            if not _OPTION.fullmatch(option):
                raise SshError(f"-o takes KEY=VALUE as ssh does, not {option[:60]!r}")
        for flag, value in (("-J", self.jump), ("-i", self.identity), ("-F", self.config)):
            if value is not None and (not value or value.startswith("-")):
                raise SshError(f"{flag} takes what ssh {flag} takes, not {value[:60]!r}")
        if self.remote_command is not None and (not self.remote_command.strip() or "\n" in self.remote_command):
            raise SshError("--remote-command takes one shell line, for instance /path/to/venv/bin/ranktop")
        program()

    def command(self, *words: str, batch: bool, lead: tuple[str, ...] = ()) -> list[str]:
        """Return the arguments that run the shell line ``words`` there; ``batch``: without asking the person anything.

        The first value of an option counts for ssh: ours that must hold stand before the user's, the others after.
        """
        quiet = ("-o", "BatchMode=yes") if batch else ()
        forced = [word for option in _OURS for word in ("-o", option)]
        return [program(), *lead, *quiet, *forced, *self._way(), "--", self.target.destination, *words]

    def _way(self) -> list[str]:
        chosen: list[str] = []
        for flag, value in (("-F", self.config), ("-J", self.jump), ("-i", self.identity)):
            chosen += [flag, value] if value is not None else []
        if self.target.port is not None:
            chosen += ["-p", str(self.target.port)]
        return chosen + [word for option in (*self.options, *_DEFAULTS) for word in ("-o", option)]

    def effective(self) -> dict[str, str]:
        """Return the options that hold for this machine (``ssh -G``), lower case; SshError."""
        command = [program(), "-G", *self._way(), "--", self.target.destination]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=ASK_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise SshError(f"ssh -G failed: {error}") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["ssh -G failed"]
            raise SshError(f"ssh refuses this: {lines[-1]}")
        pairs = (line.partition(" ") for line in done.stdout.splitlines())
        return {key.lower(): value for key, _, value in pairs}


Way = Callable[[Target], Ssh]
"""How a machine is reached: what the flags of the command line make of its name."""


def named_command(option: str | None) -> str | None:
    """Return how ranktop is run there: the option, else ``RANKTOP_REMOTE_COMMAND``, else None: it is searched for."""
    return option or os.environ.get("RANKTOP_REMOTE_COMMAND") or None


def program() -> str:
    """Return the path of ssh; SshError where there is none."""
    found = shutil.which("ssh")
    if found is None:
        raise SshError("there is no ssh on this machine: install the OpenSSH client")
    return found


@dataclass(frozen=True, slots=True)
class Shared:
    """The control socket by which several ssh share one authenticated connection."""

    path: str
    theirs: bool
    """It belongs to the user's own configuration, and so does the connection: it stays when ranktop ends."""
    arguments: tuple[str, ...]
    """For the ssh that uses it, or makes it."""

    def use(self) -> tuple[str, ...]:
        """Return the arguments of another ssh over this connection, while it stands."""
        return ("-o", "ControlMaster=no", "-S", self.path)

    def control(self, order: str, *words: str, seconds: float = ASK_SECONDS) -> bool:
        """Give the connection's owner an order (``ssh -O``); whether it was carried out."""
        return control(self.path, order, *words, seconds=seconds)


def control(path: str, order: str, *words: str, seconds: float = ASK_SECONDS) -> bool:
    """Give the owner of a control socket an order; no configuration is read, no network is used."""
    command = [program(), "-F", os.devnull, "-S", path, "-O", order, *words, "--", "x"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=seconds, check=False, start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def share(ssh: Ssh, own: Path, *, only_own: bool = False) -> Shared:
    """Return the user's own shared connection where there is one or the configuration keeps one, else a private one.

    ``only_own``: theirs has just failed, as one does that a suspended machine has left half open. SshError.
    """
    private = Shared(str(own), False, ("-M", "-S", str(own), "-o", "ControlPersist=no"))
    if only_own:
        return private
    options = ssh.effective()
    path = options.get("controlpath", "none")
    if path in ("", "none"):
        return private
    if control(path, "check"):
        return Shared(path, True, ("-o", "ControlMaster=no", "-S", path))
    makes = options.get("controlmaster", "false") in ("yes", "true", "auto")
    # Without persistence theirs would end with its first command, and the next would authenticate anew.
    keeps = options.get("controlpersist", "no") not in ("no", "false")
    return Shared(path, True, ()) if makes and keeps else private
