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
LEVEL: Final = 0.5
"""Squared distances that are left, as a share, where the values are level at first and rise only then."""
JUMP: Final = 0.5
"""Share of what rises since then from which on one change alone is a jump, and no beginning."""
FEWEST: Final = 4
"""Points before and after such a beginning."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A steady rise over steps."""

    slope: float
    """Per step."""
    growth: float
    """From the first to the last step."""
    first: int
    """First and last step of the rise: what was level before does not belong to it."""
    last: int
    since: float
    """Time of the first."""
    at: tuple[int, ...]
    """Steps of all points, the level ones before too."""
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
    begin = beginning(steps, values)
    slope = theil_sen(steps[begin:], values[begin:]) if begin else slope
    # The slope leaves single jumps out; what was kept in fact is less where it has come to an end.
    growth = max(0.0, min(slope * (steps[-1] - steps[begin]), values[-1] - values[begin]))
    return Trend(slope, growth, steps[begin], steps[-1], points[begin][2], tuple(steps), tuple(values))


def beginning(steps: Sequence[int], values: Sequence[float]) -> int:
    """Return the index of the point at which a rise begins: the first unless what is before is clearly level."""
    whole = _left_by(steps, values, 0)
    places = range(FEWEST, len(values) - FEWEST)
    best = min(places, key=lambda place: _left_by(steps, values, place), default=0)
    if not best or _left_by(steps, values, best) >= LEVEL * whole:
        return 0
    jump = max(abs(after - before) for before, after in pairwise(values[best:]))
    return best if jump <= JUMP * (values[-1] - values[best]) else 0


def _left_by(steps: Sequence[int], values: Sequence[float], place: int) -> float:
    """Return the sum of the squared distances to the best line that is level up to a point and rises from there."""
    over = [max(0, step - steps[place]) for step in steps]
    count = len(over)
    at, middle = sum(over) / count, sum(values) / count
    spread = sum((one - at) ** 2 for one in over)
    slope = sum((one - at) * (value - middle) for one, value in zip(over, values, strict=True)) / spread
    return sum((value - middle - slope * (one - at)) ** 2 for one, value in zip(over, values, strict=True))


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
