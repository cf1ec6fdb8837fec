"""A rank's own past: whether its steps have become slower, and since when."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ranktop.tui.session.findings.pace import SPREAD_OF_QUARTILES, WARM_UP, median
from ranktop.tui.session.rings import Ring

BLOCKS: Final = 150
"""Into at most so many blocks of points the past is divided, each with its median."""

FEWEST_BLOCKS: Final = 10
"""On each side of a change."""

RATIO: Final = 1.04
"""After / before, from which it is a change at all."""

SPREADS: Final = 8.0
"""Standard errors by which both sides must differ: the best of all cuts always looks like one."""


@dataclass(frozen=True, slots=True)
class Change:
    """The moment at which a rank's step time changed most."""

    at: float
    """Seconds on the session's clock."""
    step: int
    before: float
    """Median step time until then, seconds."""
    after: float
    """... and since."""
    points: int
    """Step times seen since."""
    activations: float | None
    """Activations since / until then; None when unknown."""

    @property
    def ratio(self) -> float:
        """After / before."""
        return self.after / self.before if self.before > 0 else 1.0


def slower_since(history: Ring | None) -> Change | None:
    """Return since when steps take longer than before; None when they do not, or too little is known."""
    if history is None:
        return None
    columns = (history.column(name) for name in ("t", "step", "step_s", "activations"))
    known = [row for row in zip(*columns, strict=True) if row[2] == row[2] and row[2] > 0 and row[1] > WARM_UP]
    # While a job stands or pauses each second repeats the last step: one step is one step time.
    rows = [row for before, row in zip([None, *known], known, strict=False) if before is None or row[1] != before[1]]
    size = max(1, len(rows) // BLOCKS)
    blocks = [rows[index : index + size] for index in range(0, len(rows) - size + 1, size)]
    if len(blocks) < 2 * FEWEST_BLOCKS:
        return None
    values = [median([row[2] for row in block]) for block in blocks]
    cut = _cut(values)
    before, after = values[:cut], values[cut:]
    low, high = median(before), median(after)
    rest = [value - low for value in before] + [value - high for value in after]
    error = _spread(rest) * math.sqrt(1 / len(before) + 1 / len(after))
    if high < RATIO * low or high - low < SPREADS * error:
        return None
    first = blocks[cut][0]
    return Change(first[0], int(first[1]), low, high, len(rows) - cut * size, _growth(rows, cut * size))


def _cut(values: list[float]) -> int:
    """Return where the means of both sides differ most, each side weighed by its length; outliers are clipped."""
    ordered = sorted(values)
    lowest, highest = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    clipped = [min(max(value, lowest), highest) for value in values]
    total, count = sum(clipped), len(clipped)
    best, where, left = -1.0, FEWEST_BLOCKS, 0.0
    for index, value in enumerate(clipped):
        if FEWEST_BLOCKS <= index <= count - FEWEST_BLOCKS:
            apart = (total - left) / (count - index) - left / index
            weight = apart * (index * (count - index)) ** 0.5
            if weight > best:
                best, where = weight, index
        left += value
    return where


def _spread(values: list[float]) -> float:
    ordered = sorted(values)
    count = len(ordered)
    return SPREAD_OF_QUARTILES * (ordered[-1 - count // 4] - ordered[count // 4])


def _growth(rows: list[tuple[float, ...]], cut: int) -> float | None:
    before = [row[3] for row in rows[:cut] if row[3] == row[3]]
    after = [row[3] for row in rows[cut:] if row[3] == row[3]]
    middle = median(before)
    return median(after) / middle if before and after and middle > 0 else None
