"""Cells to bytes: in which order cells are sent, how the cursor gets to them, and when the pen is changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ranktop.tui.terminal.pens import Pen, Pens

COLUMN: Final = 3
"""Cells by which the beginnings of items of one column differ at most: numbers that change in another digit."""

MUCH: Final = 600
"""Cells from which on it may be cheaper to send them as they stand: half a screen and more."""

NOWHERE: Final = (-1, -1)
"""Where the cursor is when that is not known."""


@dataclass(frozen=True, slots=True)
class Item:
    """Cells of one row that are sent together."""

    y: int
    x: int
    stop: int
    payload: str
    pen: Pen
    blank: bool = False
    """Any pen will do that shows blanks alike."""
    moves: bool = True
    """The cursor stands at ``stop`` afterwards; else it has to be placed anew."""


def in_order(items: list[Item], pens: Pens, width: int, pen: Pen) -> list[Item]:
    """Return the items in a cheap order: pen after pen, column by column; of much the cheapest of three orders.

    ``pen``: what is set before the first one. Most of a frame's bytes are colours and ways, not text.
    """
    if len(items) < 2:
        return items
    groups = _by_pen(items, pens, pen)
    columns = [item for group in groups for item in _in_columns(group)]
    if sum(item.stop - item.x for item in items) < MUCH:
        return columns
    rows = [item for group in groups for item in sorted(group, key=lambda item: (item.y, item.x))]
    return min((items, rows, columns), key=lambda order: len(encode(order, pens, width, pen)[0]))


def _by_pen(items: Iterable[Item], pens: Pens, pen: Pen) -> list[list[Item]]:
    """Return the items pen by pen: next comes always the pen that takes the fewest bytes."""
    groups: dict[Pen, list[Item]] = {}
    blanks: dict[Pen, list[Item]] = {}
    blanks_alone: dict[Pen, list[Item]] = {}
    for item in items:
        (blanks if item.blank else groups).setdefault(item.pen, []).append(item)
    for ground, some in blanks.items():
        # Blanks go with a pen that shows them alike, where there is one.
        home = next((one for one in groups if pens.over(one, ground) is one), None)
        (groups if home is not None else blanks_alone).setdefault(home or ground, []).extend(some)
    ordered: list[list[Item]] = []
    while groups or blanks_alone:
        ways = [(len(pens.turn(pen, one)), one, groups) for one in groups]
        ways += [(len(pens.turn(pen, pens.over(pen, one))), one, blanks_alone) for one in blanks_alone]
        _, nearest, where = min(ways, key=lambda way: way[0])
        ordered.append(where.pop(nearest))
        pen = nearest if where is groups else pens.over(pen, nearest)
    return ordered


def _in_columns(items: list[Item]) -> list[Item]:
    """Return the items column by column, each from the top down: a line feed and a few backspaces lead to the next."""
    columns: list[list[Item]] = []
    for item in sorted(items, key=lambda item: item.x):
        if not columns or item.x > columns[-1][0].x + COLUMN:
            columns.append([])
        columns[-1].append(item)
    return [item for column in columns for item in sorted(column, key=lambda item: (item.y, item.x))]


def encode(items: Iterable[Item], pens: Pens, width: int, pen: Pen) -> tuple[str, Pen, tuple[int, int]]:
    """Return the control sequences and text of some items, sent while ``pen`` is set, and the pen and the cursor's
    (row, column) after them."""
    out: list[str] = []
    at = NOWHERE
    for item in items:
        out.append(move(at, item.y, item.x))
        wanted = pens.over(pen, item.pen) if item.blank else item.pen
        out.append(pens.turn(pen, wanted))
        out.append(item.payload)
        pen = wanted
        if item.moves:
            # At the right edge it hangs: terminals differ in what comes next.
            at = (item.y, item.stop) if item.stop < width else NOWHERE
        else:
            at = (item.y, item.x) if item.payload[:1] == "\x1b" else NOWHERE
    return "".join(out), pen, at


def move(at: tuple[int, int], y: int, x: int) -> str:
    """Return the shortest way to a cell. A line feed moves straight down: the driver has output sent as it is."""
    there = f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H" if y else "\x1b[H"
    down = y - at[0]
    if at[1] < 0 or not 0 <= down <= 4:
        return there
    along = x - at[1]
    if along >= 0:
        aside = "" if not along else f"\x1b[{along}C" if along > 1 else "\x1b[C"
    else:
        aside = "\b" * -along if along >= -4 else f"\x1b[{-along}D"
    if x == 0 and along:
        aside = "\r"
    return min("\n" * down + aside, there, key=len)
