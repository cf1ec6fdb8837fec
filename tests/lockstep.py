"""Ranks that work and then wait for each other: an event simulation of training in lockstep, for tests of the rules.

It knows nothing of how the rules judge. A program is a list of operations that all ranks go through in the same order;
the time that a rank waits emerges from when the others arrive.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fake_job import FakeClock

from ranktop.budget.plan import Layout, Plan
from ranktop.probes.reading import Collectives, DeviceDetail, DeviceIdentity, DeviceReading, GroupPosition, StepTimes
from ranktop.tui.session.source import Received, Reset
from ranktop.tui.session.state import Session
from ranktop.wire.codec import decode_body, encode_body
from ranktop.wire.look_times import time_of
from ranktop.wire.schema import Body, Card, Device, Header, Job, Look, Sample, Stack

GPU_MEMORY = 80 * 1024**3

Operation = tuple[str, str, float]
"""(kind, phase, seconds): ``work``, ``join`` (a collective that is waited for), ``start`` (one that is not yet),
``finish`` (wait for all started)."""


def ddp(data: float = 0.02, forward: float = 0.08, backward: float = 0.16, optimizer: float = 0.02) -> list[Operation]:
    program: list[Operation] = [("work", "data", data), ("work", "forward", forward)]
    for _ in range(4):
        program += [("work", "backward", backward / 4), ("start", "backward", 0.002)]
    return [*program, ("finish", "backward", 0.0), ("work", "optimizer", optimizer)]


def fsdp(layers: int = 6, data: float = 0.02, forward: float = 0.08, optimizer: float = 0.02) -> list[Operation]:
    program: list[Operation] = [("work", "data", data)]
    for _ in range(layers):
        program += [("join", "forward", 0.001), ("work", "forward", forward / layers)]
    for _ in range(layers):
        program += [
            ("join", "backward", 0.001),
            ("work", "backward", 2 * forward / layers),
            ("start", "backward", 0.002),
        ]
    return [*program, ("finish", "backward", 0.0), ("work", "optimizer", optimizer)]


def zero3(layers: int = 6) -> list[Operation]:
    """As FSDP, and the norm of the gradients is summed up inside of ``optimizer.step()``."""
    program = fsdp(layers)[:-1]
    return [*program, ("work", "optimizer", 0.01), ("join", "optimizer", 0.001), ("work", "optimizer", 0.01)]


def zero1() -> list[Operation]:
    """As DDP, and parameters are gathered at the end of ``optimizer.step()``."""
    return [*ddp(), ("join", "optimizer", 0.004)]


def plain() -> list[Operation]:
    """A script's own all_reduce between backward and optimizer, and one of the loss after it."""
    return [
        ("join", "data", 0.0005), ("work", "data", 0.02), ("work", "forward", 0.08), ("work", "backward", 0.16),
        ("join", "backward", 0.004), ("work", "optimizer", 0.02),
    ]  # fmt: skip


PROGRAMS: dict[str, Callable[[], list[Operation]]] = {
    "ddp": ddp, "fsdp2": fsdp, "zero3": zero3, "zero1": zero1, "single": plain
}  # fmt: skip

PHASES = ("data", "forward", "backward", "optimizer")


