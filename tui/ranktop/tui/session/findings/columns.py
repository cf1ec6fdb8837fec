"""One category at one moment, over the ranks of a group: what of it is a rank's own, and how far ranks are apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from ranktop.tui.session.findings.groups import Group
from ranktop.tui.session.findings.robust import NORMAL
from ranktop.tui.session.findings.windows import resting_moment
from ranktop.tui.session.footprints import Footprint
from ranktop.tui.session.rank import RankView

Windows = Mapping[int, list[Footprint]]
"""Rank -> its last settled footprints, oldest first; never an empty list."""

Value = Callable[[int, Footprint], float | None]
"""Bytes of a rank's footprint, without what is known to differ."""

OTHER_TOKENS: Final = 1.02
"""Ratio of tokens from which on lengths differ, so that activations follow them."""

STEEPEST: Final = 2.0
"""Most that activations grow per token, in multiples of the usual bytes per token: more is no effect of the length."""

_PAIRS: Final = 400


@dataclass(frozen=True, slots=True)
class Column:
    """One category at one moment."""

    moment: str
    category: str
    middles: Mapping[int, float]
    """Rank -> the median of its window."""
    middle: float
    spread: float
    """Robust standard deviation of the middles: over the ranks, or over the steps of a rank where that is more."""
    value: Value


def compared_moments(windows: Windows, most: int = 3) -> list[str]:
    """Return the moments at which ranks peak, the commonest first, and the one at which they rest."""
    peaks = Counter(window[-1].moment for window in windows.values())
    rests = Counter(name for window in windows.values() if (name := resting_moment(window[-1])) is not None)
    found = [name for name, _ in peaks.most_common(most)]
    return found + [name for name, _ in rests.most_common(1) if name not in found]


def column(windows: Windows, moment: str, category: str, value: Value, others: int | None = None) -> Column | None:
    """Return the column of the ranks that know it; None for less than two.

    ``others``: this rank does not count for the middle (of two ranks there is none).
    """
    middles: dict[int, float] = {}
    noises: list[float] = []
    for rank, window in windows.items():
        values = [one for step in window if (one := value(rank, step)) is not None]
        if values:
            middles[rank] = centre = values[0] if len(values) == 1 else median(values)
            if len(values) > 2:
                noises.append(median(abs(one - centre) for one in values))
    if len(middles) < 2:
        return None
    usual = [one for rank, one in middles.items() if rank != others]
    middle = median(usual)
    spread = median([abs(one - middle) for one in usual]) if len(usual) > 3 else 0.0
    return Column(moment, category, middles, middle, NORMAL * max(spread, median(noises) if noises else 0.0), value)


def plain(moment: str, category: str) -> Value:
    """Return the bytes as they were measured."""

    def value(rank: int, step: Footprint) -> float | None:
        memory = step.moments.get(moment)
        found: int | None = None if memory is None else getattr(memory, category)
        return found

    return value


def beyond_expected(group: Group, moment: str, category: str) -> tuple[Value, dict[int, int]] | None:
    """Return the bytes beyond what each rank's budget expects, and that; None where a rank of the group has none."""
    base: dict[int, int] = {}
    for view in group.members:
        amount = view.budget.at(moment).get(category) if view.budget is not None else None
        if amount is None or amount.bytes is None or amount.within is None:
            return None
        base[view.rank] = amount.bytes
    measured = plain(moment, category)

    def value(rank: int, step: Footprint) -> float | None:
        found = measured(rank, step)
        return None if found is None else found - base[rank]

    return value, base


def by_tokens(windows: Windows, moment: str, category: str = "activations") -> Value | None:
    """Return the bytes as they would be with the usual number of tokens; None where lengths do not differ.

    Bytes over tokens is a straight line well enough for the lengths of one job (eager attention bends it): its slope
    is the median over pairs of steps with different lengths, within what a length can do.
    """
    points = [
        (step.tokens, size)
        for window in windows.values()
        for step in window
        if step.tokens and (memory := step.moments.get(moment)) and (size := getattr(memory, category)) is not None
    ]
    if len(points) < 2:
        return None
    tokens = [one for one, _ in points]
    if max(tokens) < OTHER_TOKENS * min(tokens):
        return None
    usual, held = median(tokens), median(size for _, size in points)
    slope = min(max(0.0, _slope(points)), STEEPEST * held / usual)
    measured = plain(moment, category)

    def value(rank: int, step: Footprint) -> float | None:
        found = measured(rank, step)
        return None if found is None or not step.tokens else found - slope * (step.tokens - usual)

    return value


def _slope(points: list[tuple[int, int]]) -> float:
    """Bytes per token: the median over pairs, each point with one some way further on."""
    slopes: list[float] = []
    count = len(points)
    for shift in range(1, count):
        for at in range(count - shift):
            (one, held), (other, holds) = points[at], points[at + shift]
            if abs(one - other) > (OTHER_TOKENS - 1) * one:
                slopes.append((holds - held) / (other - one))
        if len(slopes) >= _PAIRS:
            break
    return median(slopes) if slopes else 0.0


def expected_bytes(view: RankView, moment: str, category: str) -> int | None:
    """Return what the budget expects of a category, None where it does not know."""
    amount = view.budget.at(moment).get(category) if view.budget is not None else None
    return None if amount is None else amount.bytes
