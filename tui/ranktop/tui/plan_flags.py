"""The flags that describe a run, as they are typed.

They are read by argparse and not by typer: a comparison has to answer within 0.3 s, of which typer's conversion of
forty parameters would take half.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn, TypeVar

from ranktop.budget.model import BadInput
from ranktop.budget.planning.flags import OUTPUT, Flags, flag, meant, spelled, switch


@dataclass(frozen=True, kw_only=True)
class PlanFlags(Flags):
    """Flags of ``ranktop plan``."""

    fit: bool = switch(OUTPUT, "search the plans that fit for the global batch, the cheapest first")
    fit_plan: str | None = flag(OUTPUT, "N", "with --fit: show the lines that ask for the N-th plan (1)")
    json: bool = switch(OUTPUT, "the documented JSON instead of a table")


Kind = TypeVar("Kind", bound=Flags)


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        flag, _, rest = message.removeprefix("argument ").partition(": ")
        raise BadInput(f"{flag} needs a value" if rest.startswith("expected one argument") else message)


def parser(kind: type[Flags], command: str, text: str, epilog: str = "") -> argparse.ArgumentParser:
    """Return the parser of a command whose flags are the fields of ``kind``."""
    found = _Parser(
        prog=f"ranktop {command}",
        usage=f"ranktop {command} --model NAME|PATH [flags]",
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for each in fields(kind):
        about = each.metadata
        group = groups.get(about["group"])
        if group is None:
            group = groups[about["group"]] = found.add_argument_group(about["group"])
        how: dict[str, Any] = {"metavar": about["metavar"]}
        if about["metavar"] is None:
            how = {"action": "store_true"}
        elif about.get("many"):
            how |= {"action": "append", "default": []}
        group.add_argument(spelled(each.name), help=about["help"], **how)
    return found


def read(kind: type[Kind], reader: argparse.ArgumentParser, arguments: Sequence[str]) -> Kind:
    """Return the flags typed. Raises BadInput; prints the help and exits when it is asked for."""
    valued = {spelled(each.name) for each in fields(kind) if each.metadata["metavar"] is not None}
    given, unknown = reader.parse_known_args(_joined(arguments, valued))
    if unknown:
        raise BadInput(_unknown(unknown[0], [spelled(each.name) for each in fields(kind)]))
    typed: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(given).items()}
    return kind(**typed)


def _joined(arguments: Sequence[str], valued: set[str]) -> list[str]:
    """Tie a value that starts with a minus to its flag, so that it is not taken for a flag of its own."""
    out: list[str] = []
    for argument in arguments:
        if out and out[-1] in valued and argument[:1] == "-" and argument[1:2].isdigit():
            out[-1] += f"={argument}"
        else:
            out.append(argument)
    return out


def _unknown(text: str, known: list[str]) -> str:
    name = text.partition("=")[0]
    if not name.startswith("-"):
        return f"unexpected {text!r}: every value needs its flag, as in --model {text}"
    return f"no flag {name}{meant(name, known)}; `ranktop plan --help` lists them"
