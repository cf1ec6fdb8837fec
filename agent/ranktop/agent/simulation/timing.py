"""Ranks work, each with its own luck and faults, and wait for each other at collectives: nothing else makes waiting.

Within a phase a rank goes through its units at an even pace. FSDP gathers before every unit of forward, gathers and
reduces at every unit of backward; DDP reduces its buckets while backward goes on. The host keeps pace with the device,
as in a job that reads its loss in every step.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import Final

from ranktop.agent.simulation.faults import ENDING, Fault
from ranktop.agent.simulation.job import Setup
from ranktop.probes.reading import StepTimes

SHARES: Final = {"data": 0.02, "forward": 0.3, "backward": 0.6, "optimizer": 0.05}
"""Work of each phase as a share of a healthy step; the rest is communication."""

COMMUNICATION: Final = {"forward": 0.01, "backward": 0.02}

LUCK: Final = {"data": 0.3, "forward": 0.006, "backward": 0.006, "optimizer": 0.01}
"""Standard deviation of the logarithm of a phase's work from step to step and rank to rank: data varies most."""

OWN_LUCK: Final = 0.003
"""... of a device's speed: no two are quite alike."""

COMMON_LUCK: Final = 0.01
"""... of what all ranks have in common in a step, e.g. the length of its sequences."""

SPIKE: Final = 0.0002
"""Probability that a rank is held up in a step (a page fault, a neighbour on the machine)."""

SPIKE_MOST: Final = 0.4
"""... and for how long at most, as a share of a healthy step."""

KEPT: Final = 24
"""Steps remembered."""

NEVER: Final = math.inf


@dataclass(slots=True)
class Step:
    """One step of all ranks: times in seconds since the job began, lists by rank."""

    index: int
    start: list[float]
    loaded: list[float]
    forwarded: list[float]
    finished: float
    """End of backward: the last collective ends for all at once."""
    ended: list[float]
    work: dict[str, list[float]]
    """Phase -> seconds of own work, without any waiting."""
    gathered: float
    """Everyone has reached forward's first collective (FSDP)."""
    forward_pace: float
    """Seconds of one unit of forward for all (FSDP)."""
    turned: float
    """Everyone has reached backward's first collective."""
    backward_pace: float
    stuck: int = -1
    """The rank that never comes to a collective in the middle of backward; -1: all come."""

    def own(self, rank: int) -> float:
        """Return the seconds of a rank's own work."""
        return sum(work[rank] for work in self.work.values())

    def waited(self, rank: int) -> float:
        """Return the seconds that a rank waited for others, communication included."""
        return self.ended[rank] - self.start[rank] - self.own(rank)


