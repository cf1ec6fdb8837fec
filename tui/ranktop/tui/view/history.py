"""The selected rank's last ten minutes: memory by what holds it, step time, utilisation."""

from __future__ import annotations

import math
from typing import Final

from ranktop.tui.session.rings import Ring
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.chart import area, buckets, frame_chart, stacked
from ranktop.tui.view.options import Options
from ranktop.tui.view.rows import Table
from ranktop.tui.view.scale import Shown
from ranktop.tui.view.text import Line, Span, pad, whole

SHORTEST: Final = 180.0
LONGEST: Final = 1800.0
"""Seconds that a chart covers at least, and at most; it grows by minutes. Shorter ones would move at every drawing."""
CHART_CELLS: Final = 34
"""Narrowest chart that is worth drawing."""
MIN_ROWS: Final = 8
"""Rows of a chart from which on a second row of charts is begun."""
MAX_ROWS: Final = 10
REDRAW: Final = 10.0
"""Seconds for which a chart stands still at most, else until it would move by a cell: half an hour of points is much to
draw, and to send, with every picture."""

LINES: Final = {
    "step_s": ("step time", "{:.3g} s"),
    "utilization": ("utilization", "{:.0f}%"),
    "loss": ("loss", "{:.4g}"),
    "power": ("power", "{:.0f} W"),
    "temperature": ("temperature", "{:.0f} °C"),
}
"""Column of the history -> title of its chart and how its upper end is written."""


def history(row: Shown, snapshot: Snapshot, frame: Table, options: Options, width: int, height: int) -> list[Line]:
    """Draw as many charts side by side as fit, ``height`` rows high; the same ones until they would move by a cell."""
    ring = row.view.history
    if height < 4 or width < CHART_CELLS:
        return []
    if ring is None or len(ring) < 2:
        return [pad([(" history begins here", "dim")], width)]
    known = [name for name in LINES if ring.last(name) is not None]
    across = min(max(1, min(3, width // (CHART_CELLS + 3))), len(known) + 1)
    known = known[: 3 * across - 1]
    down = max(1, min(height // MIN_ROWS, -(-(len(known) + 1) // across)))
    size = ((width - 1) // across - 2, min(MAX_ROWS, height // down))
    span = min(LONGEST, max(SHORTEST, 60.0 * math.ceil((snapshot.now - ring.begins) / 60.0)))
    turn = math.floor(snapshot.now / min(REDRAW, span / size[0]))
    key = (turn, width, height, known, frame.scale, row.memory.total, options.letters, options.glyphs)
    kept = options.charts
    if kept is None or kept[0] is not ring or kept[1] != key:
        charts = [_memory(row, ring, snapshot, frame, options, span, *size)]
        charts += [_line(name, ring, snapshot, options, span, size) for name in known[: across * down - 1]]
        kept = options.charts = (ring, key, _shelves(charts, across, size, width))
    return kept[2]


def _shelves(charts: list[list[Line]], across: int, size: tuple[int, int], width: int) -> list[Line]:
    """Put charts of one size beside each other, ``across`` in a row of them."""
    lines: list[Line] = []
    for start in range(0, len(charts), across):
        shelf = charts[start : start + across]
        for at in range(size[1]):
            spans: list[Span] = [(" ", "")]
            for chart in shelf:
                spans += (*(chart[at] if at < len(chart) else pad((), size[0])), ("  ", ""))
            lines.append(pad(spans, width))
    return lines


def _memory(
    row: Shown, ring: Ring, snapshot: Snapshot, frame: Table, options: Options, span: float, width: int, height: int
) -> list[Line]:
    scale = frame.scale
    device = scale.zoom == "device" and row.memory.total is not None
    top = row.memory.total if device and row.memory.total else scale.bytes
    label = f"{whole(top, scale.unit)} {scale.unit.name}"
    title = "states, activations, rest" if device else "states, activations, cache"
    columns = {name: buckets(ring, name, width, snapshot.now, span) for name in _COLUMNS}
    if options.letters:
        name = "used" if device else "reserved"
        body = area(columns[name], top, height - 2, options.glyphs, "chart")
        return frame_chart(name, label, body, span, width)
    stacks = []
    for used, states, activations, reserved in zip(*columns.values(), strict=True):
        tensors = _known(states) + _known(activations)
        stack = {"o": states, "a": activations, "c": max(0.0, _known(reserved) - tensors)}
        if device:
            stack["r"] = max(0.0, _known(used) - max(_known(reserved), tensors))
        stacks.append(stack)
    return frame_chart(title, label, stacked(stacks, top, height - 2), span, width)


_COLUMNS: Final = ("used", "states", "activations", "reserved")


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _line(
    name: str, ring: Ring, snapshot: Snapshot, options: Options, span: float, size: tuple[int, int]
) -> list[Line]:
    width, height = size
    title, form = LINES[name]
    values = buckets(ring, name, width, snapshot.now, span, last=name == "loss")
    top = max((value for value in values if not math.isnan(value)), default=0.0)
    low = 0.0
    if name == "utilization":
        top = 100.0
    label = form.format(top)
    if name == "loss":
        # Of a loss what counts is how it falls, and it may be negative: both ends are named.
        low = min((value for value in values if not math.isnan(value)), default=0.0)
        label = f"{form.format(low)} to {label}"
        low -= 0.05 * (top - low)
    body = area([value - low for value in values], top - low, height - 2, options.glyphs, "spark")
    return frame_chart(title, label, body, span, width)
