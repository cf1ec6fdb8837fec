"""What a recording tells by itself: ends, restarts, what ran out of memory, hubs that were replaced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ranktop.tui.replay.tape import Tape, received
from ranktop.tui.session.rank_view import end_state
from ranktop.wire.codec import clean
from ranktop.wire.schema import Box, End, Mark

KINDS: Final = ("death", "restart", "gap", "end")
"""By falling weight: a rank that died, a new life of the ranks, a stretch without a hub, ends as planned."""

_GAPS: Final = ("hub-replaced", "gap", "recording")


@dataclass(frozen=True, slots=True)
class Sign:
    """Something that happened at one time."""

    at: float
    """Seconds on the recording's clock."""
    kind: str
    """One of ``KINDS``."""
    words: str
    until: float | None = None
    """Of a gap: when the recording goes on."""


def signs(tape: Tape) -> Iterable[Sign]:
    """Return the signs of a recording, by time; equal ones of several ranks within a moment are one."""
    lives: dict[int, int] = {}
    newest: dict[str, float] = {}
    before = tape.begin
    for item in received(tape.events(), 0.0):
        at, header, body = -item.age, item.header, item.body
        restart = lives.setdefault(header.rank, header.restart)
        if header.rank >= 0 and header.restart > restart:
            lives[header.rank] = header.restart
            if at - newest.get("restart", -1e9) > _TOGETHER:
                yield Sign(at, "restart", f"restart {header.restart}")
            newest["restart"] = at
        if isinstance(body, Mark) and header.rank < 0 and body.what in _GAPS:
            if body.what == "hub-replaced":
                before = max((one.t for one in tape.items(at - _BACK, at - 1e-3)), default=before)
                yield Sign(before, "gap", clean(body.detail), at)
            else:
                yield Sign(at, "gap", clean(f"{body.what}: {body.detail}"))
        kind = _kind(body)
        if kind and at - newest.get(kind, -1e9) > _TOGETHER:
            yield Sign(at, kind, f"rank {header.rank} {_words(body)}")
        if kind:
            newest[kind] = at


_TOGETHER: Final = 15.0
"""Seconds within which ends of several ranks are one event."""

_BACK: Final = 3600.0
"""Seconds before a new hub in which the last word of the one before it is looked for."""


def _kind(body: object) -> str:
    if isinstance(body, Box):
        return "death"
    if isinstance(body, End):
        return "end" if end_state(body) == "ended" else "death"
    return ""


def _words(body: object) -> str:
    return "ran out of memory" if isinstance(body, Box) else end_state(body) if isinstance(body, End) else ""
