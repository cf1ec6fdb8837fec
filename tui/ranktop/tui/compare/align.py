"""Which steps of several runs are compared: the same numbers, without those in which a run warms up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ranktop.tui.compare.gather import Life
from ranktop.tui.view.text import count

WARM_UP: Final = 5
"""First steps that are left out: optimizer state appears, buckets are built, code is compiled, caches fill."""

LEAST_COMMON: Final = 10
"""Steps with the same number that are needed to compare those alone."""


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that are compared."""

    first: int
    last: int
    """Both inclusive; ``last < first``: none."""
    common: frozenset[int] | None = None
    """Steps that every run has timed; None: too few are the same, every run's own of the range are taken."""
    warm_up: int = 0
    """First steps that were left out."""

    def steps(self, life: Life) -> list[int]:
        """Return the numbers of a run's steps that are compared, ascending."""
        numbers = self.common if self.common is not None else life.steps.keys()
        return sorted(number for number in numbers if self.first <= number <= self.last)

    def words(self) -> str:
        """Say which steps are compared: ``steps 6-400, the first 5 left out as warm-up``."""
        if self.last < self.first:
            return "no step that all of them have finished"
        told = f"steps {count(self.first)}-{count(self.last)}"
        if self.common is not None and len(self.common) < self.last - self.first + 1:
            told += f" ({count(len(self.common))} of them timed in every run)"
        elif self.common is None:
            told += " (each run's own: too few were timed in every run)"
        return told + (f"; the first {self.warm_up} are warm-up" if self.warm_up and self.first > self.warm_up else "")


def align(lives: Sequence[Life], first: int | None = None, last: int | None = None) -> Window:
    """Return the steps that all runs have, from the end of the longest warm-up to the end of the shortest run.

    ``first`` and ``last`` are a person's own choice.
    """
    ends = [max(life.last, max((rank.steps for rank in life.ranks.values()), default=0)) for life in lives]
    end = min(ends, default=0) if last is None else min(last, *ends)
    starts = [min(life.steps, default=1) for life in lives]
    # A short run loses no more than a fourth of its steps to the warm-up, and always the one that makes the optimizer.
    warm_up = max(1, min(WARM_UP, end // 4)) if first is None else 0
    begin = max([warm_up + 1 if first is None else first, *starts])
    sets = [{number for number in life.steps if begin <= number <= end} for life in lives]
    common = frozenset.intersection(*map(frozenset, sets)) if sets else frozenset()
    enough = bool(common) and len(common) >= min(LEAST_COMMON, *map(len, sets))
    return Window(begin, end, common if enough else None, warm_up)
