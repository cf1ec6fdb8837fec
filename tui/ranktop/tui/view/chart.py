"""History as a few rows of blocks on a fixed axis: flat looks flat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ranktop.tui.session.rings import Ring
from ranktop.tui.view.bar import half_blocks
from ranktop.tui.view.text import Glyphs, Line, duration, fit, merge, pad


def spark(values: Sequence[float | None], width: int, glyphs: Glyphs, top: float | None = None) -> str:
    """Draw the last ``width`` values in one row, from zero to ``top`` (the largest value when None)."""
    shown = list(values)[-width:] if width > 0 else []
    highest = top or max((value for value in shown if value), default=0.0)
    return "".join(_block(value, highest, glyphs) for value in shown)


def _block(value: float | None, top: float, glyphs: Glyphs) -> str:
    if value is None or math.isnan(value):
        return " "
    steps = len(glyphs.vertical) - 1
    # Bounded first: of two numbers far apart the quotient is infinite.
    share = 0.0 if top <= 0 else min(1.0, max(0.0, value / top))
    return glyphs.vertical[math.ceil(share * steps - 1e-9)]


def slots(width: int, now: float, span: float) -> tuple[float, float]:
    """Return (start, seconds per slot) of ``width`` slots that cover the last ``span`` seconds.

    Edges lie on whole multiples of a slot, so that a chart moves only when a slot is full.
    """
    slot = span / max(1, width)
    return (math.ceil(now / slot) - width) * slot, slot


def buckets(ring: Ring, name: str, width: int, now: float, span: float, *, last: bool = False) -> list[float]:
    """Return the largest value (``last``: the newest) in each slot of the last ``span`` seconds; NaN for none."""
    out = [math.nan] * max(0, width)
    start, slot = slots(width, now, span)
    for t, value in zip(ring.column("t"), ring.column(name), strict=True):
        at = int((t - start) / slot)
        if 0 <= at < width and not math.isnan(value):
            out[at] = value if last or math.isnan(out[at]) else max(out[at], value)
    return _held(out)


def _held(values: list[float]) -> list[float]:
    """Carry a value over a gap of one or two slots: sampling and slots beat against each other."""
    out = list(values)
    for at in range(1, len(out)):
        if math.isnan(out[at]) and any(not math.isnan(value) for value in values[at + 1 : at + 3]):
            out[at] = next(
                (value for value in reversed(values[max(0, at - 2) : at]) if not math.isnan(value)), math.nan
            )
    return out


def frame_chart(title: str, label: str, body: list[Line], span: float, width: int) -> list[Line]:
    """Put title, label of the upper end and time axis around the rows of a chart."""
    top = pad([(fit(title, width - len(label) - 1), "label"), (" ", ""), (label, "dim")], width)
    axis = pad([(fit(f"{duration(span)} ago", width - 3) + "now", "axis")], width)
    return [top, *body, axis]


def area(values: Sequence[float], top: float, rows: int, glyphs: Glyphs, style: str) -> list[Line]:
    """Draw values between zero and ``top`` as an area: bright along its upper edge, muted below."""
    steps = len(glyphs.vertical) - 1
    levels = [
        0 if math.isnan(value) or top <= 0 else max(1 if value > 0 else 0, math.ceil(value / top * rows * steps - 1e-9))
        for value in values
    ]
    lines: list[Line] = []
    for row in range(rows - 1, -1, -1):
        spans = []
        for level in levels:
            here = max(0, min(steps, level - row * steps))
            edge = 0 < level - row * steps <= steps
            spans.append((glyphs.vertical[here], style if edge else f"{style}-fill"))
        lines.append(merge(spans))
    return lines


def stacked(columns: Sequence[Mapping[str, float]], top: float, rows: int) -> list[Line]:
    """Draw columns of stacked categories (letter -> bytes, in order) with the half blocks of the bars."""
    cells = [_column(column, top, rows * 2) for column in columns]
    lines: list[Line] = []
    for row in range(rows - 1, -1, -1):
        upper = "".join(column[2 * row + 1] for column in cells)
        lower = "".join(column[2 * row] for column in cells)
        lines.append(half_blocks(upper, lower, faded=False))
    return lines


def _column(amounts: Mapping[str, float], top: float, height: int) -> str:
    out = ""
    total = 0.0
    for letter, value in amounts.items():
        if not math.isnan(value) and value > 0 and top > 0:
            total += value
            out += letter * max(0, min(height, round(total / top * height)) - len(out))
    return out.ljust(height, ".")
