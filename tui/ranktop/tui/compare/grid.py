"""The tables of a comparison as lines: a column per run and side, as many as the width allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ranktop.tui.compare.cells import DASH, Cell, TableRow
from ranktop.tui.compare.comparison import Comparison
from ranktop.tui.view.text import Line, Span, fit, merge

NAME_CELLS: Final = 18
GAP: Final = 2
LEAST_CELLS: Final = 7


@dataclass(frozen=True, slots=True)
class Column:
    """One column: two lines of head, and a cell a row."""

    head: tuple[str, str]
    body: tuple[Cell, ...]

    @property
    def cells(self) -> int:
        """Its width."""
        return max(LEAST_CELLS, *(len(text) for text in self.head), *(len(cell.text) for cell in self.body))


def table(
    comparison: Comparison, title: str, rows: Sequence[TableRow], width: int, *, expected: bool
) -> Iterator[Line]:
    """Yield head and rows. Where it is narrow the expected side goes first, then the differences."""
    forms = [(expected, True), (False, True), (False, False)]
    columns: list[Column] = []
    for with_expected, with_away in forms:
        columns = list(_columns(comparison, rows, with_expected, with_away))
        if NAME_CELLS + sum(column.cells + GAP for column in columns) <= width:
            break
    if expected and not any("expected" in column.head for column in columns):
        title = title.replace("memory", "measured")
    for at in (0, 1):
        if at == 0 or any(column.head[at] for column in columns):
            spans: list[Span] = [(fit(title if at == 0 else "", NAME_CELLS), "label bold")]
            spans += [(f"{'':{GAP}}{column.head[at]:>{column.cells}}", "label") for column in columns]
            yield merge(spans)
    for at, row in enumerate(rows):
        spans = [(fit(row.name, NAME_CELLS), "bold" if row.strong else "")]
        spans += [_padded(column.body[at], column.cells, row) for column in columns]
        yield merge(spans)


def _padded(cell: Cell, cells: int, row: TableRow) -> Span:
    strong = row.strong and cell.style in ("good", "bad")
    return f"{'':{GAP}}{cell.text:>{cells}}", f"{cell.style} bold" if strong else cell.style


def _columns(
    comparison: Comparison, rows: Sequence[TableRow], with_expected: bool, with_away: bool
) -> Iterator[Column]:
    for at, one in enumerate(comparison.sides):
        if with_expected:
            yield Column((one.letter, "expected"), tuple(row.expected[at] for row in rows))
        head = (one.letter, "measured" if with_expected else "")
        yield Column(head, tuple(row.measured[at] for row in rows))
    for at, other in enumerate(comparison.others if with_away else ()):
        yield Column((f"{other.letter} - {comparison.base.letter}", ""), tuple(row.away[at] for row in rows))


def what_differs(comparison: Comparison, width: int) -> Iterator[Line]:
    """Yield what differs between the plans, a line each."""
    sides = comparison.sides
    room = max(8, (width - NAME_CELLS) // len(sides) - GAP)
    longest = (max(len(values[at] or DASH) for _, values in comparison.plans) for at in range(len(sides)))
    wide = [min(room, max(LEAST_CELLS, cells)) for cells in longest]
    lines = [("what differs", tuple(one.letter for one in sides)), *comparison.plans]
    for at, (name, values) in enumerate(lines):
        spans: list[Span] = [(fit(name, NAME_CELLS), "" if at else "label bold")]
        spans += [
            (" " * GAP + fit(value or DASH, cells), "" if at else "label")
            for value, cells in zip(values, wide, strict=True)
        ]
        yield merge(spans)
