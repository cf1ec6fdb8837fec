"""The rank list: which ranks, in which order, with which columns, as lines."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len

from ranktop.budget.terms import CATEGORIES, STATES
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.rank_view import GONE, RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.bar import DRAWN, cells, half_blocks, letters
from ranktop.tui.view.columns import Columns, choose, device_name
from ranktop.tui.view.findings import by_rank
from ranktop.tui.view.gauges import Gauges
from ranktop.tui.view.options import MOMENT_WORDS, Options
from ranktop.tui.view.scale import Scale, Shown, scale_of, shown
from ranktop.tui.view.status import rank_state
from ranktop.tui.view.text import (
    Line,
    Span,
    duration,
    first_that_fits,
    fit,
    merge,
    plain,
    seconds,
    short_duration,
    signed,
    size,
)

GAUGED: Final = ("utilization", "power", "temperature")
"""Columns that are read from the device."""

BIG_DIFFERENCE: Final = 0.05
"""Share of the expected bytes above which a difference is a person's business."""


@dataclass(frozen=True, slots=True)
class Table:
    """Everything one frame knows of its ranks, before a line is drawn."""

    rows: tuple[Shown, ...]
    """Ranks that pass the filter, in the chosen order."""
    scale: Scale
    findings: Mapping[int, Finding]
    """Rank -> the gravest finding that has a word for its row."""
    columns: Columns
    budgeted: tuple[str, ...]
    """Categories that have an expected side somewhere."""
    total_ranks: int

    def index(self, rank: int | None) -> int | None:
        """Return the row of a rank, None when it is not shown."""
        return next((at for at, row in enumerate(self.rows) if row.view.rank == rank), None)


def table(snapshot: Snapshot, options: Options, width: int) -> Table:
    """Choose rows, order, scale and columns of a frame; the options keep the scale for the next one."""
    everyone = [shown(view, options.moment) for view in snapshot.ranks]
    scale = scale_of(everyone, options.zoom, options.held)
    options.held = (scale.zoom, scale.bytes)
    found = by_rank(snapshot.findings)
    grave = {rank for finding in snapshot.findings if finding.severity != "info" for rank in finding.ranks}
    rows = everyone
    if options.filter.strip():
        rows = [row for row in everyone if _passes(row.view, found.get(row.view.rank), grave, options)]
    rows = _ordered(rows, options, scale)
    # Of a thousand ranks most share their budgets.
    tables = {id(row.amounts): row.amounts for row in everyone}
    known = {name for table in tables.values() for name, amount in table.items() if amount.bytes is not None}
    budgeted = tuple(name for name in CATEGORIES if name in known)
    return Table(
        rows=tuple(rows),
        scale=scale,
        findings=found,
        columns=choose(snapshot, scale, width),
        budgeted=budgeted,
        total_ranks=len(everyone),
    )


def _passes(view: RankView, finding: Finding | None, grave: Container[int], options: Options) -> bool:
    wanted = options.filter.strip().lower()
    if wanted.isdigit():
        return view.rank == int(wanted)
    card = view.card
    state, style = rank_state(view, finding, options.glyphs)
    if wanted == "!":
        return view.rank in grave or style in ("bad", "warn")
    words = [f"rank {view.rank}", state, view.state]
    if card is not None:
        words += [plain(card.node), device_name(view), plain(card.device.name), f"pid {card.pid}"]
    return wanted in " ".join(words).lower()


def _ordered(rows: list[Shown], options: Options, scale: Scale) -> list[Shown]:
    if options.sort == "rank":
        return sorted(rows, key=lambda row: row.view.rank, reverse=options.reverse)
    sign = 1 if options.reverse else -1

    def key(row: Shown) -> tuple[float, int]:
        value = _sort_value(row, options.sort, scale)
        # What is unknown goes last in either direction.
        return (math.inf if value is None else sign * value), row.view.rank

    return sorted(rows, key=key)


