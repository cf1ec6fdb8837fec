"""The comparison as text: one row per strategy, as wide as the terminal allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ranktop.budget.planning import bands
from ranktop.budget.planning.answer import Answer, Row
from ranktop.budget.planning.sizes import DASH, Unit, fold, seconds
from ranktop.budget.terms import BUDGETED

MOMENT_WORDS: Final = {
    "load": "load", "step_start": "step start", "forward": "forward", "forward_end": "forward end",
    "backward_start": "backward start", "backward": "backward", "backward_end": "backward end",
    "optimizer_step": "optimizer step", "step_end": "step end", "checkpoint_save": "checkpoint save",
}  # fmt: skip
"""Moments as people say them."""

Cell = tuple[str, str]
"""Text and style: ``good``, ``bad``, ``strong``, ``dim`` or nothing."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: how it is headed and what stands in it."""

    short: str
    long: str
    cell: Callable[[Row, Unit], Cell]
    left: bool = False


def _category(name: str) -> Callable[[Row, Unit], Cell]:
    def cell(row: Row, unit: Unit) -> Cell:
        amount = row.amounts.get(name)
        return unit.write(amount.bytes if amount else None), ""

    return cell


def _total(row: Row, unit: Unit) -> Cell:
    if row.total is not None:
        return unit.write(row.total), "strong"
    return f"≥{unit.write(row.at_least)}", "strong"


def _host(row: Row, unit: Unit) -> Cell:
    rank = row.projection.rank
    return unit.write(rank.budget.host.bytes if rank else None), ""


def _comm(row: Row, unit: Unit) -> Cell:
    return unit.write(row.projection.sent), ""


def _time(row: Row, unit: Unit) -> Cell:
    return (seconds(row.seconds) if row.seconds is not None else DASH), ""


def _fits(row: Row, unit: Unit) -> Cell:
    if row.fits is None:
        return DASH, ""
    if row.fits:
        return "yes", "good"
    return (unit.write(row.projection.headroom) if row.projection.headroom is not None else "no"), "bad"


def _fits_wide(row: Row, unit: Unit) -> Cell:
    text, style = _fits(row, unit)
    headroom = row.projection.headroom
    return (f"yes +{unit.write(headroom)}" if row.fits and headroom is not None else text), style


def _batch(row: Row, unit: Unit) -> Cell:
    most = row.projection.max_micro_batch
    if most is None:
        return DASH, ""
    return (str(most) if most < 10_000 else f"{most // 1000}k"), ""


def _band(row: Row, unit: Unit) -> Cell:
    return bands.of_sum(row.amounts).short() if row.total is not None else DASH, "dim"


def _peak(row: Row, unit: Unit) -> Cell:
    return MOMENT_WORDS.get(row.moment or "", DASH) if row.total is not None else DASH, ""


_SHORT: Final = dict(zip(BUDGETED, ("param", "grad", "optim", "activ", "buffer", "runtime"), strict=True))


def columns(wide: bool, times: bool) -> list[Column]:
    """Return the columns behind the strategy's name."""
    found = [Column(_SHORT[name], name, _category(name)) for name in BUDGETED]
    found.append(Column("total", "total", _total))
    if wide:
        found.append(Column("±", "±", _band))
    found += [Column("host", "host RAM", _host), Column("comm", "comm/step", _comm)]
    if wide and times:
        found.append(Column("send", "seconds ≥", _time))
    found.append(Column("fits", "fits", _fits_wide if wide else _fits))
    found.append(Column("batch", "max batch", _batch))
    if wide:
        found.append(Column("peak", "peak", _peak, left=True))
    return found


@dataclass(frozen=True, slots=True)
class Form:
    """How much of the table is shown."""

    wide: bool
    """With columns for the error, the peak and, given a link, the seconds."""
    long: bool
    """Heads in full."""
    gap: int
    """Blanks between columns."""


FORMS: Final = (
    Form(True, True, 2), Form(True, True, 1), Form(True, False, 2), Form(True, False, 1), Form(False, False, 2),
    Form(False, False, 1),
)  # fmt: skip
"""The richest first; the last one takes 80 columns."""


def lines(answer: Answer, width: int) -> tuple[Form, list[list[Cell]]]:
    """Return the table's lines as styled pieces, in the richest form that fits into ``width``, and that form."""
    times = answer.request.run.link is not None
    names = max((len(row.name) for row in answer.rows), default=0) + 1
    form, made = FORMS[-1], [[("", "")]]
    for form in FORMS:
        made = _laid(answer, columns(form.wide, times), names, form)
        if sum(len(text) for text, _ in made[0]) <= width:
            break
    found = [made[0]]
    for row, line in zip(answer.rows, made[1:], strict=True):
        found += _refused(row, line[0], names, width) if row.projection.refused else [line]
    return form, found


def _laid(answer: Answer, shown: list[Column], names: int, form: Form) -> list[list[Cell]]:
    """Return head and rows, every cell padded to its column."""
    gap = form.gap
    heads = [column.long if form.long else column.short for column in shown]
    empty = [("", "")] * len(shown)
    table = [
        empty if row.projection.refused else [column.cell(row, answer.unit) for column in shown] for row in answer.rows
    ]
    widths = [max(len(head), *(len(line[i][0]) for line in table)) for i, head in enumerate(heads)]
    made: list[list[Cell]] = [[(" strategy".ljust(names), "dim")]]
    for column, head, size in zip(shown, heads, widths, strict=True):
        made[0].append((" " * gap + (head.ljust(size) if column.left else head.rjust(size)), "dim"))
    for row, cells in zip(answer.rows, table, strict=True):
        line: list[Cell] = [_name(answer, row, names)]
        for column, (text, style), size in zip(shown, cells, widths, strict=True):
            line.append((" " * gap + (text.ljust(size) if column.left else text.rjust(size)), style))
        made.append(line)
    return made


def mark(answer: Answer, row: Row) -> str:
    """Return the sign before a strategy's name: the best, the one that the given config asks for, or nothing."""
    return "*" if row.name == answer.best else ">" if row.name == answer.request.own else " "


def _name(answer: Answer, row: Row, names: int) -> Cell:
    style = "best" if row.name == answer.best else "dim" if row.projection.refused else ""
    return f"{mark(answer, row)}{row.name}".ljust(names), style


def _refused(row: Row, name: Cell, names: int, width: int) -> Iterator[list[Cell]]:
    """Yield a row that says why there are no numbers."""
    room = max(20, width - names - 2)
    first, *rest = fold(f"not possible: {row.projection.refused}", room)
    yield [name, (f"  {first}", "dim")]
    for more in rest:
        yield [(" " * (names + 2) + more, "dim")]
