"""The rows of a comparison as text, the same for the terminal and for Markdown: heads, numbers, differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ranktop.budget.terms import BUDGETED
from ranktop.tui.compare.comparison import Comparison
from ranktop.tui.compare.side import PHASES, Sent, Side
from ranktop.tui.compare.spread import Difference, Spread
from ranktop.tui.compare.verdict import NO_SHARE, percent
from ranktop.tui.session.expected import difference
from ranktop.tui.view.text import GIB, Unit, count, human, seconds, short_count, unit_for

DASH: Final = "–"
ABOUT: Final = "≈"
"""Before a difference that is within noise."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and what it means: ``good``, ``bad``, ``dim``, ``bold`` or nothing."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line: a name, and per run (expected, measured) and the difference to the first run."""

    name: str
    expected: tuple[Cell, ...]
    measured: tuple[Cell, ...]
    away: tuple[Cell, ...]
    """One for every run but the first."""
    strong: bool = False


NOTHING: Final = Cell(DASH, "dim")


def memory_unit(comparison: Comparison) -> Unit:
    """Return the unit of all sizes of the memory table."""
    sizes = [size for one in comparison.sides if (size := comparison.needs(one)) is not None]
    sizes += [one.held.held for one in comparison.sides if one.held is not None]
    largest = max(sizes, default=0)
    return Unit("GiB", GIB) if largest >= 2 * GIB else unit_for(largest)


def memory_rows(comparison: Comparison, unit: Unit) -> list[TableRow]:
    """Return a row per category of the fullest rank at its peak, their sum, and what the device needs."""
    sides = comparison.sides
    rows = [_category(comparison, name, unit) for name in BUDGETED]
    rows.append(_held(comparison, unit))
    if comparison.by_peak:
        measured = tuple(_size(comparison.needs(one), unit, "bold") for one in sides)
        away = tuple(_bytes_away(comparison.needs_differ(other), unit) for other in comparison.others)
        rows.append(TableRow("needs", (Cell(""),) * len(sides), measured, away, strong=True))
    rows += [_category(comparison, "cache", unit), *_groups(comparison, unit)]
    return [row for row in rows if any(cell.text not in ("", DASH, "0") for cell in (*row.expected, *row.measured))]


def _category(comparison: Comparison, name: str, unit: Unit) -> TableRow:
    expected, measured = [], []
    for one in comparison.sides:
        held = one.held
        amount = held.expected.get(name) if held is not None else None
        expected.append(_size(amount.bytes if amount is not None else None, unit, "dim"))
        value = getattr(held.memory, name) if held is not None else None
        measured.append(_size(value, unit, "warn" if (difference(value, amount) or 0) > 0 else ""))
    away = tuple(_bytes_away(comparison.category_differs(name, other), unit) for other in comparison.others)
    blank = (Cell(""),) * len(expected)
    return TableRow(name, blank if name == "cache" else tuple(expected), tuple(measured), away)


def _held(comparison: Comparison, unit: Unit) -> TableRow:
    """Without the running peak it is what a device needs."""
    sides = comparison.sides
    last = not comparison.by_peak
    measured = tuple(_size(one.held.held if one.held else None, unit, "bold" if last else "") for one in sides)
    expected = tuple(_size(one.held.expected_sum if one.held else None, unit, "dim") for one in sides)
    away = []
    for other in comparison.others:
        if last:
            away.append(_bytes_away(comparison.needs_differ(other), unit))
        elif comparison.base.held is None or other.held is None:
            away.append(NOTHING)
        else:
            away.append(_bytes_away(Difference(float(other.held.held - comparison.base.held.held), None, 0.0), unit))
    return TableRow("needs" if last else "at the peak", expected, measured, tuple(away), strong=last)


def _groups(comparison: Comparison, unit: Unit) -> list[TableRow]:
    """Return a row per peer group that all runs have, where there are several: the fullest rank of each."""
    sides = [{held.role: held for held in one.groups} for one in comparison.sides]
    if any(len(groups) < 2 for groups in sides):
        return []
    rows = []
    for role in sorted(role for role in sides[0] if all(role in groups for groups in sides)):
        held = [groups[role] for groups in sides]
        away = (Difference(float(one.held - held[0].held), None, max(one.moves, held[0].moves)) for one in held[1:])
        measured = tuple(_size(one.held, unit) for one in held)
        expected = tuple(_size(one.expected_sum, unit, "dim") for one in held)
        rows.append(TableRow(f"  {role}", expected, measured, tuple(_bytes_away(one, unit) for one in away)))
    return rows


def _size(value: int | None, unit: Unit, style: str = "") -> Cell:
    if value is None:
        return NOTHING
    return Cell(_number(value / unit.bytes), style)


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) < 0.005:
        return "<.01" if value > 0 else "-<.01"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _bytes_away(away: Difference | None, unit: Unit) -> Cell:
    if away is None:
        return NOTHING
    if away.away == 0:
        return Cell("0", "dim")
    text = f"{'+' if away.away > 0 else '-'}{_number(abs(away.away) / unit.bytes)}"
    if not away.real:
        return Cell(f"{ABOUT}{text}", "dim")
    return Cell(text, "bad" if away.away > 0 else "good")


TIME_NAMES: Final = (("seconds", "step, s"), *((phase, f"  {phase}") for phase in PHASES))


def time_rows(comparison: Comparison) -> list[TableRow]:
    """Return step time and phases with their spread, tokens a second, and what is sent in a step."""
    sides = comparison.sides
    blank = (Cell(""),) * len(sides)
    rows = []
    for name, head in TIME_NAMES:
        strong = name == "seconds"
        measured = tuple(_time(one.times.get(name), spread=strong) for one in sides)
        away = tuple(_share_away(comparison, name, other, more_is_bad=True) for other in comparison.others)
        rows.append(TableRow(head, blank, measured, away, strong=strong))
    unit = sides[0].token_unit
    measured = tuple(_rate(one.times.get("rate")) for one in sides)
    away = tuple(_share_away(comparison, "rate", other, more_is_bad=False) for other in comparison.others)
    rows.append(TableRow(f"{unit}/s", blank, measured, away, strong=True))
    # By the rules: no counter of the network is read.
    rows.append(_told(comparison, "sent/step (exp.)", lambda sent: sent.bytes, lambda value: human(int(value))))
    rows.append(_told(comparison, "collectives/step", lambda sent: sent.seen, _calls_text))
    return [row for row in rows if any(cell.text not in ("", DASH) for cell in row.measured)]


def loss_rows(comparison: Comparison) -> list[TableRow]:
    """Return the loss at the same step, and each run's last with its step; nothing where no run tells one."""
    if comparison.loss_step is None:
        return []
    blank = (Cell(""),) * len(comparison.sides)
    at = tuple(_loss(one.at) if one is not None else NOTHING for one in comparison.losses)
    away = tuple(_loss_away(comparison, other) for other in comparison.others)
    last = tuple(
        Cell(f"{one.last:.4g} ({count(one.last_step)})") if one is not None else NOTHING for one in comparison.losses
    )
    nothing = (Cell(""),) * len(comparison.others)
    return [
        TableRow(f"at step {count(comparison.loss_step)}", blank, at, away, strong=True),
        TableRow("last (step)", blank, last, nothing),
    ]


