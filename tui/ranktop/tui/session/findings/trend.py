"""Whether values rise steadily: a slope that single points do not move, and a rise in every part of the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

STEADY: Final = 0.2
"""Share of the whole rise that each half of it must have at least."""
MONOTONE: Final = 0.8
"""Share of the changes from point to point, by bytes, that are rises."""
NOISE: Final = 0.1
"""Largest median distance of the points from the line, as a share of the rise."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A steady rise over steps."""

    slope: float
    """Per step."""
    growth: float
    """Over the window, by the slope."""
    first: int
    """First and last step of the window."""
    last: int
    since: float
    """Time of the first."""
    at: tuple[int, ...]
    values: tuple[float, ...]


def trend(points: Sequence[tuple[int, float, float]], floor: float) -> Trend | None:
    """Return the rise of (step, value, time) points when it reaches ``floor`` and is steady, else None."""
    if len(points) < 6:
        return None
    steps, values = [step for step, _, _ in points], [value for _, value, _ in points]
    if values[-1] - values[0] < 0.5 * floor or not _rises_throughout(values):
        return None
    slope = theil_sen(steps, values)
    growth = slope * (steps[-1] - steps[0])
    if growth < floor or not _monotone(values):
        return None
    middle = median(value - slope * step for step, value in zip(steps, values, strict=True))
    off = median(abs(value - slope * step - middle) for step, value in zip(steps, values, strict=True))
    if off > NOISE * growth:
        return None
    return Trend(slope, growth, steps[0], steps[-1], points[0][2], tuple(steps), tuple(values))


def _rises_throughout(values: Sequence[float]) -> bool:
    """Tell whether the medians of the thirds rise evenly, and the last third rises within itself."""
    third = len(values) // 3
    early, middle, late = median(values[:third]), median(values[third:-third]), median(values[-third:])
    rise = late - early
    if rise <= 0 or min(middle - early, late - middle) < STEADY * rise:
        return False
    half = max(1, third // 2)
    return median(values[-half:]) > median(values[-third : -third + half])


def _monotone(values: Sequence[float]) -> bool:
    changes = [after - before for before, after in pairwise(values)]
    up = sum(change for change in changes if change > 0)
    return up >= MONOTONE * sum(abs(change) for change in changes)


def theil_sen(steps: Sequence[int], values: Sequence[float]) -> float:
    """Return the median slope over all pairs of points (at most some thousands); 0 without a pair."""
    slopes = [
        (values[other] - values[one]) / (steps[other] - steps[one])
        for one in range(len(steps))
        for other in range(one + 1, len(steps))
        if steps[other] > steps[one]
    ]
    return median(slopes) if slopes else 0.0
