"""One category at one moment, over the ranks of a group: what of it is a rank's own, and how far ranks are apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Final

from ranktop.budget.terms import STATES
from ranktop.tui.session.findings.groups import Group
from ranktop.tui.session.findings.robust import NORMAL
from ranktop.tui.session.findings.windows import resting_moment
from ranktop.tui.session.footprints import Footprint
from ranktop.tui.session.rank_view import RankView

Windows = Mapping[int, list[Footprint]]
"""Rank -> its last settled footprints, oldest first; never an empty list."""

Value = Callable[[int, Footprint], float | None]
"""Bytes of a rank's footprint, without what is known to differ."""

OTHER_TOKENS: Final = 1.02
"""Ratio of tokens from which on lengths differ, so that activations follow them."""

STEEPEST: Final = 1.25
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
    # Where only some ranks have more than one step, the spread over the ranks holds that over the steps.
    noise = median(noises) if 2 * len(noises) >= len(middles) else 0.0
    return Column(moment, category, middles, middle, NORMAL * max(spread, noise), value)


def plain(moment: str, category: str) -> Value:
    """Return the bytes as they were measured.

    Where nothing is left for the process itself, its allocator counts pages that were never touched (a large buffer of
    a CPU job): what there is beside the states is not told apart then.
    """
    apart = category not in (*STATES, "buffers")

    def value(rank: int, step: Footprint) -> float | None:
        memory = step.moments.get(moment)
        if memory is None or (apart and memory.runtime == 0):
            return None
        found: int | None = getattr(memory, category)
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


class Screen:
    """The last footprints of many ranks at one moment, for a quick look at who may be out of line."""

    def __init__(self, group: Group, windows: Windows, moment: str) -> None:
        self._known = [
            (view, memory)
            for view in group.members
            if view.rank in windows and (memory := windows[view.rank][-1].moments.get(moment)) is not None
        ]
        self._memories = [memory for _, memory in self._known]
        tables = [view.budget.at(moment) if view.budget is not None else {} for view, _ in self._known]
        self._tables = tables if all(tables) else []

    def suspects(self, category: str, floor: float, ratio: float) -> set[int]:
        """Return the ranks that are above the middle by ``floor`` bytes and by ``ratio`` of it."""
        sizes: list[int | None] = list(map(attrgetter(category), self._memories))
        numbers = [size for size in sizes if size is not None]
        if len(numbers) < 2:
            return set()
        limit = max(floor, ratio * median(numbers))
        base = self._expected(category) if category in STATES else None
        if base is None:
            edge = median(numbers) + limit
            if max(numbers) < edge:
                return set()
            return {view.rank for (view, _), size in zip(self._known, sizes, strict=True) if (size or 0) >= edge}
        beyond = [None if size is None else size - own for size, own in zip(sizes, base, strict=True)]
        edge = median(size for size in beyond if size is not None) + limit
        ranks = zip(self._known, beyond, strict=True)
        return {view.rank for (view, _), size in ranks if size is not None and size >= edge}

    def _expected(self, category: str) -> list[int] | None:
        amounts = [table.get(category) for table in self._tables]
        sizes = [amount.bytes for amount in amounts if amount is not None and amount.within is not None]
        known = [size for size in sizes if size is not None]
        return known if known and len(known) == len(self._known) else None


def expected_bytes(view: RankView, moment: str, category: str) -> int | None:
    """Return what the budget expects of a category, None where it does not know."""
    amount = view.budget.at(moment).get(category) if view.budget is not None else None
    return None if amount is None else amount.bytes
