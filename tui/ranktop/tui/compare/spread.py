"""A median and how far the values lie from it: what a run's steps say, and when two runs differ beyond noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ranktop.tui.session.findings.robust import NORMAL

LEAST_SHARE: Final = 0.02
"""Share by which the medians of the same job run twice differ for no reason that the steps show."""

ENOUGH: Final = 100
"""Steps from which that share holds; of fewer a spell of slow ones may be all that was seen, and it grows."""

ERRORS: Final = 3.0
"""... and by so many standard errors of both."""

OF_A_MEDIAN: Final = math.sqrt(math.pi / 2)
"""Standard error of a median in those of a mean, for a normal distribution."""

BLOCKS: Final = 10
BLOCK_STEPS: Final = 4
"""Parts of a run that are looked at apart, and steps of the smallest one: a run that drifts shows it only there."""

ALIKE: Final = 30
"""Steps in a row that may be slow or fast together: a run tells of its usual step as if it had so many times fewer."""

FEW: Final = 10
"""Steps below which nothing is said of a difference."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of one kind, one a step."""

    middle: float
    """Median."""
    spread: float
    """Robust standard deviation of the single steps."""
    error: float
    """Standard error of the median, drift included."""
    count: int

    @property
    def share(self) -> float | None:
        """Spread as a share of the median."""
        return self.spread / self.middle if self.middle else None


def spread(values: Sequence[float]) -> Spread | None:
    """Return the spread of values in the order of their steps; None for none."""
    if not values:
        return None
    middle = median(values)
    deviation = NORMAL * median(abs(value - middle) for value in values)
    error = OF_A_MEDIAN * deviation / math.sqrt(len(values))
    return Spread(middle, deviation, max(error, _drift(values)), len(values))


def _drift(values: Sequence[float]) -> float:
    """Return the standard error of the median as the medians of parts of the run show it."""
    blocks = min(BLOCKS, len(values) // BLOCK_STEPS)
    if blocks < 4:
        return 0.0
    count = len(values)
    middles = [median(values[count * at // blocks : count * (at + 1) // blocks]) for at in range(blocks)]
    mean = sum(middles) / blocks
    return math.sqrt(sum((middle - mean) ** 2 for middle in middles) / (blocks - 1) / blocks)


@dataclass(frozen=True, slots=True)
class Difference:
    """One number of a run beside that of the run it is compared with."""

    away: float
    """``value - base``."""
    share: float | None
    """... as a share of the base; None when that is 0."""
    noise: float
    """Up to which it says nothing."""

    @property
    def real(self) -> bool:
        """Whether it is beyond noise."""
        return abs(self.away) > self.noise


def differ(base: Spread | None, value: Spread | None) -> Difference | None:
    """Compare two medians; None where one is missing or has too few steps to say anything."""
    if base is None or value is None or min(base.count, value.count) < FEW:
        return None
    away = value.middle - base.middle
    correlated = math.hypot(*(one.spread * math.sqrt(ALIKE / max(ALIKE, one.count)) for one in (base, value)))
    least = LEAST_SHARE * math.sqrt(max(1.0, ENOUGH / min(base.count, value.count)))
    noise = max(least * abs(base.middle), ERRORS * math.hypot(base.error, value.error), correlated)
    return Difference(away, away / base.middle if base.middle else None, noise)
