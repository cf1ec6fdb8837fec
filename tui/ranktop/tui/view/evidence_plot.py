"""The small picture of a finding: its values over steps or ranks, what they are held against drawn across."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ranktop.tui.session.findings.finding import Finding, Plot, Value
from ranktop.tui.view.text import Glyphs, Line, Span, count, fit, human, merge, pad, plain

ROWS: Final = 8
NEAR_ZERO: Final = 0.6
"""Smallest value as a share of the largest, above which the axis does not begin at zero."""
FLAT: Final = 0.1
"""Least height of the axis, as a share of the largest value."""
LABEL: Final = 11
"""Cells of the axis's labels."""
MOST: Final = 100_000
"""Points that are looked at."""
WIDEST: Final = 8
"""Cells of a rank's bar at most."""


def value_words(value: Value, unit: str) -> str:
    """Write one value with its unit in words; an unknown or impossible one as ``unknown``."""
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "unknown"
    try:
        return _number(value, unit)
    except OverflowError:
        return "unknown"


def _number(value: float, unit: str) -> str:
    if unit == "B" or unit.startswith("B/"):
        return f"{human(int(value))}{plain(unit[1:])}"
    if unit == "s":
        return _seconds(value)
    whole = float(value).is_integer()
    if whole or abs(value) >= 1000:
        number = count(round(value)) if abs(value) < 1e15 else f"{value:.3g}"
    else:
        number = f"{value:.3g}"
    return f"{number} {plain(unit)}" if unit else number


def _seconds(value: float) -> str:
    if abs(value) >= 7200:
        return f"{value / 3600:,.1f} h"
    if abs(value) >= 180:
        return f"{value / 60:,.1f} min"
    if value and abs(value) < 0.0995:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s"


def plot_lines(finding: Finding, width: int, glyphs: Glyphs) -> list[Line]:
    """Draw a finding's plot in at most ``width`` cells; nothing when it has none that can be drawn."""
    plot = finding.plot
    if plot is None or not plot.lines or width < 24:
        return []
    own = _finite(plot.lines[0][1][:MOST])
    other = _finite(plot.lines[1][1][:MOST]) if len(plot.lines) > 1 else []
    known = [value for value in (*own, *other) if value is not None]
    if not known or not plot.at:
        return []
    cells = width - LABEL - 1
    if plot.over == "rank":
        own, other, owner, each, at = _by_rank(plot, own, other, cells)
    else:
        at = list(plot.at[: len(own)])
        own, each = _squeezed(own, cells), 1
        other, owner = _squeezed(other, cells), [0] * len(own)
        each = max(1, min(2, cells // max(1, len(own))))
    low, high = _axis(known)
    marked = set(finding.ranks) if plot.over == "rank" else set()
    body = _body(own, other, low, high, each, [at_rank in marked for at_rank in owner], glyphs)
    lines = [pad(_title(plot, glyphs), width)]
    for row, line in enumerate(body):
        label = value_words(high, plot.unit) if row == 0 else value_words(low, plot.unit) if row == ROWS - 1 else ""
        lines.append(pad([(fit(label, LABEL, ">") + " ", "dim"), *line], width))
    lines.append(pad([(" " * (LABEL + 1), ""), *_feet(plot, at, owner, each, len(own), marked)], width))
    return lines


def _finite(values: Sequence[float | None]) -> list[float | None]:
    return [value if value is not None and math.isfinite(value) and abs(value) < 1e300 else None for value in values]


def _axis(known: Sequence[float]) -> tuple[float, float]:
    low, high = min(known), max(known)
    if low >= 0 and low < NEAR_ZERO * high:
        return 0.0, high
    if high <= 0 and high > NEAR_ZERO * low:
        return low, 0.0
    # Flat looks flat: differences of a percent fill no chart.
    reach = max(1.4 * (high - low), FLAT * abs(high)) or 1.0
    return high + 0.05 * reach - reach, high + 0.05 * reach


def _by_rank(
    plot: Plot, own: list[float | None], other: list[float | None], cells: int
) -> tuple[list[float | None], list[float | None], list[int], int, list[int]]:
    """Give each rank its bar; of more ranks than cells the largest of neighbours."""
    ranks = list(plot.at[: len(own)])
    each = max(1, min(WIDEST, cells // max(1, len(ranks))))
    if len(ranks) <= cells:
        return own, other, ranks, each, ranks
    owner = [ranks[at * len(ranks) // cells] for at in range(cells)]
    return _squeezed(own, cells), _squeezed(other, cells), owner, 1, ranks


def _squeezed(values: list[float | None], cells: int) -> list[float | None]:
    """Return as many values as there are cells, each the largest of its neighbours."""
    if len(values) <= cells or cells <= 0:
        return values
    out: list[float | None] = []
    for at in range(cells):
        part = values[at * len(values) // cells : max(at * len(values) // cells + 1, (at + 1) * len(values) // cells)]
        out.append(max((value for value in part if value is not None), default=None))
    return out


def _body(
    own: list[float | None], other: list[float | None], low: float, high: float, each: int, marked: list[bool],
    glyphs: Glyphs,
) -> list[Line]:  # fmt: skip
    steps = len(glyphs.vertical) - 1
    reach = (high - low) or 1.0

    def level(value: float | None) -> int:
        if value is None:
            return -1
        return max(1 if value > low else 0, min(ROWS * steps, math.ceil((value - low) / reach * ROWS * steps - 1e-9)))

    heights = [level(value) for value in own]
    across = [level(value) for value in other]
    cross = "-" if glyphs.ascii else "╌"
    lines: list[Line] = []
    for row in range(ROWS - 1, -1, -1):
        spans: list[Span] = []
        for at, height in enumerate(heights):
            here = max(0, min(steps, height - row * steps))
            held = across[at] if at < len(across) else -1
            line = held > 0 and (held - 1) // steps == row
            over = held >= 0 and row * steps >= held
            hot = marked[at] if any(marked) else over
            style = "warn" if hot else "chart" if not any(marked) else "spark"
            if here == 0 and line:
                spans.append((cross * each, "dim"))
            else:
                block = "." if height < 0 and row == 0 else glyphs.vertical[here]
                gap = " " if each > 2 else ""
                spans.append((block * (each - len(gap)), style if block != "." else "dim"))
                spans.append(((cross if line else " ") if gap else "", "dim"))
        lines.append(merge(spans))
    return lines


def _title(plot: Plot, glyphs: Glyphs) -> list[Span]:
    spans: list[Span] = [(" ", ""), (plain(plot.title), "label bold"), ("  ", "")]
    names = [plain(name) for name, _ in plot.lines[:2]]
    solid, cross = ("#", "-") if glyphs.ascii else ("█", "╌")
    spans += [(f"{solid} ", "chart" if plot.over != "rank" else "spark"), (f"{names[0]}  ", "dim")]
    if len(names) > 1:
        spans += [(f"{cross} ", "dim"), (names[1], "dim")]
    return spans


def _feet(plot: Plot, at: list[int], owner: list[int], each: int, cells: int, marked: set[int]) -> list[Span]:
    """Name the ends of the axis, or every rank where there is room."""
    widest = max((len(str(rank)) for rank in owner), default=1)
    if plot.over == "rank" and each > widest and len(owner) == len(at):
        return [(fit(str(rank), each), "warn bold" if rank in marked else "axis") for rank in owner]
    word = plain(plot.over)
    first, last = f"{word} {count(at[0])}", count(at[-1])
    room = max(len(first) + len(last) + 1, cells * each)
    return [(f"{first}{last:>{room - len(first)}}", "axis")]
