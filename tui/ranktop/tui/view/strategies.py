"""The strategies screen as lines: what this job would need under each strategy, its own measured beside expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ranktop.budget.run import Projection
from ranktop.budget.terms import BUDGETED
from ranktop.tui.keys import STRATEGY_KEYS
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Snapshot
from ranktop.tui.session.whatif import WhatIf
from ranktop.tui.view.bar import cells, half_blocks, letters
from ranktop.tui.view.header import header
from ranktop.tui.view.hints import category_keys, hint_line, place
from ranktop.tui.view.options import Options
from ranktop.tui.view.scale import PROCESS
from ranktop.tui.view.status import SHORT
from ranktop.tui.view.strategies_words import Scale, below, difference, question
from ranktop.tui.view.text import (
    GIB,
    Glyphs,
    Line,
    Span,
    Unit,
    first_that_fits,
    fit,
    human,
    in_ascii,
    pad,
    plain,
    short_count,
    size,
    unit_for,
)

NAME_CELLS: Final = 17
NUMBER_CELLS: Final = 7
MIN_BAR: Final = 16
WIDE: Final = 112
"""Cells from which the categories stand in columns of their own."""

TITLES: Final = {
    "parameters": "param", "gradients": "grad", "optimizer": "optim", "activations": "act", "buffers": "buf",
    "runtime": "run",
}  # fmt: skip

HINTS: Final = (
    ("enter", "explain"), ("w", "world"), ("b", "batch"), ("l", "length"), ("p", "precision"), ("c", "checkpoint"),
    ("o", "optimizer"), ("f", "offload"), ("shift", "back"), ("x", "as it runs"), ("g", "what fits"), ("esc", "ranks"),
    ("?", "help"),
)  # fmt: skip


@dataclass(slots=True)
class Choice:
    """What the person has selected on the screen."""

    at: int = 0
    """Index into the strategies as they are listed."""
    top: int = 0


def strategies(
    snapshot: Snapshot, link: Link, whatif: WhatIf, choice: Choice, options: Options, size: tuple[int, int], notice: str
) -> list[Line]:
    """Draw the screen into (width, height) cells; moves the scroll position to where the selection is."""
    width, height = size
    scale = scale_of(whatif)
    names = whatif.order()
    choice.at = max(0, min(len(names) - 1, choice.at))
    rows: list[tuple[int, Line]] = []
    for at, name in enumerate(names):
        selected = at == choice.at
        rows.append((at, _row(name, whatif, scale, options, width, selected)))
        if name == whatif.own and whatif.measured is not None:
            rows.append((at, _measured_row(whatif, scale, options, width, selected)))
    told = below(names[choice.at], whatif, scale, options, width)
    if height >= len(rows) + len(told) + 6:
        told = [pad((), width), *told, _legend(options, width)]
    if height < 10:
        told = []
    room = max(1, height - 4 - len(told))
    lines = [header(snapshot, link, options, width), question(whatif, options, width), _heading(scale, options, width)]
    lines += _visible(rows, choice, room, width)
    lines += [pad((), width)] * (height - len(lines) - len(told) - 1)
    lines = [*lines, *told][: max(0, height - 1)]
    lines.append(_footer(notice, choice, room, len(rows), options, width))
    ready = [in_ascii(line) for line in lines] if options.glyphs.ascii else lines
    return ready[:height]


def scale_of(whatif: WhatIf) -> Scale:
    """Return the scale of the bars: the device, or the largest row where the job itself would be a sliver."""
    totals = [row.rank.total for row in whatif.rows.values() if row.rank is not None and row.rank.total is not None]
    largest = max([*totals, whatif.measured.held if whatif.measured is not None else 0], default=0)
    capacity = whatif.capacity
    own = whatif.measured.held if whatif.measured is not None else largest
    full = capacity if capacity and own > capacity // 10 else int(largest * 1.05) or capacity or 1
    unit = unit_for(largest or capacity)
    return Scale(full, Unit("GiB", GIB) if largest >= 4 * GIB else unit, capacity, whatif.sharing)


def _visible(rows: list[tuple[int, Line]], choice: Choice, room: int, width: int) -> list[Line]:
    own = [index for index, (at, _) in enumerate(rows) if at == choice.at]
    if own:
        choice.top = min(choice.top, own[0])
        choice.top = max(choice.top, own[-1] - room + 1)
    choice.top = max(0, min(choice.top, len(rows) - room))
    shown = [line for _, line in rows[choice.top : choice.top + room]]
    return shown + [pad((), width)] * (room - len(shown))


def _columns(width: int) -> tuple[str, ...]:
    return BUDGETED if width >= WIDE else ()


def _bar_cells(scale: Scale, width: int) -> int:
    rest = NAME_CELLS + 4 + len(_columns(width)) * NUMBER_CELLS + NUMBER_CELLS + 1 + 1 + _right_cells(scale, width)
    return max(0, width - rest)


def _right(scale: Scale, width: int) -> tuple[tuple[str, int], ...]:
    """Return title and cells of the columns behind the bar; the least worth goes first where it is narrow.

    Where the device is the host's memory nothing is beside it.
    """
    columns = [("host", 7), ("comm", 7), ("room", 8), ("batch", 6)][1 if scale.shared else 0 :]
    fixed = NAME_CELLS + 4 + NUMBER_CELLS + 2 + MIN_BAR
    for gone in ("host", "comm", "batch"):
        if fixed + sum(cells for _, cells in columns) <= width:
            break
        columns = [column for column in columns if column[0] != gone]
    return tuple(columns)


def _right_cells(scale: Scale, width: int) -> int:
    return sum(cells for _, cells in _right(scale, width))


def _heading(scale: Scale, options: Options, width: int) -> Line:
    cells = _bar_cells(scale, width)
    spans: list[Span] = [(fit("   strategy", NAME_CELLS + 4), "label")]
    spans += [(f"{TITLES[name]:>{NUMBER_CELLS}}", "label") for name in _columns(width)]
    spans.append((f"{scale.unit.name:>{NUMBER_CELLS}}", "label bold"))
    full = size(scale.bytes, scale.unit, 1)
    what = "of" if scale.bytes == scale.capacity else "full bar ="
    forms = [f"{what} {full} {scale.unit.name}"]
    if scale.shared and scale.capacity:
        ranks = f"{scale.shared} rank{'' if scale.shared == 1 else 's'}"
        each = f"{human(scale.capacity)} = RAM / {ranks}"
        forms = [f"{forms[0]}; {each}", each, f"RAM / {ranks}", *forms]
    spans += [(" ", ""), (fit(first_that_fits(forms, cells), cells), "label"), (" ", "")]
    spans += [(f"{_title(name, width):>{room}}", "label") for name, room in _right(scale, width)]
    return pad(spans, width)


def _title(name: str, width: int) -> str:
    return {"comm": "sent", "batch": "max b"}.get(name, name)


def _row(name: str, whatif: WhatIf, scale: Scale, options: Options, width: int, selected: bool) -> Line:
    found = whatif.rows.get(name)
    glyphs = options.glyphs
    own = name == whatif.own
    mark = glyphs.select if selected else " "
    style = "bold" if own else "text"
    lead: list[Span] = [(f" {mark} ", "cursor"), (fit(name, NAME_CELLS - 3), style)]
    side = "exp" if own and whatif.measured is not None else ""
    lead.append((fit(side, 4), "dim"))
    if found is None:
        why = whatif.failures.get(name, glyphs.ellipsis)
        return _tinted(pad([*lead, (f" {plain(why)}", "dim")], width), selected)
    if found.refused:
        return _tinted(pad([*lead, (f" {glyphs.dash} {plain(found.refused)}", "dim")], width), selected)
    amounts = {category: amount.bytes for category, amount in found.amounts().items()}
    total = found.rank.total if found.rank is not None else None
    numbers = _numbers(amounts, total, scale, glyphs, width)
    bar = _bar(amounts, amounts, scale, options, _bar_cells(scale, width))
    return _tinted(
        pad([*lead, *numbers, (" ", ""), *bar, (" ", ""), *_tail(found, scale, glyphs, width)], width), selected
    )


def _measured_row(whatif: WhatIf, scale: Scale, options: Options, width: int, selected: bool) -> Line:
    measured = whatif.measured
    assert measured is not None
    amounts = measured.memory.by_category()
    expected = {name: amount.bytes for name, amount in measured.expected.items()}
    if not expected.get("runtime"):
        expected["runtime"] = amounts.get("runtime")  # nobody budgets it on a host: it is the same on both sides
    lead: list[Span] = [("   ", ""), (fit(f"rank {measured.rank}", NAME_CELLS - 3), "dim"), ("now ", "bold")]
    numbers = _numbers(amounts, measured.total, scale, options.glyphs, width)
    bar = _bar(expected, amounts, scale, options, _bar_cells(scale, width))
    room = max(0, _right_cells(scale, width))
    right = fit(difference(measured, scale, options.glyphs, room), room, ">", options.glyphs.ellipsis)
    return _tinted(pad([*lead, *numbers, (" ", ""), *bar, (" ", ""), (right, "dim")], width), selected)


def _numbers(
    amounts: Mapping[str, int | None], total: int | None, scale: Scale, glyphs: Glyphs, width: int
) -> list[Span]:
    spans: list[Span] = []
    for name in _columns(width):
        value = amounts.get(name)
        spans.append((f"{_size(value, scale, glyphs):>{NUMBER_CELLS}}", "number" if value else "dim"))
    over = total is not None and scale.capacity is not None and total > scale.capacity
    spans.append((f"{_size(total, scale, glyphs):>{NUMBER_CELLS}}", "bad bold" if over else "bold"))
    return spans


def _size(value: int | None, scale: Scale, glyphs: Glyphs) -> str:
    return size(value, scale.unit, 1, glyphs.dash)


def _bar(
    upper: Mapping[str, int | None], lower: Mapping[str, int | None], scale: Scale, options: Options, width: int
) -> Line:
    if width <= 0:
        return ()
    up, low = (cells(amounts, scale.bytes, width, PROCESS) for amounts in (upper, lower))
    return letters(up, low, False, options.glyphs) if options.letters else half_blocks(up, low, False)


def _tail(found: Projection, scale: Scale, glyphs: Glyphs, width: int) -> list[Span]:
    rank = found.rank
    host = rank.budget.host.bytes if rank is not None else None
    away = rank.budget.nvme.bytes if rank is not None else None
    texts = {
        "host": (_size(None if host is None else host + (away or 0), scale, glyphs), "dim"),
        "comm": (_size(found.sent, scale, glyphs), "dim"),
        "room": _room(found, scale, glyphs),
        "batch": (_batch(found, glyphs), "text" if found.max_micro_batch else "dim"),
    }
    return [(f"{texts[name][0]:>{room}}", texts[name][1]) for name, room in _right(scale, width)]


def _room(found: Projection, scale: Scale, glyphs: Glyphs) -> tuple[str, str]:
    """Say what is left of the device, or what is missing, with its sign."""
    if found.headroom is None:
        return glyphs.dash, "dim"
    room = found.headroom
    large = abs(room) >= 1000 * scale.unit.bytes and scale.unit.bytes < GIB
    text = f"{room / GIB:+,.1f}G" if large else f"{room / scale.unit.bytes:+,.1f}"
    return (text, "good") if found.headroom >= 0 else (text, "bad bold")


def _batch(found: Projection, glyphs: Glyphs) -> str:
    return glyphs.dash if found.max_micro_batch is None else short_count(found.max_micro_batch)


def _tinted(line: Line, selected: bool) -> Line:
    return tuple((text, f"{style} selected".strip()) for text, style in line) if selected else line


def _legend(options: Options, width: int) -> Line:
    words = ((name, name if width >= 100 else SHORT.get(name, name)) for name in (*BUDGETED, "cache"))
    return pad(category_keys(words, options), width)


def _footer(notice: str, choice: Choice, room: int, rows: int, options: Options, width: int) -> Line:
    return hint_line(HINTS, notice, place(choice.top, room, rows, options.glyphs), options.glyphs, width, STRATEGY_KEYS)
