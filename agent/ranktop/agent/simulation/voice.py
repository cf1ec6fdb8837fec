"""What one rank says, from its card to its end."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

from ranktop.agent.simulation.device import Load, Sensors, allocator
from ranktop.agent.simulation.faults import Fault
from ranktop.agent.simulation.job import Setup
from ranktop.agent.simulation.learning import progress_at
from ranktop.agent.simulation.memory import MIB, Device, Held
from ranktop.agent.simulation.timing import NEVER, Step, Timeline
from ranktop.budget.terms import Memory
from ranktop.probes.reading import Collectives, DeviceReading, GroupPosition, StepTimes
from ranktop.wire.look_times import slot_at, time_of
from ranktop.wire.progress import Progress
from ranktop.wire.schema import (
    LOOK_SECONDS,
    Box,
    Call,
    Card,
    Cost,
    End,
    Look,
    Sample,
    Stack,
    Table,
)
from ranktop.wire.schema import Device as DeviceMessage

INTERVAL: Final = 1.0
"""Seconds between two samples."""

DEVICE_EVERY: Final = 10
"""Samples from one message about the device to the next."""

LAUNCHER_SECONDS: Final = 3.0
"""From the end of one rank to the launcher's signal to the others."""

RESTART_SECONDS: Final = 6.0
"""From the end of one rank to the new life of all."""

STACK_SECONDS: Final = 5.0
"""A step that takes this long, and three usual ones, is worth a stack."""

STEPS_PER_SAMPLE: Final = 16

FATAL: Final = ("kill", "oom", "oomkill", "restart")
"""Faults with which a rank's process ends, and soon all others with it."""

LAUNCH: Final = (Call("train.py", 214, "<module>"), Call("train.py", 171, "main"), Call("train.py", 133, "train"))
BACKWARD: Final = (
    *LAUNCH,
    Call("torch/_tensor.py", 647, "backward"),
    Call("torch/autograd/__init__.py", 354, "backward"),
    Call("torch/autograd/graph.py", 829, "_engine_run_backward"),
)
"""Where a rank is that waits for a collective of backward."""

ELSEWHERE: Final = (*LAUNCH, Call("train.py", 96, "write_report"), Call("threading.py", 327, "wait"))
"""Where the rank is that leaves it out."""

OUT_OF_MEMORY: Final = (
    *LAUNCH,
    Call("transformers/models/llama/modeling_llama.py", 161, "forward"),
    Call("torch/nn/functional.py", 2380, "silu"),
)


Said = Card | Sample | DeviceMessage | Stack | Box | End


@dataclass(frozen=True, slots=True)
class Fate:
    """How a process of a rank goes on after ``at``."""

    at: float = NEVER
    what: str = ""
    """A name of ``FATAL``, ``terminated``, ``silent`` or nothing."""


