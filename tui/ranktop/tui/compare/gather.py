"""What a comparison keeps of one run, taken message by message: step times, memory at peaks, positions; bounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ranktop.budget.terms import Memory
from ranktop.probes.reading import StepTimes
from ranktop.tui.compare.losses import Losses
from ranktop.tui.session.expected import allocated, peak_moment
from ranktop.wire.schema import Body, Card, Header, Sample, Table

TIMES: Final = ("seconds", "data", "forward", "backward", "optimizer", "tokens")
"""Fields of StepTimes that are kept of a step."""

BELIEVED: Final = 1e12
"""Seconds and tokens of a step from which on a number is none: what is recorded is not trusted."""

MOST_STEPS: Final = 50_000
"""Steps kept of one life; beyond that every second, fourth, ... by number, so that the runs keep the same ones."""

PEAKS: Final = 512
PEAKS_OF_ALL: Final = 16_384
"""Readings of memory kept of a rank, and of all ranks; neighbours are then joined, the larger one kept."""

MOST_RISES: Final = 512
"""Rises of a running peak that are kept."""

POSITIONS_FROM: Final = 5
"""Step from which collectives are counted: the first steps build communicators and buckets."""


class Times:
    """One step, summed over the ranks that told of it."""

    __slots__ = ("_counts", "_sums", "micro_batches")

    def __init__(self) -> None:
        self._sums = [0.0] * len(TIMES)
        self._counts = [0] * len(TIMES)
        self.micro_batches = 1

    def add(self, step: StepTimes) -> None:
        """Take what one rank says of the step."""
        for at, name in enumerate(TIMES):
            value = getattr(step, name)
            if value is not None and 0 <= value < BELIEVED:
                self._sums[at] += value
                self._counts[at] += 1
        self.micro_batches = step.micro_batches

    def mean(self, name: str) -> float | None:
        """Return the mean over the ranks; None when none of them knows it."""
        at = TIMES.index(name)
        return self._sums[at] / self._counts[at] if self._counts[at] else None


@dataclass(frozen=True, slots=True)
class Peak:
    """Memory of one rank at the peak moment of one step, and what the budget needs to say what it should be."""

    step: int
    moment: str
    memory: Memory
    table: Table
    tensors: int
    """Bytes of all tensors."""

    @property
    def held(self) -> int:
        """Bytes of the process without the allocator's cache, which is no need."""
        return self.tensors + (self.memory.runtime or 0)