def _loss(value: Spread | None) -> Cell:
    return NOTHING if value is None else Cell(f"{value.middle:.4g} ±{value.spread:.2g}", "bold")


def _loss_away(comparison: Comparison, other: Side) -> Cell:
    away = comparison.loss_differs(other)
    if away is None:
        return NOTHING
    text = f"{away.away:+.3g}"
    if not away.real:
        return Cell(f"{ABOUT}{text}", "dim")
    return Cell(text, "bad" if away.away > 0 else "good")


def _time(value: Spread | None, *, spread: bool) -> Cell:
    if value is None:
        return NOTHING
    told = f"{seconds(value.middle)} ±{percent(value.share or 0.0)}" if spread else seconds(value.middle)
    return Cell(told, "bold" if spread else "")


def _rate(value: Spread | None) -> Cell:
    if value is None:
        return NOTHING
    return Cell(count(round(value.middle)) if value.middle >= 100 else f"{value.middle:.3g}", "bold")


def _share_away(comparison: Comparison, name: str, other: Side, *, more_is_bad: bool) -> Cell:
    away = comparison.time_differs(name, other)
    if away is None or away.share is None:
        return NOTHING
    told = percent(away.share)
    text = told if told == NO_SHARE else f"{'+' if away.away > 0 else '-'}{told}"
    if not away.real:
        return Cell(f"{ABOUT}{text}", "dim")
    return Cell(text, "bad" if (away.away > 0) == more_is_bad else "good")


def _told(
    comparison: Comparison, head: str, value: Callable[[Sent], float | None], text: Callable[[float], str]
) -> TableRow:
    values = [value(one.sent) for one in comparison.sides]
    return TableRow(
        head, (Cell(""),) * len(values), tuple(NOTHING if known is None else Cell(text(known)) for known in values),
        tuple(_plain_share(values[0], other) for other in values[1:]),
    )  # fmt: skip


def _calls_text(value: float) -> str:
    return short_count(round(value)) if value >= 10_000 else f"{value:,.1f}".removesuffix(".0")


def _plain_share(base: float | None, value: float | None) -> Cell:
    """A difference that is nobody's gain or loss by itself."""
    if base is None or value is None:
        return NOTHING
    if base == value:
        return Cell("0", "dim")
    if not base:
        return Cell("")
    return Cell(f"{'+' if value > base else '-'}{percent((value - base) / base)}")
