"""What a shell may complete: jobs, recordings, machines, strategies, faults, and the flags that typer does not read.

Only words that mean nothing to a shell are offered: zsh evaluates what it is given, and a job's name is anybody's.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand

PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@/+-]*")

Complete = Callable[[str], list[str]]


def beginning(words: Iterable[str], incomplete: str) -> list[str]:
    """Return the words that begin so, each once."""
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete) and PLAIN.fullmatch(word)]


def one_of(*words: str) -> Complete:
    """Return what completes one of some words."""

    def complete(incomplete: str) -> list[str]:
        return beginning(words, incomplete)

    return complete


def _look_where_configured() -> None:
    from ranktop.tui.config import settings
    from ranktop.tui.config.force import pass_on

    with contextlib.suppress(Exception):  # what is wrong with the file is told by the next command
        pass_on(settings())


def jobs(incomplete: str) -> list[str]:
    """Complete ids and names of the live jobs of this machine."""
    _look_where_configured()
    from ranktop.wire.endpoints import find_jobs

    with contextlib.suppress(Exception):  # nothing a shell should be told about
        found = find_jobs().jobs
        return beginning([*(job.id for job in found), *(job.name for job in found)], incomplete)
    return []


def runs(incomplete: str) -> list[str]:
    """Complete ids and names of jobs, live and recorded; a shell completes files where none begins so."""
    from ranktop.wire.recordings import list_recordings

    live, past = jobs(incomplete), list[str]()
    with contextlib.suppress(Exception):
        entries = list_recordings()
        past = [*(entry.job_id for entry in entries), *(entry.name for entry in entries)]
    return list(dict.fromkeys([*live, *beginning(past, incomplete)]))


def machines(incomplete: str) -> list[str]:
    """Complete the machines that the user's ssh configuration names."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        lines = (Path.home() / ".ssh" / "config").read_text(encoding="utf-8").splitlines()
        named = [words[1:] for line in lines if (words := line.split()) and words[0].lower() == "host"]
        return beginning((name for names in named for name in names), incomplete)
    return []


def faults(incomplete: str) -> list[str]:
    """Complete what a simulated job can suffer from."""
    from ranktop.tui.commands import FAULTS

    return beginning(FAULTS.split(", "), incomplete)


def models(incomplete: str) -> list[str]:
    """Complete the models of the catalogue."""
    from ranktop.budget.models.catalogue import names

    return beginning(names(), incomplete)


def gpus(incomplete: str) -> list[str]:
    """Complete the devices that the planner knows."""
    from ranktop.budget.devices import names

    return beginning(names(), incomplete)


def strategies(incomplete: str) -> list[str]:
    """Complete the strategies of the planner."""
    from ranktop.budget.run import STRATEGIES

    return beginning(STRATEGIES, incomplete)


VALUES: Final[dict[str, Complete]] = {"--model": models, "--gpu": gpus, "--strategy": strategies}
"""Flags of the planner whose values are known; a shell completes files for the others."""


@dataclass(frozen=True, slots=True)
class Word:
    """One thing to complete to, as click takes it."""

    value: str
    help: str | None = None
    type: str = "plain"


class Planner(TyperCommand):
    """A command whose flags are read by ``plan_flags``, of which typer knows nothing."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete its flags."""
        from dataclasses import fields

        from ranktop.budget.planning.flags import Flags, spelled
        from ranktop.tui.plan_flags import PlanFlags

        kind = PlanFlags if self.name == "plan" else Flags
        flags = (spelled(each.name) for each in fields(kind))
        return [Word(flag) for flag in flags if flag.startswith(incomplete)]


def planned(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the values of its flags, and the strategy that ``explain`` begins with."""
    typed: Sequence[str] = ctx.params.get("arguments") or ()
    if typed and typed[-1] in VALUES:
        return VALUES[typed[-1]](incomplete)
    return strategies(incomplete) if ctx.info_name == "explain" and not typed else []
