"""What each run is, in two lines, and its bar: the upper half expected, the lower half measured, on one scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ranktop.budget.terms import BUDGETED
from ranktop.budget.words import strategy_words
from ranktop.tui.compare.comparison import Comparison
from ranktop.tui.compare.side import Side
from ranktop.tui.view.bar import LETTERS, cells, half_blocks, letters
from ranktop.tui.view.text import Glyphs, Line, Span, Unit, duration, fit, merge, plain, size

INDENT = "   "


@dataclass(frozen=True, slots=True)
class Look:
    """How the page is drawn."""

    width: int
    colour: bool
    glyphs: Glyphs
    now: float
    """Wall clock, seconds since the epoch."""


def bars(comparison: Comparison, unit: Unit, look: Look) -> Iterator[Line]:
    """Yield the lines of all runs and the key of the colours."""
    scale = max((_extent(one) for one in comparison.sides), default=0)
    numbers = [_of_device(comparison, one, unit) for one in comparison.sides]
    room = max(10, look.width - len(INDENT) - 1 - max(map(len, numbers)))
    for one, number in zip(comparison.sides, numbers, strict=True):
        yield _head(one, look)
        plan = one.card.plan if one.card is not None else None
        strategy = plain(strategy_words(plan)) if plan is not None else "no model seen"
        yield ((INDENT + fit(strategy, look.width - len(INDENT)).rstrip(), "dim"),)
        if one.held is not None and scale:
            yield merge([(INDENT, ""), *_bar(one, scale, room, look), (f" {number}", "bold")])
    if scale:
        yield _key(look)


def _bar(one: Side, scale: int, room: int, look: Look) -> Line:
    assert one.held is not None
    expected = {name: amount.bytes for name, amount in one.held.expected.items()}
    measured = {name: getattr(one.held.memory, name) for name in BUDGETED}
    upper, lower = (cells(side, scale, room, BUDGETED) for side in (expected, measured))
    draw_blocks = look.colour and not look.glyphs.ascii
    return half_blocks(upper, lower, False) if draw_blocks else letters(upper, lower, False, look.glyphs)


def _key(look: Look) -> Line:
    """Return the line that says which colour, or letter, is which category."""
    spans: list[Span] = [(INDENT, "")]
    for name in BUDGETED:
        letter = LETTERS[name]
        swatch = look.glyphs.swatch if look.colour else letter
        spans += [(swatch, f"key:{letter}"), (f" {name}  ", "dim")]
    told = "above: expected, below: measured" if look.colour and not look.glyphs.ascii else "capital: as expected"
    return merge([*spans, (told, "dim")] if sum(len(text) for text, _ in spans) + len(told) <= look.width else spans)


def _extent(one: Side) -> int:
    if one.held is None:
        return 0
    return max(one.held.held, sum(amount.bytes or 0 for amount in one.held.expected.values()))


def _of_device(comparison: Comparison, one: Side, unit: Unit) -> str:
    needs = comparison.needs(one)
    total = one.card.device.total if one.card is not None and one.device == "GPU" else None
    if needs is None:
        return ""
    return f"{size(needs, unit)} of {size(total, unit)} {unit.name}" if total else f"{size(needs, unit)} {unit.name}"


def _head(one: Side, look: Look) -> Line:
    left = f"{one.letter}  {plain(one.run.job.name)} {plain(one.run.job.id)}"
    right = _when(one, look.now)
    room = max(0, look.width - len(right) - 2)
    return merge([(fit(left, room), "bold"), ("  ", ""), (right, "dim")])


def _when(one: Side, now: float) -> str:
    run = one.run
    if run.state == "ended":
        return "ended"
    if run.state != "past":
        return f"{run.state}, so far"
    told = f"recorded, ended {duration(now - run.ended)} ago" if run.ended is not None else "recorded"
    return told if run.at_end in ("ended", "") else f"{told} (cut off while {run.at_end})"