class Peaks:
    """The peaks of one rank, oldest first, bounded: neighbours are joined and the larger one is kept.

    The first ones stay as they are: a long run may be compared with a short one.
    """

    def __init__(self, capacity: int = PEAKS) -> None:
        self._capacity = max(16, capacity // 2)
        self._first: list[Peak] = []
        self._kept: list[Peak] = []
        self._every = 1
        self._block: list[Peak] = []
        self._last = -1

    def add(self, table: Table) -> None:
        """Take a table; one that was told before is not taken again."""
        if table.step <= self._last:
            return
        moment = peak_moment(table)
        memory = table.moments.get(moment) if moment is not None else None
        tensors = allocated(memory) if memory is not None else None
        if moment is None or memory is None or tensors is None:
            return
        self._last = table.step
        peak = Peak(table.step, moment, memory, table, tensors)
        if len(self._first) < self._capacity:
            self._first.append(peak)
            return
        self._block.append(peak)
        if len(self._block) >= self._every:
            self._kept.append(max(self._block, key=lambda peak: peak.held))
            self._block = []
            if len(self._kept) >= self._capacity:
                pairs = zip(self._kept[::2], self._kept[1::2], strict=False)
                self._kept = [max(pair, key=lambda peak: peak.held) for pair in pairs]
                self._every *= 2

    def within(self, first: int, last: int) -> list[Peak]:
        """Return those of steps ``first`` to ``last``."""
        return [peak for peak in (*self._first, *self._kept, *self._block) if first <= peak.step <= last]


@dataclass(slots=True)
class RankLife:
    """One rank from its process's start to its end."""

    peaks: Peaks
    card: Card | None = None
    steps: int = 0
    """Finished."""
    timed: int = 0
    """Index of the last step that was counted."""
    rises: list[tuple[int, int]] = field(default_factory=list)
    """(steps finished, bytes) whenever the allocator's running peak had risen."""
    began: tuple[int, int] | None = None
    """(steps finished, collectives enqueued) when both were first known, warmed up."""
    latest: tuple[int, int] | None = None

    def rise(self, steps: int, peak: int) -> None:
        """Note the running peak."""
        if not self.rises or peak > self.rises[-1][1]:
            self.rises.append((steps, peak))
            if len(self.rises) > MOST_RISES:
                self.rises = [*self.rises[:-1:2], self.rises[-1]]

    def peak_until(self, step: int) -> tuple[int, int] | None:
        """Return the running peak when ``step`` was finished, and the step by which it was reached; None: not known."""
        known = [(peak, steps) for steps, peak in self.rises if steps <= step]
        return known[-1] if known else None

    def calls_per_step(self) -> float | None:
        """Return the collectives that the rank enqueued per step; None where they are not known."""
        if self.began is None or self.latest is None or self.latest[0] <= self.began[0]:
            return None
        return (self.latest[1] - self.began[1]) / (self.latest[0] - self.began[0])


@dataclass(slots=True)
class Life:
    """All ranks between two restarts of the job."""

    steps: dict[int, Times] = field(default_factory=dict)
    stride: int = 1
    """Only steps whose number it divides are kept."""
    ranks: dict[int, RankLife] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)

    @property
    def last(self) -> int:
        """The last step that was timed; 0 for none."""
        return max(self.steps, default=0)

    def time(self, rank: RankLife, steps: Iterable[StepTimes]) -> None:
        """Count the steps of one rank."""
        for step in steps:
            if step.index <= rank.timed:
                continue
            rank.timed = step.index
            if step.index % self.stride:
                continue
            times = self.steps.get(step.index)
            if times is None:
                times = self.steps[step.index] = Times()
                if len(self.steps) > MOST_STEPS:
                    self.stride *= 2
                    self.steps = {at: one for at, one in self.steps.items() if at % self.stride == 0}
            times.add(step)


class Gathered:
    """What was gathered of one run."""

    def __init__(self, world_size: int = 1) -> None:
        self.lives: list[Life] = []
        self._capacity = min(PEAKS, PEAKS_OF_ALL // max(1, world_size))
        self._numbers: dict[tuple[int, int, int], int] = {}
        """(rank, restart, process) -> number of that life among those of the rank."""
        self._lives: dict[int, int] = {}
        """Rank -> how many lives it has had."""

    def take(self, header: Header, body: Body) -> None:
        """Take one message; those that tell nothing of this are passed over."""
        if header.rank < 0 or not isinstance(body, (Card, Sample)):
            return
        life, rank = self._life(header)
        if isinstance(body, Card):
            rank.card = body
            return
        rank.steps = max(rank.steps, body.step)
        life.time(rank, body.steps)
        life.losses.take(header.rank, body)
        if body.table is not None and not body.table.first:
            rank.peaks.add(body.table)
        if body.peak_allocated is not None:
            rank.rise(body.step, body.peak_allocated)
        positions = [group.enqueued for group in body.collectives.groups]
        if positions and None not in positions and body.step >= POSITIONS_FROM:
            rank.latest = (body.step, sum(at or 0 for at in positions))
            rank.began = rank.began or rank.latest

    def _life(self, header: Header) -> tuple[Life, RankLife]:
        process = (header.rank, header.restart, header.pid)
        number = self._numbers.get(process)
        if number is None:
            number = self._numbers[process] = self._lives.get(header.rank, 0)
            self._lives[header.rank] = number + 1
        while len(self.lives) <= number:
            self.lives.append(Life())
        life = self.lives[number]
        if header.rank not in life.ranks:
            life.ranks[header.rank] = RankLife(Peaks(self._capacity))
        return life, life.ranks[header.rank]

    def longest(self) -> Life:
        """Return the life with the most steps, the later of equals; an empty one when nothing was heard."""
        return max(reversed(self.lives), key=lambda life: life.last, default=Life())
