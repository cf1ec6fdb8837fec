"""Load for a hub: real publishers and sockets whose messages were made beforehand, so that the hub is what is measured.

As a script it publishes some ranks of a job until its input ends: ``hub_load.py DIRECTORY JSON``. The numbers are those
of ``simulated.py``, of a few ranks over a quarter of a minute, told again by the others; rank, step and time are each
message's own. A rank costs the machine about half of what it does there.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from bench.simulated import DEVICE_EVERY, STEP_SECONDS, Ranks, Running, SimulatedJob, raise_file_limit
from msgspec.structs import replace

from ranktop.agent.lifecycle import ensure_hub
from ranktop.agent.publisher import Publisher
from ranktop.wire.endpoints import job_directory, read_job_file
from ranktop.wire.schema import Device, Sample

_RANKS = 64
_SECONDS = 16


class Tape:
    """Samples and words on devices of some ranks for some seconds, without end."""

    def __init__(self, job: SimulatedJob) -> None:
        self._first = job.fake.first_step
        ranks = range(min(_RANKS, job.ranks))
        self._samples = [
            [job.sample(rank, at + 1.5, at + 0.5, 0.0) for at in range(_SECONDS)] for rank in ranks
        ]  # fmt: skip
        self._devices = [job.detail(rank, 10.0) for rank in ranks]

    def sample(self, rank: int, elapsed: float, interval: float) -> Sample:
        """Return a rank's sample; its uptime is the machine's clock, so that a viewer can tell how long it took."""
        of_rank = self._samples[rank % len(self._samples)]
        told = of_rank[int(elapsed) % _SECONDS]
        step = self._first + int(elapsed / STEP_SECONDS)
        steps = tuple(replace_index(times, step) for times in told.steps[-1:])
        return replace(told, rank=rank, step=step, steps=steps, interval=interval, uptime=time.monotonic())

    def device(self, rank: int) -> Device:
        """Return what a rank's device says more seldom."""
        return replace(self._devices[rank % len(self._devices)], rank=rank)


def replace_index(times: Any, step: int) -> Any:
    """Return a step's times under another number."""
    return type(times)(
        step, times.seconds, times.data, times.forward, times.backward, times.optimizer, clock=times.clock
    )


class Voice(Publisher):
    """A publisher of a process that closes no descriptors behind its back: nothing is looked at for that."""

    def _leave_if_closed(self) -> None:
        pass


class Recorded(Ranks):
    """Publishers that say messages made beforehand, of ranks that may be processes of their own."""

    patience = 5.0

    def __init__(self, job: SimulatedJob, ranks: range, pids: dict[int, int], directory: Path, interval: float) -> None:
        self._pids, self._tape = pids, Tape(job)
        self._device_every = round(DEVICE_EVERY / interval)
        super().__init__(job, ranks, directory, time.monotonic(), interval)

    def _publisher(self, rank: int, directory: Path) -> Publisher:
        return Voice(self._job.job, rank, self._pids.get(rank, os.getpid()), 0, directory)

    def _send(self, rank: int, turn: int, began: float) -> None:
        publisher = self._publishers[rank]
        publisher.send(self._tape.sample(rank, time.monotonic() - began, self._interval))
        if (turn + rank) % self._device_every == 0:
            publisher.send(self._tape.device(rank))
        publisher.pump()

    def _unconfirmed(self) -> int:
        return sum(max(0, p._sent - p._confirmed) for p in self._publishers.values())


def end_hub(pid: int) -> None:
    """End a hub: at the second word it goes, whoever of its ranks it still believes to live."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for _ in range(100):
            process.terminate()
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(0.2)
                return


@contextlib.contextmanager
def loaded(
    ranks: int, interval: float = 1.0, *, count: int | None = None, own_processes: bool = False
) -> Iterator[Running]:
    """Start a hub and what publishes to it; RANKTOP_RUN_DIR and RANKTOP_STATE_DIR name folders that can go afterwards.

    ``count``: ranks, from the first on, that speak to this hub, where the others are elsewhere.
    ``own_processes``: each rank is said to be a process of its own, which the hub watches, as on a node.
    """
    raise_file_limit()
    job = SimulatedJob(ranks)
    directory = job_directory(job.job.id)
    os.environ["RANKTOP_HUB_LINGER"] = "30"
    ensure_hub(job.job, directory, wait=20.0)
    hub = read_job_file(directory).hub_pid
    here = ranks if count is None else count
    share = -(-here // (2 if here > 1024 else 1))
    children: list[subprocess.Popen[str]] = []
    idle = [subprocess.Popen(["sleep", "600"]) for _ in range(here if own_processes else 0)]
    try:
        for first in range(0, here, share):
            part = min(share, here - first)
            pids = [process.pid for process in idle[first : first + part]]
            order = {"ranks": ranks, "first": first, "count": part, "interval": interval, "pids": pids}
            command = [sys.executable, __file__, str(directory), json.dumps(order)]
            children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline().strip() != "ready":
                raise RuntimeError("a process of the simulated job did not start")
        yield Running(job, directory, hub, time.monotonic(), children)
    finally:
        for child in children:
            child.kill()
            child.wait()
        for process in idle:
            process.kill()
            process.wait()
        end_hub(hub)


def main(directory: Path, order: dict[str, Any]) -> None:
    """Publish the ranks that the order names until a line comes in; then print what was counted."""
    raise_file_limit()
    first = order["first"]
    pids = {first + place: pid for place, pid in enumerate(order["pids"])}
    ranks = Recorded(
        SimulatedJob(order["ranks"]), range(first, first + order["count"]), pids, directory, order["interval"]
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