@dataclass
class Lockstep:
    """A job in lockstep on a clock of its own; faults are put in before it runs."""

    strategy: str = "ddp"
    ranks: int = 8
    noise: float = 0.03
    """Standard deviation of each piece of work, as a share."""
    lengths: float = 0.0
    """... of each batch's length, that forward and backward scale with, on each rank by itself."""
    spikes: float = 0.0
    """Share of the pieces of work that take five times as long."""
    seed: int = 0
    per_node: int = 8
    slow: dict[tuple[int, str], float] = field(default_factory=dict)
    """(rank, phase) -> factor of its work there."""
    slow_from: int = 0
    """Step from which ``slow`` holds."""
    late: dict[tuple[int, int], float] = field(default_factory=dict)
    """(rank, step) -> seconds that it takes longer in data."""
    tokens: dict[int, int] = field(default_factory=dict)
    """Rank -> tokens of its batches beside 4096; its work scales with them."""
    spacing: float = 0.45
    """Seconds between two steps that are followed."""
    readings: dict[int, dict[str, object]] = field(default_factory=dict)
    details: dict[int, DeviceDetail] = field(default_factory=dict)
    starved: dict[int, float] = field(default_factory=dict)
    program: list[Operation] = field(default_factory=list)
    caught: bool = True
    """Samples tell the phase."""
    scale: float = 1.0
    """Factor of all work."""
    scale_from: tuple[int, float] = (1 << 60, 1.0)
    """(step, factor of all work from then on)."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.program = self.program or PROGRAMS[self.strategy]()
        self.times = [0.0] * self.ranks
        self.entered: list[list[float]] = [[] for _ in range(self.ranks)]
        self.phases: list[list[tuple[float, str]]] = [[] for _ in range(self.ranks)]
        """When each rank enters which phase."""
        self.steps: list[list[tuple[float, StepTimes]]] = [[] for _ in range(self.ranks)]
        self.done = 0

    def run(self, steps: int) -> Lockstep:
        for _ in range(steps):
            self.done += 1
            self._step(self.done)
        return self

    def _work(self, rank: int, phase: str, seconds: float, length: float) -> float:
        noise = max(0.2, 1 + self.noise * self.random.gauss(0, 1))
        if self.spikes and self.random.random() < self.spikes:
            noise *= 5
        if phase in ("forward", "backward"):
            noise *= length * self.tokens.get(rank, 4096) / 4096
        if self.done >= self.slow_from:
            noise *= self.slow.get((rank, phase), 1.0)
        grown = self.scale_from[1] if self.done >= self.scale_from[0] else 1.0
        return seconds * noise * self.scale * grown

    def _step(self, index: int) -> None:
        began = list(self.times)
        spent = [dict.fromkeys(PHASES, 0.0) for _ in range(self.ranks)]
        lengths = [max(0.1, 1 + self.lengths * self.random.gauss(0, 1)) for _ in range(self.ranks)]
        pending = 0.0
        for kind, phase, seconds in self.program:
            before = list(self.times)
            for rank, time in enumerate(self.times):
                self.phases[rank].append((time, phase))
            if kind == "work":
                for rank in range(self.ranks):
                    self.times[rank] += self._work(rank, phase, seconds, lengths[rank])
                    if phase == "data":
                        self.times[rank] += self.late.get((rank, index), 0.0)
            elif kind == "finish":
                self.times = [max(time, pending) for time in self.times]
                pending = 0.0
            else:
                for rank, time in enumerate(self.times):
                    self.entered[rank].append(time)
                complete = max(self.times) + seconds
                if kind == "join":
                    self.times = [complete] * self.ranks
                else:
                    pending = max(pending, complete)
            for rank in range(self.ranks):
                spent[rank][phase] += self.times[rank] - before[rank]
        for rank, phases in enumerate(spent):
            tokens = int(self.tokens.get(rank, 4096) * lengths[rank])
            seconds = self.times[rank] - began[rank]
            times = replace(StepTimes(index=index, seconds=seconds, tokens=tokens), **phases)  # type: ignore[arg-type]
            self.steps[rank].append((self.times[rank], times))

    # -- what the agents say of it ---------------------------------------------------------------------------------

    def card(self, rank: int) -> Card:
        layout = Layout(world_size=self.ranks, replicate=self.ranks)
        return Card(
            job=self.job, rank=rank, local_rank=rank % self.per_node, node=f"node{rank // self.per_node}",
            pid=1000 + rank, plan=Plan(strategy=self.strategy, layout=layout), backend="nccl",
            device=DeviceIdentity(kind="cuda", name="H100", uuid=f"GPU-{rank}", total=GPU_MEMORY),
        )  # fmt: skip

    @property
    def job(self) -> Job:
        return Job(id="a1", name="lockstep", world_size=self.ranks)

    def position(self, rank: int, at: float) -> int:
        return bisect_right(self.entered[rank], at)

    def phase(self, rank: int, at: float) -> str:
        if not self.caught:
            return ""
        index = bisect_right(self.phases[rank], at, key=lambda one: one[0])
        return self.phases[rank][index - 1][1] if index else ""

    def samples(self, rank: int, until: float, interval: float = 1.0) -> list[tuple[float, Sample]]:
        """The samples of one rank, each with the time at which it was taken."""
        out: list[tuple[float, Sample]] = []
        ends = [end for end, _ in self.steps[rank]]
        told, read, at, slot = 0, 0.0, interval + 0.001 * (rank % 7), 0
        while at <= until:
            count = bisect_right(ends, at)
            steps: list[StepTimes] = []
            for end, times in self.steps[rank][told:count]:
                if end - read >= self.spacing or times.index <= 3:
                    steps.append(times)
                    read = end
            told = count
            looks = []
            while time_of(slot + 1) <= at:
                slot += 1
                looks.append(Look(slot, (self.position(rank, time_of(slot)),)))
            out.append((at, self._sample(rank, at, count, ends, steps[-16:], looks)))
            at += interval
        return out

    def _sample(
        self, rank: int, at: float, count: int, ends: Sequence[float], steps: list[StepTimes], looks: list[Look]
    ) -> Sample:
        position = self.position(rank, at)
        reading = {"sm_clock": 1755, "throttle": (), "utilization": 97, "power": 610.0, "total": GPU_MEMORY}
        reading |= self.readings.get(rank, {})
        return Sample(
            rank=rank, uptime=at, step=count, step_age=at - ends[count - 1] if count else None, steps=tuple(steps),
            device=DeviceReading(**reading), phase=self.phase(rank, at),  # type: ignore[arg-type]
            collectives=Collectives((GroupPosition("0", "default", self.ranks, position, position - 1),)),
            looks=tuple(looks), starved=self.starved.get(rank, 0.01),
        )  # fmt: skip

    def session(self, until: float | None = None) -> tuple[Session, FakeClock]:
        """Return a session that has heard everything, each message through the wire's encoding."""
        until = min(self.times) if until is None else until
        clock = FakeClock(1_000.0)
        session = Session(clock)
        session.feed([Reset(self.job, "hub", False)])
        session.feed([wired(rank, self.card(rank)) for rank in range(self.ranks)])
        session.feed([wired(rank, Device(rank=rank, detail=detail)) for rank, detail in self.details.items()])
        said = sorted(
            ((at, rank, sample) for rank in range(self.ranks) for at, sample in self.samples(rank, until)),
            key=lambda one: one[:2],
        )
        for at, rank, sample in said:
            clock.now = 1_000.0 + at
            session.feed([wired(rank, sample)])
        clock.now = 1_000.0 + until
        return session, clock


def wired(rank: int, body: Body, age: float = 0.0, pid: int | None = None) -> Received:
    """A message as a viewer gets it, encoded and decoded again."""
    kind = type(body).__name__.lower()
    header = Header(kind, rank, 1000 + rank if pid is None else pid, 0, 0)
    return Received(header, decode_body(header, encode_body(body)), age, 0)


__all__ = ["Lockstep", "Stack", "wired"]