class Job:
    """One simulated job: the timelines of its lives and the voices of some of its ranks."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.lives = [Timeline(setup)]
        self._leaks: list[Fault] = []
        for fault in setup.faults:
            full = Device(setup, fault.rank).full_at() if fault.name == "leak" else None
            if full is not None:
                self._leaks.append(Fault("oom", fault.rank, 0.0, full))
        self._prepare(self.lives[0])

    def _prepare(self, timeline: Timeline) -> None:
        for leak in self._leaks:
            timeline.end_at(leak)

    def until(self, t: float) -> None:
        """Let the job come as far as ``t``, seconds since it began."""
        timeline = self.lives[-1]
        timeline.until(t)
        broken = timeline.broken
        if broken is not None and broken.name == "restart" and t >= timeline.broken_at + RESTART_SECONDS:
            self.lives.append(Timeline(self.setup, len(self.lives), timeline.broken_at + RESTART_SECONDS))
            self._prepare(self.lives[-1])
            self.lives[-1].until(t)

    def fate(self, life: int, rank: int) -> Fate:
        """Return what becomes of a rank's process in one of the job's lives."""
        timeline = self.lives[life]
        broken = timeline.broken
        if broken is None:
            return Fate()
        if broken.name == "stop":
            return Fate(timeline.broken_at, "silent") if rank == broken.rank else Fate()
        if broken.name not in FATAL:
            return Fate()
        if rank == broken.rank:
            return Fate(timeline.broken_at, broken.name)
        return Fate(timeline.broken_at + LAUNCHER_SECONDS, "terminated")

    @property
    def silent(self) -> frozenset[int]:
        """Ranks that never say anything."""
        return frozenset(fault.rank for fault in self.setup.faults if fault.name == "missing")


class Voice:
    """One rank of a job. ``speak`` is to be called with rising times."""

    def __init__(self, job: Job, rank: int, pid: int) -> None:
        """``pid``: of the process that publishes for it."""
        self.rank, self.pid = rank, pid
        self.life = 0
        self.over = False
        """Its process has ended or stopped for good."""
        self._job, setup = job, job.setup
        self._device = Device(setup, rank)
        self._sensors = Sensors(setup, rank, self._device.strays)
        self._faults = {fault.name: fault for fault in setup.of(rank)}
        batch = setup.plan(rank).batch
        self._micro_batches = batch.accumulation or 1
        self._tokens = (batch.micro_batch or 0) * (batch.sequence_length or 0) * self._micro_batches
        self._held: Held | None = None
        self._begin()

    def _begin(self) -> None:
        self._turn = 0
        self._told = 0
        self._slot: int | None = None
        self._last: StepTimes | None = None
        self._stacked = False
        self.over = False

    def speak(self, t: float, clock: float | None = None) -> list[Said]:
        """Return what it says at ``t`` seconds since the job began; ``clock``: CLOCK_MONOTONIC then, ``t`` without."""
        job = self._job
        job.until(t)
        if self.rank in job.silent:
            return []
        if self.life < len(job.lives) - 1 and t >= job.lives[self.life + 1].begin:
            self.life += 1
            self._begin()
        if self.over:
            return []
        fate = job.fate(self.life, self.rank)
        if t >= fate.at:
            self.over = True
            return self._last_words(fate)
        said: list[Said] = []
        if self._turn == 0:
            said.append(job.setup.card(self.rank, self.pid, self.life))
        said.append(self._sample(t, t if clock is None else clock))
        if self._turn % DEVICE_EVERY == (self.rank if self._turn else 0) % DEVICE_EVERY or self._turn == 0:
            said.append(self._message(t))
        if (stack := self._stack(t)) is not None:
            said.append(stack)
        self._turn += 1
        return said

    def _now(self, t: float) -> tuple[Timeline, Step | None]:
        timeline = self._job.lives[self.life]
        return timeline, timeline.step_at(self.rank, t)

    def _sample(self, t: float, clock: float) -> Sample:
        timeline, step = self._now(t)
        done = step.index - 1 if step is not None else 0
        if done and done != self._told:
            self._held = self._device.step(done)
        held = self._held if done else None
        phase = timeline.phase(step, self.rank, t) if step is not None else ""
        now = self._memory(held, step, phase, t)
        steps = self._steps(timeline, done)
        began = step.start[self.rank] if step is not None else t
        return Sample(
            rank=self.rank,
            uptime=t - timeline.begin,
            interval=INTERVAL,
            now=now,
            table=Table(step=done, first=done == 1, moments=held.moments, age=t - began) if held is not None else None,
            device=self._reading(now, step, t),
            peak_allocated=held.reserved - (held.moments["forward_end"].cache or 0) if held is not None else None,
            inactive_split=held.inactive_split if held is not None else 0,
            retries=held.retries if held is not None else 0,
            ooms=0,
            step=done,
            step_age=t - began if done else None,
            steps=steps,
            phase=phase,
            collectives=self._collectives(timeline, step, t),
            cost=Cost(cpu_s=0.0004, hook_s=0.0002),
            looks=self._looks(timeline, t, clock),
            starved=self._starved(done + 1),
            progress=self._progress(done, t - began, steps),
        )

    def _progress(self, done: int, age: float, steps: tuple[StepTimes, ...]) -> Progress | None:
        """The script logs a loss that is averaged over the ranks, unless this one's is no number."""
        setup, fault = self._job.setup, self._faults.get("nan")
        seconds = steps[-1].seconds if steps else None
        since = fault.start if fault is not None else None
        return progress_at(done, age, seconds, self._tokens_of(done), setup.model.vocabulary, setup.seed, since)

    def _memory(self, held: Held | None, step: Step | None, phase: str, t: float) -> Memory:
        if held is None or step is None:
            return self._device.before()
        first, last = {
            "forward": (step.loaded[self.rank], step.forwarded[self.rank]),
            "backward": (step.forwarded[self.rank], min(step.finished, self._job.lives[self.life].broken_at + 30.0)),
        }.get(phase, (0.0, 0.0))
        share = (t - first) / (last - first) if last > first else 0.0
        return self._device.now(held, phase, min(1.0, max(0.0, share)))

    def _reading(self, now: Memory, step: Step | None, t: float) -> DeviceReading:
        timeline = self._job.lives[self.life]
        broken = timeline.broken
        hung = broken is not None and t > timeline.broken_at
        culprit = broken is not None and broken.rank == self.rank
        lost = t - timeline.broken_at if hung and culprit and broken is not None and broken.name == "lost" else None
        idle = step is None or (hung and culprit)
        load = Load(step.index if step is not None else 1, hung and not culprit, idle, lost)
        return self._sensors.read(now, load, int(t))

    def _steps(self, timeline: Timeline, done: int) -> tuple[StepTimes, ...]:
        """Return the steps finished since the last sample; else the last one again, as an agent does."""
        fresh = [
            timeline.times(step, self.rank, self._tokens_of(step.index), self._micro_batches)
            for step in timeline.steps
            if self._told < step.index <= done and step.ended[self.rank] < NEVER
        ]
        self._told = done
        fresh = fresh[-STEPS_PER_SAMPLE:]
        if fresh:
            self._last = fresh[-1]
        return tuple(fresh) or ((self._last,) if self._last is not None else ())

    def _tokens_of(self, step: int) -> int:
        fault = self._faults.get("tokens")
        return int(self._tokens * (1 + fault.by)) if fault is not None and fault.at(step) else self._tokens

    def _starved(self, step: int) -> float:
        fault = self._faults.get("starved")
        return 0.42 if fault is not None and fault.at(step) else 0.01

    def _collectives(self, timeline: Timeline, step: Step | None, t: float) -> Collectives:
        enqueued, completed = timeline.position(step, self.rank, t) if step is not None else (0, 0)
        return Collectives((GroupPosition("0", "default_pg", self._job.setup.ranks, enqueued, completed),))

    def _looks(self, timeline: Timeline, t: float, clock: float) -> tuple[Look, ...]:
        last = slot_at(clock)
        first = last - int(INTERVAL / LOOK_SECONDS) if self._slot is None else self._slot
        self._slot = last
        looks = []
        for slot in range(max(first + 1, last - 40), last + 1):
            at = t - (clock - time_of(slot))
            step = timeline.step_at(self.rank, at) if at >= timeline.begin else None
            if step is not None:
                looks.append(Look(slot, (timeline.position(step, self.rank, at)[0],)))
        return tuple(looks)

    def _message(self, t: float) -> DeviceMessage:
        step = self._now(t)[1]
        held = self._held
        if held is None:
            held = Held({"forward_end": self._device.before()}, self._reserved_before(), 0, 0)
        reading = allocator(held.moments["forward_end"], held.reserved, held.inactive_split, held.retries)
        return DeviceMessage(
            rank=self.rank, detail=self._sensors.detail(t, step.index if step is not None else 1), allocator=reading
        )

    def _reserved_before(self) -> int:
        before = self._device.before()
        return (before.parameters or 0) + (before.cache or 0)

    def _stack(self, t: float) -> Stack | None:
        timeline, step = self._now(t)
        if step is None or self._stacked or timeline.broken is None:
            return None
        waited = t - step.start[self.rank]
        if waited < max(STACK_SECONDS, 3 * self._job.setup.seconds):
            return None
        self._stacked = True
        away = self.rank == timeline.broken.rank
        return Stack(rank=self.rank, step=step.index - 1, waited=waited, calls=ELSEWHERE if away else BACKWARD)

    def _last_words(self, fate: Fate) -> list[Said]:
        if fate.what == "silent":
            return []
        rank = self.rank
        if fate.what == "oom":
            box = self._box(fate.at)
            return [box, End(rank=rank, how="exception", code=1, detail=box.error)]
        if fate.what == "restart":
            return [End(rank=rank, how="exception", code=1, detail="RuntimeError: loss is NaN")]
        if fate.what == "terminated":
            return [End(rank=rank, how="signal", code=int(signal.SIGTERM), detail="SIGTERM")]
        detail = "SIGKILL, by the kernel's OOM killer" if fate.what == "oomkill" else "SIGKILL"
        return [End(rank=rank, how="signal", code=int(signal.SIGKILL), detail=detail)]

    def _box(self, t: float) -> Box:
        timeline, step = self._now(t)
        done = step.index - 1 if step is not None else 0
        held = self._device.step(max(1, done))
        most = held.moments["forward_end"]
        asked, free = 1792 * MIB, 231 * MIB
        # All that the device had left has gone to activations in this step.
        taken = (most.free or 0) + (most.cache or 0) - free
        memory = Memory(
            **{
                **most.as_dict(),
                "activations": (most.activations or 0) + taken,
                "cache": 0,
                "free": free,
            }
        )
        return Box(
            rank=self.rank,
            error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB.",
            step=done,
            phase="forward",
            asked=asked,
            free=free,
            limit=most.total,
            memory=memory,
            allocator=allocator(memory, (memory.total or 0) - free, 12 * MIB, 2),
            collectives=self._collectives(timeline, step, t),
            inputs=(f"int64 [{self._job.setup.model.micro_batch}, {self._job.setup.model.sequence}]",),
            calls=OUT_OF_MEMORY,
        )
