"""What is added up over samples: a scrape comes seldom, and steps and costs are told once each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ranktop.probes.reading import StepTimes
from ranktop.tui.prometheus.labels import THROTTLE, known
from ranktop.tui.session.source import Received, Reset, Whole
from ranktop.wire.schema import Header, Sample

PHASES: Final = ("data", "forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Sum:
    """How many there were, and how many seconds they took together."""

    count: int = 0
    seconds: float = 0.0

    def plus(self, seconds: float) -> Sum:
        """Return the sum with one more."""
        return Sum(self.count + 1, self.seconds + max(0.0, seconds))


@dataclass(frozen=True, slots=True)
class Tally:
    """Of one rank, over all of its lives that were seen. Nothing in it changes: a scrape may read it at any time."""

    life: tuple[int, int] = (0, 0)
    """Restart and process of the last sample."""
    seq: int = -1
    index: int = 0
    """The last step of that life that was counted."""
    steps: Sum = Sum()
    phases: Mapping[str, Sum] = field(default_factory=dict)
    cpu: float = 0.0
    hooks: float = 0.0
    throttled: frozenset[str] = frozenset()
    """Reasons that were seen so far."""

    def plus(self, header: Header, sample: Sample) -> Tally:
        """Return the tally with a sample more; the same for one that was counted already."""
        life = (header.restart, header.pid)
        before = self
        if life != self.life:
            if header.restart < self.life[0]:
                return self
            before = replace(self, life=life, seq=-1, index=0)
        if header.seq <= before.seq:
            return self
        reasons = {known(word, THROTTLE) for word in sample.device.throttle or ()}
        counted = before._counted(sample.steps)
        return replace(
            counted,
            seq=header.seq,
            cpu=before.cpu + max(0.0, sample.cost.cpu_s),
            hooks=before.hooks + max(0.0, sample.cost.hook_s),
            throttled=before.throttled if reasons <= before.throttled else before.throttled | reasons,
        )

    def _counted(self, steps: Iterable[StepTimes]) -> Tally:
        index, total, phases = self.index, self.steps, dict(self.phases)
        for step in steps:
            if step.index <= index:
                continue
            index = step.index
            if step.seconds is None:
                continue
            total = total.plus(step.seconds)
            for name in PHASES:
                seconds = getattr(step, name)
                if seconds is not None:
                    phases[name] = phases.get(name, Sum()).plus(seconds)
        return self if index == self.index else replace(self, index=index, steps=total, phases=phases)


class Tallies:
    """Of all ranks of one job."""

    def __init__(self, most: int) -> None:
        """``most``: ranks that are followed; what others say is not added up."""
        self._of: dict[int, Tally] = {}
        self._most = most

    def take(self, received: Iterable[Received | Reset | Whole]) -> None:
        """Add up the samples among what a source gave."""
        for item in received:
            if isinstance(item, Received) and isinstance(item.body, Sample):
                rank = item.header.rank
                tally = self._of.get(rank)
                if tally is None and len(self._of) >= self._most:
                    continue
                self._of[rank] = (tally or Tally()).plus(item.header, item.body)

    def now(self) -> Mapping[int, Tally]:
        """Return them as they are now."""
        return dict(self._of)