class Timeline:
    """The steps of a job, made as time goes on. The same for the same setup, in every process."""

    def __init__(self, setup: Setup, life: int = 0, begin: float = 0.0) -> None:
        """``life``: how often the job has been restarted; ``begin``: when this life's first step begins."""
        self.setup = setup
        self.begin = begin
        self.units = setup.model.layers + 1
        self.buckets = max(1, setup.inventory.numel * 4 // (25 * 2**20))
        self.steps: deque[Step] = deque(maxlen=KEPT)
        self.broken: Fault | None = None
        """What keeps the last of ``steps`` from ending."""
        self.broken_at = NEVER
        """When the rank stops that all wait for."""
        self._life = life
        rng = random.Random(f"{setup.seed} devices")
        self._speed = [math.exp(rng.gauss(0, OWN_LUCK)) for _ in range(setup.ranks)]
        self._ends = self._first_end()
        self._by_rank = {fault.rank for fault in setup.faults}

    @property
    def per_step(self) -> int:
        """Collectives that a rank enqueues in a step."""
        return self.buckets if self.setup.strategy == "ddp" else 3 * self.units

    def until(self, t: float) -> None:
        """Make the steps that begin before ``t``."""
        if self.setup.has("missing"):
            return  # the process group waits for the one that never comes
        while self.broken is None and (not self.steps or min(self.steps[-1].ended) <= t):
            self.steps.append(self._next())

    def _first_end(self) -> Fault | None:
        ends = [
            fault
            for fault in self.setup.faults
            if fault.name in ENDING and not (self._life and fault.name == "restart")
        ]
        return min(ends, key=lambda fault: fault.start, default=None)

    def end_at(self, fault: Fault) -> None:
        """Have a fault (a rank's memory that runs out) break its step, unless another one comes first."""
        if self._ends is None or fault.start < self._ends.start:
            self._ends = fault

    def _next(self) -> Step:
        former = self.steps[-1] if self.steps else None
        index = former.index + 1 if former else 1
        ranks = self.setup.ranks
        start = list(former.ended) if former else [self.begin] * ranks
        work = self._work(index)
        loaded = [begin + data for begin, data in zip(start, work["data"], strict=True)]
        broken = self._ends is not None and index >= self._ends.start
        step = self._ddp(index, start, loaded, work) if self.setup.strategy == "ddp" else self._fsdp(
            index, start, loaded, work)  # fmt: skip
        if broken and self._ends is not None:
            self.broken = self._ends
            step.stuck = max(0, self._ends.rank)
            self.broken_at = step.turned + (self.units // 2) * step.backward_pace
            step.finished = NEVER
        step.ended = [step.finished + seconds for seconds in work["optimizer"]]
        return step

    def _fsdp(self, index: int, start: list[float], loaded: list[float], work: dict[str, list[float]]) -> Step:
        seconds, units = self.setup.seconds, self.units
        # Every unit begins when all have come to its gather: each takes as long as the slowest rank needs.
        gathered = max(loaded)
        pace = max(work["forward"]) / units + COMMUNICATION["forward"] * seconds / units
        last = gathered + (units - 1) * pace
        forwarded = [last + own / units for own in work["forward"]]
        turned = max(forwarded)
        back = max(work["backward"]) / units + COMMUNICATION["backward"] * seconds / units
        return Step(index, start, loaded, forwarded, turned + units * back, [], work, gathered, pace, turned, back)

    def _ddp(self, index: int, start: list[float], loaded: list[float], work: dict[str, list[float]]) -> Step:
        forwarded = [begin + own for begin, own in zip(loaded, work["forward"], strict=True)]
        last = max(begin + own for begin, own in zip(forwarded, work["backward"], strict=True))
        finished = last + COMMUNICATION["backward"] * self.setup.seconds
        turned = max(forwarded)
        pace = (finished - turned) / self.units
        return Step(index, start, loaded, forwarded, finished, [], work, turned, 0.0, turned, pace)

    def _work(self, index: int) -> dict[str, list[float]]:
        """Return each rank's work by phase: its usual share under the luck of the step, the rank and the moment."""
        setup = self.setup
        rng = random.Random(f"{setup.seed} {self._life} {index}")
        common = math.exp(rng.gauss(0, COMMON_LUCK))
        work: dict[str, list[float]] = {}
        for phase, share in SHARES.items():
            usual = share * setup.seconds
            spread, gauss, exp = LUCK[phase], rng.gauss, math.exp
            if phase == "data":
                work[phase] = [usual * exp(gauss(0, spread)) for _ in range(setup.ranks)]
            else:
                work[phase] = [usual * common * speed * exp(gauss(0, spread)) for speed in self._speed]
        for rank in range(setup.ranks):
            if rng.random() < SPIKE:
                phase = rng.choice(list(SHARES))
                work[phase][rank] += rng.uniform(0.05, SPIKE_MOST) * setup.seconds
        for fault in setup.faults:
            if fault.at(index) and fault.rank >= 0:
                slow_down(fault, work, setup.seconds)
        return work

    def step_at(self, rank: int, t: float) -> Step | None:
        """Return the step that a rank is in at ``t``; None before the first, or when it is no longer remembered."""
        for step in reversed(self.steps):
            if step.start[rank] <= t:
                return step
        return None

    def phase(self, step: Step, rank: int, t: float) -> str:
        """Return what a rank's training thread is in at ``t``."""
        if t < step.loaded[rank]:
            return "data"
        if t < step.forwarded[rank]:
            return "forward"
        return "backward" if t < step.finished else "optimizer"

    def position(self, step: Step, rank: int, t: float) -> tuple[int, int]:
        """Return how many collectives a rank has enqueued and how many are complete at ``t``."""
        before = (step.index - 1) * self.per_step
        if t >= step.finished:
            return before + self.per_step, before + self.per_step
        ahead = self._buckets(step, rank, t) if self.setup.strategy == "ddp" else self._barriers(step, rank, t)
        if step.stuck >= 0 and t > self.broken_at:
            half = self.buckets // 2 if self.setup.strategy == "ddp" else self.units + 2 * (self.units // 2)
            enqueued = half if rank == step.stuck else self.buckets if self.setup.strategy == "ddp" else half + 2
            ahead = enqueued, half
        return before + ahead[0], before + ahead[1]

    def _barriers(self, step: Step, rank: int, t: float) -> tuple[int, int]:
        if t < step.loaded[rank]:
            return 0, 0
        if t < step.forwarded[rank]:
            done = _passed(t - step.gathered, step.forward_pace, step.work["forward"][rank] / self.units)
            enqueued = min(1 + done[1], self.units)
            return enqueued, min(enqueued, done[0])
        done = _passed(t - step.turned, step.backward_pace, step.work["backward"][rank] / self.units)
        enqueued = min(1 + done[1], self.units)
        return self.units + 2 * enqueued, self.units + 2 * min(enqueued, done[0])

    def _buckets(self, step: Step, rank: int, t: float) -> tuple[int, int]:
        own = _share_done(t - step.forwarded[rank], step.work["backward"][rank])
        slowest = min(
            _share_done(t - step.turned, max(step.work["backward"])), own
        )  # a bucket is complete when the slowest has brought its own
        return int(own * self.buckets), int(slowest * self.buckets)

    def times(self, step: Step, rank: int, tokens: int, micro_batches: int) -> StepTimes:
        """Return a finished step of a rank as its agent tells it."""
        return StepTimes(
            index=step.index,
            seconds=step.ended[rank] - step.start[rank],
            data=step.loaded[rank] - step.start[rank],
            forward=step.forwarded[rank] - step.loaded[rank],
            backward=step.finished - step.forwarded[rank],
            optimizer=step.ended[rank] - step.finished,
            micro_batches=micro_batches,
            clock="device",
            tokens=tokens,
        )


def _passed(since: float, pace: float, own: float) -> tuple[int, int]:
    """Return (units that began, collectives that the rank has reached beyond the first) ``since`` the first began."""
    if since < 0:
        return 0, 0
    whole = int(since / pace)
    return whole + 1, whole + (since - whole * pace >= own)


def _share_done(since: float, whole: float) -> float:
    return min(1.0, max(0.0, since / whole)) if whole > 0 else 1.0


def slow_down(fault: Fault, work: dict[str, list[float]], seconds: float) -> None:
    """Put a rank's fault into its work of a step."""
    rank, by = fault.rank, fault.by
    if fault.name in ("straggler", "throttle"):
        for phase in ("forward", "backward", "optimizer"):
            work[phase][rank] *= 1 + by
    elif fault.name == "tokens":
        for phase in ("forward", "backward"):
            work[phase][rank] *= 1 + by
    elif fault.name in ("data", "pcie"):
        work["data"][rank] += by * seconds
    elif fault.name == "starved":
        # The host's part is everywhere; loading data has most of it.
        for phase, share in (("data", 0.4), ("forward", 0.2), ("backward", 0.2), ("optimizer", 0.2)):
            work[phase][rank] += share * by * seconds
