"""Ranks that do not exist, on the real wire: their cards and moving samples go through real publishers to a real hub.

As a script it publishes some ranks of a job until its input ends: ``simulated.py DIRECTORY JSON``. Each rank has a
publisher and a socket of its own, as in a job; they share one ZeroMQ context, because thousands of I/O threads in one
process would measure the scheduler.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
import psutil
import zmq
from fake_device import h100_detail
from fake_job import MIB, FakeJob, Spec, fsdp_job

from ranktop.agent.lifecycle import ensure_hub
from ranktop.agent.publisher import Publisher
from ranktop.budget.terms import Memory
from ranktop.probes.reading import (
    AllocatorReading,
    Collectives,
    DeviceProcess,
    DeviceReading,
    GroupPosition,
    StepTimes,
)
from ranktop.wire.endpoints import job_directory, read_job_file
from ranktop.wire.schema import LOOK_SECONDS, Card, Cost, Device, Job, Look, Sample, Table

STEP_SECONDS = 0.9
"""Shorter than an interval, so that every sample brings a new step: the case in which most changes."""

SHARES = {"step_start": 0.02, "forward_end": 0.97, "backward_start": 1.0, "backward_end": 0.06, "step_end": 0.02}
TICK = 0.002
DEVICE_EVERY = 10
"""Samples from one message about the device to the next, as in a job whose devices are sound."""


def wobble(rank: int, at: int) -> float:
    """Return a number from -1 to 1 that looks like noise and is the same in every process."""
    return math.sin(12.9898 * rank + 78.233 * at) * math.cos(3.7 * at + rank)


@dataclass
class SimulatedJob:
    """An FSDP2 job on 80 GB devices whose memory breathes, whose steps vary, and whose sensors flicker."""

    ranks: int
    job_id: str = ""
    """Another one than usual, where several are to run beside each other."""

    def __post_init__(self) -> None:
        self.fake: FakeJob = fsdp_job(self.ranks)
        if self.job_id:
            self.fake.job = msgspec.structs.replace(self.fake.job, id=self.job_id)

    @property
    def job(self) -> Job:
        """Identity of the job."""
        return self.fake.job

    def card(self, rank: int, pid: int) -> Card:
        """Return a rank's card."""
        return msgspec.structs.replace(self.fake.card(rank), pid=pid, pids=(100_000 + rank,))

    def device(self, rank: int, elapsed: float) -> DeviceReading:
        """Return what NVML would say of a rank's device."""
        spec, second = self.fake.specs[rank], int(elapsed)
        memory = self._memory(spec, 1.0, spec.activations)
        used = memory.used() or 0
        return DeviceReading(
            total=spec.total, used=used, free=memory.free, process_used=used - spec.other,
            utilization=max(0, min(100, 94 + round(6 * wobble(rank, second)))),
            power=round(640.0 + 40 * wobble(rank + 7, second), 3), power_limit=700.0,
            temperature=60 + rank % 7 + round(wobble(rank, second // 8)), sm_clock=1755 + 15 * (second % 3),
            memory_clock=2619, reserved=552 * MIB, throttle=("software power cap",) if second % 3 else (),
            processes=(DeviceProcess(pid=100_000 + rank, bytes=used - spec.other),), process_pid=100_000 + rank,
        )  # fmt: skip

    def detail(self, rank: int, elapsed: float) -> Device:
        """Return what a rank's device and allocator say more seldom."""
        spec = self.fake.specs[rank]
        detail = replace(h100_detail(rank), energy=1.62e9 + 650 * elapsed, pcie_tx=1_240_000_000 + 1000 * int(elapsed))
        held = sum(spec.states) + spec.buffers + spec.activations
        allocator = AllocatorReading(
            allocated=held, reserved=held + spec.cache, peak_allocated=held, inactive_split=96 * MIB, retries=0, ooms=0,
            backend="native", active=held, requested=held - 3 * MIB, segments=412, largest_free=64 * MIB,
        )  # fmt: skip
        return Device(rank=rank, detail=detail, allocator=allocator)

    def _memory(self, spec: Spec, share: float, largest: int) -> Memory:
        parameters, gradients, optimizer = spec.states
        activations = int(largest * share)
        cache = spec.cache + spec.activations - activations
        used = parameters + gradients + optimizer + activations + spec.buffers + cache + spec.runtime + spec.other
        return Memory(
            parameters=parameters, gradients=gradients, optimizer=optimizer, activations=activations,
            buffers=spec.buffers, cache=cache, runtime=spec.runtime, other=spec.other,
            free=spec.total - used, total=spec.total,
        )  # fmt: skip

    def sample(self, rank: int, elapsed: float, before: float, uptime: float) -> Sample:
        """Return the sample of a rank ``elapsed`` seconds into the job, the one before it taken at ``before``."""
        spec, fake = self.fake.specs[rank], self.fake
        last, former = int(elapsed / STEP_SECONDS), int(before / STEP_SECONDS)
        step, phase = fake.first_step + last, elapsed / STEP_SECONDS % 1.0
        # Packed sequences differ a little from step to step.
        largest = int(spec.activations * (1 + 0.004 * wobble(rank, last)))
        share = 0.02 + phase / 0.35 if phase < 0.35 else max(0.04, 1.0 - (phase - 0.35) / 0.55)
        moments = {name: self._memory(spec, part, largest) for name, part in SHARES.items()}
        position = self._position(elapsed)
        return Sample(
            rank=rank, uptime=uptime, now=self._memory(spec, min(1.0, share), largest),
            device=self.device(rank, elapsed), step=step,
            table=Table(step=step, moments=moments, age=phase * STEP_SECONDS),
            step_age=phase * STEP_SECONDS, steps=tuple(self._times(rank, at) for at in range(former + 1, last + 1)),
            peak_allocated=int(1.02 * sum(spec.states)) + spec.activations + spec.buffers,
            inactive_split=96 * MIB, retries=0, ooms=0,
            phase="forward" if phase < 0.35 else "backward" if phase < 0.92 else "optimizer",
            collectives=Collectives((GroupPosition("0", "default", self.ranks, position, position - 1),)),
            cost=Cost(cpu_s=0.0004, hook_s=0.0002), looks=self._looks(elapsed, before, uptime), starved=0.0,
        )  # fmt: skip

    def _position(self, elapsed: float) -> int:
        """Return how many collectives every rank has enqueued by then: they work in lockstep."""
        step, phase = divmod(elapsed / STEP_SECONDS, 1.0)
        return 226 * (self.fake.first_step + int(step)) + int(226 * phase)

    def _looks(self, elapsed: float, before: float, uptime: float) -> tuple[Look, ...]:
        """Return the looks since the sample before; ``uptime`` is the machine's monotonic clock."""
        first, last = (int((uptime - ago) / LOOK_SECONDS) for ago in (elapsed - before, 0.0))
        return tuple(
            Look(slot, (self._position(elapsed - uptime + slot * LOOK_SECONDS),)) for slot in range(first + 1, last + 1)
        )

    def _times(self, rank: int, step: int) -> StepTimes:
        seconds = STEP_SECONDS * (1 + 0.03 * wobble(rank, step))
        data, forward, optimizer = 0.017 * seconds, 0.307 * seconds, 0.048 * seconds
        return StepTimes(
            index=self.fake.first_step + step, seconds=seconds, data=data, forward=forward, optimizer=optimizer,
            backward=seconds - data - forward - optimizer, clock="device",
        )  # fmt: skip


class Ranks:
    """Publishers of some ranks, each at its own time within the interval."""

    patience = 2.0
    """Seconds for the hub to have everything at the end."""

    def __init__(self, job: SimulatedJob, ranks: range, directory: Path, epoch: float, interval: float) -> None:
        self._job, self._interval, self._epoch = job, interval, epoch
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        context.max_sockets = 2 * len(ranks) + 16
        self.sent = 0
        self._publishers: dict[int, Publisher] = {}
        for rank in ranks:
            publisher = self._publisher(rank, directory)
            publisher._context = context
            self._publishers[rank] = publisher
        self._order = sorted(ranks, key=lambda rank: rank * 0.6180339887 % 1.0)

    def _publisher(self, rank: int, directory: Path) -> Publisher:
        return Publisher(self._job.job, rank, os.getpid(), 0, directory)

    def connect(self, seconds: float) -> None:
        """Send every card and wait until the hub has answered each."""
        for rank, publisher in self._publishers.items():
            publisher.send(self._job.card(rank, os.getpid()))
            publisher.pump()
        limit = time.monotonic() + seconds
        while waiting := [publisher for publisher in self._publishers.values() if not publisher.connected]:
            if time.monotonic() > limit:
                raise RuntimeError(f"{len(waiting)} ranks did not reach the hub: {waiting[0].problem}")
            for publisher in waiting:
                publisher.pump()
            time.sleep(0.02)

    def publish(self, stop: threading.Event) -> None:
        """Publish a sample of each rank every interval until told to stop."""
        began = time.monotonic()
        turn = 0
        while not stop.is_set():
            for place, rank in enumerate(self._order):
                due = began + (turn + place / len(self._order)) * self._interval
                if due > time.monotonic() + TICK and stop.wait(due - time.monotonic()):
                    break
                self._send(rank, turn, began)
                self.sent += 1
            turn += 1

    def _send(self, rank: int, turn: int, began: float) -> None:
        """Say what a rank says in the ``turn``-th interval since ``began``."""
        now = time.monotonic()
        elapsed = now - self._epoch
        # The uptime is read on the machine-wide clock, so that a viewer can tell how long the sample was on its way.
        sample = self._job.sample(rank, elapsed, elapsed - self._interval, uptime=time.monotonic())
        publisher = self._publishers[rank]
        publisher.send(sample)
        if (int(elapsed / self._interval) + rank) % DEVICE_EVERY == 0:
            publisher.send(self._job.detail(rank, elapsed))
        publisher.pump()

    def close(self) -> dict[str, int]:
        """Wait for the hub to have everything; returns counts."""
        limit = time.monotonic() + self.patience
        while time.monotonic() < limit and any(p._confirmed < p._sent for p in self._publishers.values()):
            for publisher in self._publishers.values():
                publisher.pump()
            time.sleep(0.02)
        unconfirmed = self._unconfirmed()
        dropped = sum(publisher.dropped for publisher in self._publishers.values())
        for publisher in self._publishers.values():
            publisher.close(0)
        return {"sent": self.sent, "dropped": dropped, "unconfirmed": unconfirmed}

    def _unconfirmed(self) -> int:
        """Return how many ranks have not had everything confirmed."""
        return sum(p._confirmed < p._sent for p in self._publishers.values())


def raise_file_limit() -> None:
    """Allow as many descriptors as this user may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@dataclass
class Running:
    """A simulated job at work, and the pid of its hub."""

    job: SimulatedJob
    directory: Path
    hub: int
    epoch: float
    processes: list[subprocess.Popen[str]]

    def stop(self) -> dict[str, int]:
        """End the ranks; returns what they counted, summed."""
        totals: dict[str, int] = {}
        for process in self.processes:
            answer, _ = process.communicate("stop\n", timeout=60)
            for key, value in json.loads(answer.splitlines()[-1]).items():
                totals[key] = totals.get(key, 0) + value
        return totals


@contextlib.contextmanager
def running(
    ranks: int, processes: int = 1, interval: float = 1.0, *, job_id: str = "", first: int = 0, count: int | None = None
) -> Iterator[Running]:
    """Start a hub and the processes of a simulated job; RANKTOP_RUN_DIR must name a folder that can go afterwards.

    ``count`` of its ranks from ``first`` on, where others are elsewhere.
    """
    raise_file_limit()
    job = SimulatedJob(ranks, job_id)
    directory = job_directory(job.job.id)
    os.environ["RANKTOP_HUB_LINGER"] = "30"
    os.environ.setdefault("RANKTOP_STATE_DIR", str(directory.parent.parent / "state"))
    ensure_hub(job.job, directory, wait=20.0)
    epoch = time.monotonic()
    end = ranks if count is None else first + count
    share = -(-(end - first) // processes)
    children: list[subprocess.Popen[str]] = []
    hub = read_job_file(directory).hub_pid
    try:
        for start in range(first, end, share):
            order = {
                "ranks": ranks,
                "job_id": job_id,
                "first": start,
                "count": min(share, end - start),
                "epoch": epoch,
                "interval": interval,
            }
            command = [sys.executable, __file__, str(directory), json.dumps(order)]
            children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline().strip() != "ready":
                raise RuntimeError("a process of the simulated job did not start")
        yield Running(job, directory, hub, epoch, children)
    finally:
        for child in children:
            child.kill()
            child.wait()
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(hub)
            process.terminate()
            process.wait(10)


def main(directory: Path, order: dict[str, Any]) -> None:
    """Publish the ranks that the order names until a line comes in; then print what was counted."""
    raise_file_limit()
    job = SimulatedJob(order["ranks"], order["job_id"])
    ranks = Ranks(
        job, range(order["first"], order["first"] + order["count"]), directory, order["epoch"], order["interval"]
    )
    ranks.connect(60.0)
    print("ready", flush=True)
    stop = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    ranks.publish(stop)
    print(json.dumps(ranks.close()), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