def _sort_value(row: Shown, sort: str, scale: Scale) -> float | None:
    if sort == "used":
        return row.used(scale.zoom)
    if sort == "difference":
        return row.total_delta
    if sort == "age":
        return row.view.age
    if sort == "step time":
        return row.view.steps[-1].seconds if row.view.steps else None
    sample = row.view.sample
    value: float | None = None if sample is None else getattr(sample.device, sort)
    return value


def heading(frame: Table, options: Options, left: int) -> tuple[Line, Line]:
    """Return the titles of both halves of the list, the left one ``left`` cells wide."""
    mark = _sort_mark("rank", options) if options.sort != "rank" or options.reverse else ""
    spans: list[Span] = [(f"{mark:>2}rank ", "label bold" if mark else "label")]
    spans += [(fit(column.title, column.width, column.align) + " ", "label") for column in frame.columns.left]
    room = left - sum(len(text) for text, _ in spans)
    spans.append((fit(_bar_title(frame, options, room - 1), room), "label"))
    right: list[Span] = []
    for column in frame.columns.right:
        title = column.title
        if column.key == "used":
            title = frame.scale.unit.name
        elif column.key == "delta":
            title = f"{options.glyphs.delta} {delta_title(frame)}"
        elif column.key == "expected":
            title = f"exp {delta_title(frame)}" if delta_title(frame) != "exp" else "expected"
        elif column.key == "temperature":
            title = options.glyphs.degree
        mark = _sort_mark(column.sort, options)
        text = fit(mark + title if column.align == ">" else title + mark, column.width, column.align)
        spans_style = "label bold" if mark else "label"
        right.append((text + " ", spans_style))
    return merge(spans), merge(right)


def delta_title(frame: Table) -> str:
    """Name what the difference covers: ``exp`` when it is everything that the process holds."""
    if not frame.budgeted:
        return "exp"
    if set(frame.budgeted) <= set(STATES):
        return "states"
    return "exp"


def _sort_mark(key: str, options: Options) -> str:
    if not key or key != options.sort:
        return ""
    return options.glyphs.up if options.reverse else options.glyphs.down


def _bar_title(frame: Table, options: Options, width: int) -> str:
    moment, short = MOMENT_WORDS[options.moment], options.moment.replace("_", " ")
    long, *_ = words = frame.scale.words()
    if options.letters:
        sides = ("CAPITAL = as expected, : expected only", "CAPITAL = as expected", "")
    else:
        sides = ("▀ expected  ▄ measured", "▀ exp ▄ now" if options.moment == "now" else "▀ exp ▄ meas", "")
    forms = [f"{sides[0]} at {moment} {options.glyphs.dot} {long}"]
    forms += [f"{side} at {short} {options.glyphs.dot} {scale}" for scale in words for side in sides[:2]]
    forms += [f"{sides[1]} {words[-1]}", f"at {short} {words[-1]}", words[-1], ""]
    return first_that_fits(forms, width)


def left_line(row: Shown, frame: Table, options: Options, width: int) -> Line:
    """Draw the left half of a row: rank, where it runs, and the bar on all the cells that are left."""
    view, glyphs = row.view, options.glyphs
    chosen = view.rank == options.selected
    gone = view.state in GONE or view.state == "missing"
    style = "text bold selected" if chosen else ("dim" if gone else "text")
    spans: list[Span] = [(f"{glyphs.select if chosen else ' '} ", "cursor selected" if chosen else "")]
    spans.append((f"{view.rank:>4} ", style))
    for column in frame.columns.left:
        text = plain(view.card.node) if column.key == "node" and view.card else device_name(view)
        spans.append((fit(text, column.width, column.align) + " ", "dim" if not chosen else style))
    cells_left = max(0, width - sum(column.width + 1 for column in frame.columns.left) - 9)
    spans += _bar(row, frame.scale, options, cells_left, faded=gone or view.stale)
    spans.append((f"{glyphs.end} ", "track"))
    return merge(spans)


