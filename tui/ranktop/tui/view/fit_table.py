"""The table of the plans that fit: its columns by worth, a row per plan, what is said of the selected one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from ranktop.budget.planning.sizes import seconds
from ranktop.budget.terms import BUDGETED
from ranktop.tui.view.bar import cells, half_blocks, letters
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line, Span, Unit, fit, pad, size

if TYPE_CHECKING:
    from ranktop.budget.fit import Candidate, Fit

NAME_CELLS: Final = 17
MIN_BAR: Final = 20

CHECKPOINTING: Final = {"none": "none", "selective": "sel", "full": "full"}


@dataclass(frozen=True, slots=True)
class Look:
    """How the table is drawn."""

    options: Options
    width: int
    unit: Unit
    capacity: int
    """Bytes of one device."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of numbers."""

    head: str
    cells: int
    worth: int
    """Which goes first where it is narrow: the lowest."""
    cell: Callable[[Candidate], Span]
    used: bool = True


def columns(found: Fit, look: Look) -> list[Column]:
    """Return the columns there is room for, without those in which nothing would stand."""
    dash, unit = look.options.glyphs.dash, look.unit

    def time(head: str, worth: int, part: Callable[[Candidate], float]) -> Column:
        def cell(one: Candidate) -> Span:
            return (seconds(part(one)), "text") if part(one) else (dash, "dim")

        return Column(head, 6, worth, cell, any(part(one) for one in found.fitting))

    def left(one: Candidate) -> Span:
        text = size(one.projection.headroom, unit)
        return (f"!{text}", "warn") if one.tight else (text, "good")

    every = [
        Column("batch", 8, 7, lambda one: (f"{one.run.micro_batch}×{one.run.accumulation}", "text")),
        Column("ckpt", 5, 6, lambda one: (CHECKPOINTING.get(one.run.checkpointing, "?"), "text")),
        Column(unit.name, 7, 8, lambda one: (size(one.total, unit), "bold")),
        Column("left", 8, 5, left),
        Column("sent", 8, 4, lambda one: (size(one.sent, unit), "dim")),
        time("copy", 1, lambda one: one.seconds.copying),
        time("again", 2, lambda one: one.seconds.recomputing),
        time("wait", 3, lambda one: one.seconds.waiting),
        Column("lost", 7, 9, lambda one: (seconds(one.cost), "bold")),
    ]
    kept = [column for column in every if column.used]
    while kept and _lead(kept) > look.width:
        kept.remove(min(kept, key=lambda column: column.worth))
    return kept


def _lead(shown: list[Column]) -> int:
    return NAME_CELLS + 3 + sum(column.cells for column in shown)


def _bar_cells(shown: list[Column], look: Look) -> int:
    room = look.width - _lead(shown) - 2
    return room if room >= MIN_BAR else 0


def heading(shown: list[Column], look: Look) -> Line:
    """Return the columns' heads."""
    bar = _bar_cells(shown, look)
    spans: list[Span] = [(fit("   plan", NAME_CELLS + 3), "label")]
    if bar:
        spans += [(" ", ""), (fit(f"of {size(look.capacity, look.unit)} {look.unit.name}", bar), "label"), (" ", "")]
    return pad([*spans, *((f"{column.head:>{column.cells}}", "label") for column in shown)], look.width)


def row(one: Candidate, selected: bool, shown: list[Column], look: Look) -> Line:
    """Return one plan's line, with a bar of its memory where there is room."""
    options = look.options
    mark = options.glyphs.select if selected else " "
    own = " " if one.changes else options.glyphs.live
    name = fit(one.title, NAME_CELLS, "<", options.glyphs.ellipsis)
    spans: list[Span] = [(f" {mark}", "cursor"), (own, "accent"), (name, "text" if one.changes else "bold")]
    bar = _bar_cells(shown, look)
    if bar:
        amounts = {name: amount.bytes for name, amount in one.projection.amounts().items()}
        drawn = cells(amounts, max(1, look.capacity), bar, BUDGETED)
        line = letters(drawn, drawn, False, options.glyphs) if options.letters else half_blocks(drawn, drawn, False)
        spans += [(" ", ""), *line, (" ", "")]
    for column in shown:
        text, style = column.cell(one)
        spans.append((f"{text:>{column.cells}}", style))
    made = pad(spans, look.width)
    return tuple((text, f"{style} selected".strip()) for text, style in made) if selected else made


def changes_words(one: Candidate, options: Options) -> str:
    """Return what a plan changes of what runs now."""
    return ", ".join(one.changes).replace("→", options.glyphs.arrow) or "as it runs now"


def about(one: Candidate, found: Fit, several_nodes: bool, options: Options, width: int) -> list[Line]:
    """Say what the selected plan changes, under which other names it goes, and at which speeds seconds are reckoned."""
    changes = changes_words(one, options)
    also = f"; the same: {', '.join(one.also)}" if one.also else ""
    first = wrap(f"{one.title}: {changes}{also}", max(10, width - 2))[:2]
    less = f"nothing fits in the present precision, but in {found.less_precise}; " if found.less_precise else ""
    last = wrap(f"{less}at {found.speeds.words(several_nodes)}", max(10, width - 2))[:2]
    return [
        *(pad([(f" {text}", "text")], width) for text in (*first, *([""] * (2 - len(first))))),
        *(pad([(f" {text}", "dim")], width) for text in last),
    ]
