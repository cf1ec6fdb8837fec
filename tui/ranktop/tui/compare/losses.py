"""The losses of runs beside each other: at the last step that all of them have come to, and each run's last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ranktop.tui.compare.spread import Difference, Spread, spread
from ranktop.wire.progress import loss_step
from ranktop.wire.schema import Sample

MOST: Final = 4096
"""Losses kept of a life; beyond that those of every second, fourth, ... part of the steps."""

TENTH: Final = 10
"""A loss is compared by its median over the last tenth of the steps: single batches say little."""

FEWEST: Final = 5
"""Losses in that part below which no difference is told."""

ERRORS: Final = 3.0


@dataclass(slots=True)
class Losses:
    """The losses that the lowest rank of a life has told, by step: the trainer's count where it tells one."""

    rank: int | None = None
    told: dict[int, float] = field(default_factory=dict)
    last: int = 0
    """The newest step."""
    _stride: int = 1

    def take(self, rank: int, sample: Sample) -> None:
        """Take what a sample tells; a rank above one that tells is passed over."""
        progress = sample.progress
        if progress is None or progress.loss is None or (self.rank is not None and rank > self.rank):
            return
        step = loss_step(progress)
        if step is None:
            return
        if rank != self.rank:
            self.rank, self.told, self.last, self._stride = rank, {}, 0, 1
        newest = self.told.pop(self.last, None)
        if newest is not None and (step == self.last or self._kept(self.last)):
            self.told[self.last] = newest
        self.told[step], self.last = progress.loss, step
        if len(self.told) > MOST:
            self._stride *= 2
            self.told = {at: loss for at, loss in self.told.items() if at == step or self._kept(at)}

    def _kept(self, step: int) -> bool:
        return self._stride == 1 or (step // 8) % self._stride == 0


@dataclass(frozen=True, slots=True)
class LossOfRun:
    """What is told of one run."""

    rank: int
    last: float
    last_step: int
    at: Spread | None
    """Over the last tenth of the steps up to the one that is compared."""


def compared(runs: Sequence[Losses]) -> tuple[int | None, tuple[LossOfRun | None, ...]]:
    """Return the last step that all runs that tell a loss have come to, and what is told of each run."""
    telling = [one for one in runs if one.told]
    step = min((one.last for one in telling), default=None)
    return step, tuple(_of(one, step) for one in runs)


def _of(one: Losses, step: int | None) -> LossOfRun | None:
    if not one.told or one.rank is None or step is None:
        return None
    within = sorted(at for at in one.told if step - max(10, step // TENTH) < at <= step)
    return LossOfRun(one.rank, one.told[one.last], one.last, spread([one.told[at] for at in within]))


def loss_differs(base: LossOfRun | None, other: LossOfRun | None) -> Difference | None:
    """Return by how much the loss of one run is above that of another; None where too few were told."""
    one, two = (base.at if base else None), (other.at if other else None)
    if one is None or two is None or min(one.count, two.count) < FEWEST:
        return None
    away = two.middle - one.middle
    return Difference(away, away / one.middle if one.middle else None, ERRORS * math.hypot(one.error, two.error))
