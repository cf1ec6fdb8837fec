"""Words that several rules share: ranks, and how a process ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from typing import Final

from ranktop.tui.session.rank_view import RankView, end_state
from ranktop.tui.view.text import plain, ranges
from ranktop.wire.schema import End

_SOURCE: Final = r"[^\s\[\]]+\.(?:cc|cpp|cu|c|hpp|h|py):\d+"
_WHERE: Final = re.compile(
    rf"\[enforce fail at {_SOURCE}\.?\] *(?:[^.]{{1,80}}\. +(?=\S))?|\[{_SOURCE}\.?\] *|\b(?:in:? ){_SOURCE}, "
)
"""Where a library's own source raised, as gloo, NCCL and torch put it before what went wrong; and the condition that
did not hold there (``err == 0. ``), where a sentence follows."""

MOST_RUNS: Final = 8
"""Ranks that are neither few nor in few runs are counted, with the first of them."""

_HOW: Final = {
    "ended": "ended by itself",
    "failed": "failed",
    "killed": "was killed",
    "vanished": "vanished without a word",
}


def ranks_words(ranks: Iterable[int], verb: str = "") -> str:
    """Write ``rank 3`` or ``ranks 1-7, 9``; a verb that follows gets its ``s``."""
    ranks = sorted(set(ranks))
    if len(ranks) == 1:
        return f"rank {ranks[0]}" + (f" {verb}s" if verb else "")
    told = ranges(ranks)
    if told.count(",") < MOST_RUNS:
        words = f"ranks {told}"
    else:
        words = f"{len(ranks)} ranks ({', '.join(map(str, ranks[:3]))}, ...)"
    return words + (f" {verb}" if verb else "")


def what_went_wrong(detail: str) -> str:
    """Return a process's last words without where in its source a library raised."""
    return _WHERE.sub("", plain(detail))


def end_sentence(view: RankView) -> str:
    """Say in a sentence how a rank's process ended; empty while it lives."""
    return "" if view.end is None else f"rank {view.rank} {end_words(view.end)}"


def end_words(end: End) -> str:
    """Say how a process ended, to go on after who it was: ``was killed (signal 9): SIGKILL``."""
    detail = what_went_wrong(end.detail)
    if detail == f"exit code {end.code}":
        detail = ""
    code = ""
    if end.code is not None:
        code = f" (signal {end.code})" if end.how == "signal" else f" (exit code {end.code})"
        detail = detail or (signal_name(end.code) if end.how == "signal" else "")
    return f"{_HOW[end_state(end)]}{code}" + (f": {detail}" if detail else "")


def signal_name(number: int | None) -> str:
    """Return ``SIGKILL`` for 9; empty for a number that is none."""
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return ""
