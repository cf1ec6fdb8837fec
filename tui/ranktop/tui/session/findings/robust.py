"""Who is far from the middle: medians and median absolute deviations, which a single outlier does not move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

NORMAL: Final = 1.4826
"""Standard deviation of a normal distribution in median absolute deviations (1 / 0.6745)."""


@dataclass(frozen=True, slots=True)
class Score:
    """One value beside those of its peers."""

    value: float
    middle: float
    """Median of all."""
    spread: float
    """Robust standard deviation of all: ``NORMAL`` x the median absolute deviation."""

    @property
    def away(self) -> float:
        """``value - middle``."""
        return self.value - self.middle

    @property
    def share(self) -> float | None:
        """Deviation as a share of the middle; None when that is zero."""
        return self.away / self.middle if self.middle else None

    @property
    def spreads(self) -> float:
        """Deviation in spreads; infinite where the others are all alike."""
        if self.away == 0:
            return 0.0
        return self.away / self.spread if self.spread else float("inf") * (1 if self.away > 0 else -1)


def scores(values: Mapping[int, float]) -> dict[int, Score]:
    """Return a score for each rank; empty for less than two."""
    if len(values) < 2:
        return {}
    middle = median(values.values())
    spread = NORMAL * median(abs(value - middle) for value in values.values())
    return {rank: Score(value, middle, spread) for rank, value in values.items()}
