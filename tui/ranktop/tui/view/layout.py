"""How the rows of the terminal are shared out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.tui.view.detail import CONTENT_ROWS
from ranktop.tui.view.findings import SMALL, STRIP_ROWS, TALL

MIN_LIST: Final = 4
"""Ranks that stay visible beside the detail panel."""


@dataclass(frozen=True, slots=True)
class Heights:
    """Rows of each part; zero for a part that is left out."""

    header: int = 0
    heading: int = 0
    ranks: int = 0
    legend: int = 0
    findings: int = 0
    detail: int = 0
    footer: int = 0
    progress: int = 0
    """Of the findings' rows: one that tells how the training goes."""


def heights(
    total: int, ranks: int, detail: bool, findings: int = 0, *, keep_legend: bool = True, progress: bool = False
) -> Heights:
    """Share out ``total`` rows; the parts add up to it. Small screens lose legend, hints, titles in this order.

    ``findings``: how many there are to be told. On a screen that is not tall they take the legend's row where the
    detail panel names the colours as well, unless it is to be kept. ``progress``: there is a line about loss and
    learning rate to be told; it takes the legend's row in the same way, or one that nothing else needs.
    """
    if total <= 0:
        return Heights()
    header = 1
    heading = 1 if total >= 3 else 0
    footer = 1 if total >= 5 else 0
    legend = 1 if total >= 8 else 0
    told = 0 if total < SMALL else min(findings, 1 if total < TALL else STRIP_ROWS)
    rest = total - header - heading - footer - legend - told
    wanted = max(1, ranks)
    line = 0
    if not detail:
        if progress and total >= SMALL and rest > wanted:
            rest, line = rest - 1, 1
        return Heights(header, heading, rest, legend, told + line, 0, footer, line)
    floor = min(wanted, MIN_LIST)
    if told and total < TALL and not keep_legend and rest + legend >= CONTENT_ROWS + floor:
        rest, legend = rest + legend, 0
    if progress and total >= SMALL:
        spare = rest > wanted + CONTENT_ROWS or (total >= TALL and rest > CONTENT_ROWS + floor)
        if spare:
            rest, line = rest - 1, 1
        elif legend and not keep_legend and rest >= CONTENT_ROWS + floor:
            legend, line = 0, 1
    panel = rest - wanted
    if panel < CONTENT_ROWS:
        panel = min(CONTENT_ROWS, rest - floor)
    if panel < 3:
        panel = 0
    return Heights(header, heading, rest - panel, legend, told + line, panel, footer, line)


def scrolled(top: int, selected: int | None, height: int, rows: int) -> int:
    """Return the first row to show so that the selected one is in sight and no room is wasted."""
    if height <= 0:
        return 0
    if selected is not None:
        if selected < top:
            top = selected
        elif selected >= top + height:
            top = selected - height + 1
    return max(0, min(top, rows - height))
