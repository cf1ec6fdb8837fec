"""One row of the grid in full: its ranks under each other, with values, distances and what is found of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.columns import device_name
from ranktop.tui.view.findings import by_rank, mark
from ranktop.tui.view.imbalance_words import Words
from ranktop.tui.view.layout import scrolled
from ranktop.tui.view.metrics import Field
from ranktop.tui.view.options import Options
from ranktop.tui.view.status import rank_state
from ranktop.tui.view.text import Glyphs, Line, Span, fit, length, pad, plain

BAR: Final = 30
"""Cells of the bar that shows distances, at most; an odd number is drawn."""


LEAD: Final = 68
"""Cells before it."""
STATE: Final = 16
"""Cells of the state, which goes before the bar."""


def zoom_lines(
    snapshot: Snapshot, ranks: Sequence[int], found: Field, words: Words, grave: Mapping[int, Finding], top: int,
    options: Options, size: tuple[int, int],
) -> tuple[list[Line], int, int]:  # fmt: skip
    """Draw the ranks of one row, each in a line; ``top``: the first that was shown.

    Returns the lines on the screen, how many there are in all, and the first that is shown.
    """
    width, room = size
    views = [view for rank in ranks if (view := snapshot.rank(rank)) is not None]
    unit = found.metric.title if found.metric.title == words.name else f"{found.metric.title} {words.name}"
    bar = max(0, min(BAR, width - LEAD - STATE)) // 2 * 2
    titles = f"  {'rank':>5}  {'node, device':<22} {fit(unit, 18, '>')} {'from peers':>13}  "
    lines = [pad([(titles, "label")], width)]
    at = next((number for number, view in enumerate(views) if view.rank == options.selected), 0)
    shown = max(1, room - 1)
    top = scrolled(top, at, shown, len(views))
    short = by_rank(snapshot.findings)
    lines += [
        _line(view, found, words, (grave.get(view.rank), short.get(view.rank)), options, width, bar)
        for view in views[top : top + shown]
    ]
    return lines, len(views) + 1, top


def _line(
    view: RankView, found: Field, words: Words, findings: tuple[Finding | None, Finding | None], options: Options,
    width: int, bar: int,
) -> Line:  # fmt: skip
    glyphs = options.glyphs
    chosen = view.rank == options.selected
    more = " selected" if chosen else ""
    value, away, level = found.values.get(view.rank), found.away(view.rank), found.level(view.rank)
    where = "" if view.card is None else f"{plain(view.card.node)} {device_name(view)}"
    grave, short = findings
    lead = glyphs.select if chosen else " "
    spans: list[Span] = [
        (lead, f"cursor{more}"),
        (
            f"{mark(grave, glyphs) if grave is not None else ' '}{view.rank:>5}  ",
            f"text{' bold' if chosen else ''}{more}",
        ),
        (fit(where, 22) + " ", f"dim{more}"),
        (fit(glyphs.dash if value is None else words.short(value), 18, ">"), f"number bold{more}"),
        (fit("" if away is None else words.difference(away), 14, ">") + "  ", f"dim{more}"),
    ]
    if level is not None and bar >= 8:
        spans += [*_distance(away or 0.0, found.reach, bar, level, glyphs), (" ", "")]
    elif bar >= 8:
        spans.append((" " * (bar + 2), ""))
    text, style = rank_state(view, short, glyphs)
    spans.append((fit(text, max(0, width - length(spans))), f"{style}{more}"))
    return pad(spans, width)


def _distance(away: float, reach: float, bar: int, level: int, glyphs: Glyphs) -> list[Span]:
    """Draw a distance to the left or the right of a middle line."""
    half = bar // 2
    cells = min(half, round(half * abs(away) / reach)) if reach else 0
    block = "#" if glyphs.ascii else "█"
    left = (block * cells if away < 0 else "").rjust(half)
    right = (block * cells if away > 0 else "").ljust(half)
    style = "cold" if away < 0 else "warm"
    return [(left, style), (glyphs.rule, "axis"), (right, style)]
