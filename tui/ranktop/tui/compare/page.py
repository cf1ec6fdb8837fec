"""A comparison as a page for a terminal: the verdict, a bar per run, the tables, what differs, and the small print."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from ranktop.budget.planning.sizes import fold
from ranktop.tui.compare.bars import Look, bars
from ranktop.tui.compare.cells import loss_rows, memory_rows, memory_unit, time_rows
from ranktop.tui.compare.comparison import Comparison
from ranktop.tui.compare.grid import table, what_differs
from ranktop.tui.compare.small_print import findings, notes
from ranktop.tui.compare.verdict import verdicts
from ranktop.tui.view.text import ASCII, UNICODE, Line, in_ascii

NARROWEST: Final = 60
WIDEST: Final = 120


def page(
    comparison: Comparison, width: int, *, colour: bool, ascii_only: bool = False, now: float | None = None,
    height: int | None = None,
) -> list[Line]:  # fmt: skip
    """Return the lines of the page, none wider than ``width`` unless a table of many runs must be.

    ``now``: wall clock, seconds since the epoch. ``height``: lines of the terminal; a page that is longer ends with the
    verdict, too, for its beginning is no longer in sight.
    """
    width = max(NARROWEST, min(WIDEST, width))
    look = Look(width, colour, ASCII if ascii_only else UNICODE, time.time() if now is None else now)
    unit = memory_unit(comparison)
    lines = [*_verdicts(comparison, width), (), *bars(comparison, unit, look)]
    memory = memory_rows(comparison, unit)
    if memory:
        lines += [(), *table(comparison, f"memory, {unit.name}", memory, width, expected=True)]
    times = time_rows(comparison)
    if times:
        lines += [(), *table(comparison, "time", times, width, expected=False)]
    losses = loss_rows(comparison)
    if losses:
        lines += [(), *table(comparison, "loss", losses, width, expected=False)]
    if comparison.plans:
        lines += [(), *what_differs(comparison, width)]
    told = findings(comparison)
    if told:
        lines += [(), (("findings of some of them", "label bold"),)]
        lines += [((line, style),) for text, style in told for line in fold(text, width, "    ")]
    lines.append(())
    lines += [((line, "dim"),) for text in notes(comparison) for line in fold(text, width, "  ")]
    if height is not None and len(lines) >= height:
        lines += [(), *_verdicts(comparison, width)]
    return [in_ascii(line) for line in lines] if ascii_only else lines


def _verdicts(comparison: Comparison, width: int) -> Iterator[Line]:
    for verdict in verdicts(comparison):
        for line in fold(verdict.sentence, width, "  "):
            yield ((line, "bold"),)
        for because in verdict.because:
            for line in fold(because, width - 2, "  "):
                yield ((f"  {line}", "dim"),)
    for caveat in comparison.caveats:
        if caveat.hurts != "all":
            for line in fold(f"! {caveat.sentence}", width, "  "):
                yield ((line, "warn"),)


def as_text(line: Line, *, colour: bool) -> str:
    """Return a line as it is written, with colours or without."""
    if not colour:
        return "".join(text for text, _ in line).rstrip()
    from ranktop.tui.printing import printed

    return printed(line)
