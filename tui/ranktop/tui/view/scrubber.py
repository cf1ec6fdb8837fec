"""The line that says where in a recording the picture is, and where in it something happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ranktop.tui.view.text import Glyphs, Line, Span, duration, length, merge, pad

LEAST_BAR: Final = 12
"""Cells of a bar that is worth drawing."""


@dataclass(frozen=True, slots=True)
class Scrub:
    """What the line tells. Positions are shares of the recording, 0 to 1."""

    place: float
    wall: str
    """The recorded wall clock there."""
    date: str
    state: str
    """``4x``, ``paused``, ``end``."""
    done: str
    """Time since the beginning, and ..."""
    whole: str
    """... of the whole recording."""
    spacing: float = 0.0
    """Seconds between the samples of a rank that are kept here; 0: all are."""
    marks: Sequence[tuple[float, str]] = ()
    """(position, kind): ``critical``, ``warning``, ``death``, ``restart``, ``gap``, ``end``."""
    seen: Sequence[tuple[float, float]] = ()
    """Stretches that were looked through for findings."""


WEIGHTS: Final = ("critical", "death", "warning", "restart", "gap", "end")
"""Kinds by weight: where several fall into one cell, the first is drawn."""

_STYLES: Final = {
    "critical": "panel bad bold", "death": "panel bad bold", "warning": "panel warn bold", "restart": "panel bold",
    "gap": "panel bold", "end": "panel bold",
}  # fmt: skip


def _glyph(kind: str, glyphs: Glyphs) -> str:
    known = {
        "critical": glyphs.critical, "death": glyphs.failed, "warning": glyphs.alert, "restart": "r", "gap": "~",
        "end": "e" if glyphs.ascii else glyphs.ended,
    }  # fmt: skip
    return known[kind]


def scrubber(scrub: Scrub, glyphs: Glyphs, width: int) -> Line:
    """Return the line in ``width`` cells: the time, the state, the bar, the length; what does not fit is left out."""
    sparse = f"every {duration(scrub.spacing)} here"
    lead: list[Span] = [(f" {scrub.wall} ", "panel bold"), (f"{scrub.state} ", "panel accent bold")]
    dated: list[Span] = [(f" {scrub.date}", "panel dim"), *lead] if scrub.date else lead
    times = f" {scrub.done} / {scrub.whole} "
    thin: list[Span] = [(f" {sparse} ", "panel warn")] if scrub.spacing else []
    choices: tuple[tuple[list[Span], list[Span]], ...] = (
        (dated, [(times, "panel dim"), *thin]), (lead, [(times, "panel dim"), *thin]), (lead, thin), (lead, []),
        ([(f" {scrub.state} ", "panel accent bold")], []),
    )  # fmt: skip
    for at, (left, right) in enumerate(choices):
        room = width - length(left) - length(right)
        if room >= (30 if at == 0 else LEAST_BAR):
            return merge([*left, *bar(scrub, glyphs, room), *right])
    return pad([(f"{scrub.state} {scrub.wall}", "panel accent bold")], width, "panel")


def bar(scrub: Scrub, glyphs: Glyphs, cells: int) -> Line:
    """Return the recording as so many cells, each a part of it."""
    played, ahead, unseen = ("=", "-", ".") if glyphs.ascii else ("━", "─", "┄")
    head = _cell(scrub.place, cells)
    looked = _seen(scrub.seen, cells)
    out: list[Span] = []
    for cell in range(cells):
        if cell < head:
            out.append((played, "panel accent"))
        else:
            out.append((ahead if cell in looked else unseen, "panel dim"))
    weights = {kind: weight for weight, kind in enumerate(WEIGHTS)}
    for place, kind in sorted(scrub.marks, key=lambda mark: -weights[mark[1]]):
        out[_cell(place, cells)] = (_glyph(kind, glyphs), _STYLES[kind])
    out[head] = ("O" if glyphs.ascii else glyphs.live, _head_style(scrub, cells))
    return merge(out)


def _head_style(scrub: Scrub, cells: int) -> str:
    """Return the style of the playhead: it hides what lies in its cell, and takes that one's colour."""
    head = _cell(scrub.place, cells)
    here = [kind for place, kind in scrub.marks if _cell(place, cells) == head]
    return _STYLES[min(here, key=WEIGHTS.index)] if here else "panel bold"


def _cell(place: float, cells: int) -> int:
    return max(0, min(cells - 1, int(place * cells)))


def _seen(stretches: Iterable[tuple[float, float]], cells: int) -> frozenset[int]:
    return frozenset(
        cell for first, last in stretches for cell in range(_cell(first, cells), max(0, round(last * cells)))
    )


__all__ = ["Scrub", "bar", "scrubber"]