def _bar(row: Shown, scale: Scale, options: Options, width: int, faded: bool) -> Line:
    drawn = scale.drawn
    measured = row.memory.by_category()
    budget = {name: amount.bytes for name, amount in row.amounts.items() if name in DRAWN}
    lower = cells(measured, scale.bytes, width, drawn)
    upper = cells(budget, scale.bytes, width, drawn)
    if options.letters:
        return letters(upper, lower, faded, options.glyphs)
    return half_blocks(upper, lower, faded)


def right_line(row: Shown, frame: Table, options: Options) -> Line:
    """Draw the right half of a row: its numbers and its state."""
    chosen = row.view.rank == options.selected
    quiet = row.view.stale or row.view.state in GONE
    spans: list[Span] = []
    for column in frame.columns.right:
        text, style = _cell(column.key, row, frame, options)
        if column.key == "state":
            text = _with_age(text, row.view, column.width)
        if quiet and column.key != "state":
            style = "dim"
        if chosen:
            style = f"{style} selected"
        spans.append((fit(text, column.width, column.align) + " ", style))
    return merge(spans)


def _with_age(text: str, view: RankView, width: int) -> str:
    """Say how old the last picture of an ended rank is, or the GPU's values, where there is room for it."""
    longer = text
    if view.state in GONE and view.age is not None:
        longer = f"{text} {duration(view.age)} ago"
    elif view.state in ("ok", "starting"):
        gauges = Gauges.of(view)
        old = gauges.old(*GAUGED) if gauges is not None else None
        if old is not None:
            forms = (f"{text}, GPU {duration(old)} old", f"{text}, GPU {short_duration(old)} old")
            return first_that_fits((*forms, f"  GPU {short_duration(old)} old", text), width)
    return longer if cell_len(longer) <= width else text


def _cell(key: str, row: Shown, frame: Table, options: Options) -> tuple[str, str]:
    view, glyphs, unit = row.view, options.glyphs, frame.scale.unit
    sample = view.sample
    if key == "state":
        return rank_state(view, frame.findings.get(view.rank), glyphs)
    if key == "used":
        text = size(row.used(frame.scale.zoom), unit, dash=glyphs.dash)
        partly = frame.scale.zoom == "device" and row.memory.used() is None and row.process is not None
        return f"{glyphs.at_least if partly else ''}{text}", "number bold"
    if key == "total":
        return size(row.memory.total, unit, dash=glyphs.dash), "dim"
    if key == "expected":
        return size(row.expected_sum, unit, dash=glyphs.dash), "number"
    if key == "delta":
        worst = row.worst_delta
        if worst is not None and abs(row.total_delta or 0) < abs(worst) / 2:
            text = signed(abs(worst), unit, 1, glyphs).replace("+", glyphs.either)
            return text, delta_style(worst, row.expected_sum)
        return signed(row.total_delta, unit, 1, glyphs), delta_style(row.total_delta, row.expected_sum)
    if sample is None:
        return glyphs.dash, "dim"
    if key == "step":
        return f"{sample.step:,}", "number"
    if key == "step_s":
        return seconds(view.steps[-1].seconds if view.steps else None, glyphs.dash), "number"
    value: float | None = getattr(sample.device, key)
    if value is None:
        return glyphs.dash, "dim"
    gauges = Gauges.of(view)
    old = gauges is not None and gauges.old(key) is not None
    return (f"{value:.0f}%" if key == "utilization" else f"{value:.0f}"), "dim" if old else "number"


def delta_style(delta: int | None, base: int | None) -> str:
    """Return the style of a difference: calm when there is none, loud when it is a large share of the expected."""
    if delta is None:
        return "dim"
    if delta == 0:
        return "good"
    share = abs(delta) / base if base else math.inf
    return "bad bold" if share > BIG_DIFFERENCE else "warn"
