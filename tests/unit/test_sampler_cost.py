"""What a sample costs, counted: calls, files, wake-ups, messages and memory; none of it depends on the machine."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ranktop.agent import sampler as sampler_module
from ranktop.agent.identity import discover
from ranktop.agent.publisher import Publisher, Said
from ranktop.agent.sampler import ANSWER_SECONDS, Sampler
from ranktop.agent.watch import Watch
from ranktop.probes import allocator
from ranktop.wire.schema import Sample

MOST_PYTHON_CALLS = 230
MOST_C_CALLS = 260
MOST_FILES = 9
"""Opened for a sample of a CPU job: memory, its limits, CPUs, this process, its thread's waits, the socket's state."""

BRANCHES = 12
"""Calls by which two equal samples may differ."""

SAMPLES = 5000

Make = Callable[[int], tuple[Sampler, Publisher]]


class Unheard(Publisher):
    """A publisher that makes and keeps every message, and has no hub to send it to."""

    def _connection(self) -> None:
        return None

    def _require_hub(self) -> None:
        return None


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Return a sampler of a model of so many tensors that has been trained, its thread not started."""
    monkeypatch.setenv("RANKTOP_DEVICE", "host")
    # Else a heap that takes long to walk, of whatever ran before in this process, is walked seldom.
    monkeypatch.setattr(allocator, "_CHEAP", math.inf)
    watches: list[Watch] = []

    def made(tensors: int) -> tuple[Sampler, Publisher]:
        identity = discover("train.py", {})
        sampler = Sampler(identity, tmp_path, "train.py", 1.0)
        watch = sampler.watch = Watch(sampler.host_allocator)
        watch.install()
        watches.append(watch)
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(tensors // 2)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert watch.recorder is not None
        assert watch.recorder.table is not None
        watch.remove()
        # An optimizer keeps what it was called with alive, and is kept itself for as long as the sampler is.
        sampler.kept = model, optimizer  # type: ignore[attr-defined]
        publisher = Unheard(identity.job, 0, os.getpid(), 0, tmp_path)
        for _ in range(5):  # the first make the card, and open what is opened once
            sampler._publish(publisher)
        return sampler, publisher

    yield made
    for watch in watches:
        watch.remove()


def calls_of(call: Callable[[], None]) -> Counter[tuple[str, str]]:
    """Return how often each function was called, by the kind of the call and its name."""
    found: Counter[tuple[str, str]] = Counter()

    def see(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            found["python", frame.f_code.co_name] += 1
        elif event == "c_call":
            found["c", argument.__name__] += 1

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def test_a_sample_costs_the_same_whatever_the_model(make: Make) -> None:
    counts = []
    for tensors in (100, 1000):
        sampler, publisher = make(tensors)
        counts.append(calls_of(lambda: sampler._publish(publisher)))  # noqa: B023 (called at once)
    small, large = counts
    # What the kernel says in between may take another branch or two; what is done for each tensor would show 900 times.
    assert ((small - large) + (large - small)).total() <= BRANCHES
    kinds = Counter[str]()
    for (kind, _), times in large.items():
        kinds[kind] += times
    assert kinds["python"] <= MOST_PYTHON_CALLS
    assert kinds["c"] <= MOST_C_CALLS
    assert 3 <= large["c", "open"] <= MOST_FILES


def test_thousands_of_samples_leave_nothing_behind(make: Make) -> None:
    sampler, publisher = make(10)
    for _ in range(400):  # the queue of what was not sent is full by then
        sampler._publish(publisher)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(SAMPLES):
        sampler._publish(publisher)
    gc.collect()
    # A leak of one object in ten samples would be as many.
    assert sys.getallocatedblocks() - before < SAMPLES / 10
    assert publisher.dropped > SAMPLES


def test_a_sample_is_one_message(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, publisher = make(10)
    said: list[Said] = []
    monkeypatch.setattr(publisher, "pump", lambda *bodies: said.extend(bodies))
    for _ in range(20):
        sampler._publish(publisher)
    assert sum(isinstance(each, Sample) for each in said) == 20
    # The allocator's details go out again every ten intervals.
    assert len(said) <= 22


class Waits:
    """Stands for the event that ends the thread: time passes only in it, and it ends after so many waits."""

    def __init__(self, most: int) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.most = most
        self.late: dict[int, float] = {}
        """Wait -> seconds by which it takes longer than it should."""

    def is_set(self) -> bool:
        return len(self.slept) >= self.most

    def wait(self, seconds: float) -> bool:
        self.slept.append(seconds)
        self.now += seconds + self.late.get(len(self.slept), 0.0)
        return self.is_set()


Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the thread's loop on a clock; returns how often it spoke with its hub."""

    def ran(clock: Waits, *, interval: float = 1.0, settled: bool = True) -> int:
        sampler = Sampler(discover("train.py", {}), tmp_path, "train.py", interval)
        sampler._stopping = clock  # type: ignore[assignment]
        times = {"thread_time": time.thread_time, "perf_counter": time.perf_counter}
        monkeypatch.setattr(sampler_module, "time", SimpleNamespace(monotonic=lambda: clock.now, **times))
        pumps: list[int] = []
        hub = SimpleNamespace(settled=settled, problem="", dropped=0, door=None)
        hub.pump = lambda *bodies: pumps.append(len(bodies))
        hub.send = hub.close = lambda *bodies: None
        monkeypatch.setattr(sampler_module, "Publisher", lambda *identity: hub)
        sampler._sample_until_stopped()
        return len(pumps)

    return ran


def test_the_thread_wakes_once_a_sample_while_its_hub_is_well(run: Run) -> None:
    clock = Waits(6)
    assert run(clock) == 6
    assert clock.slept == pytest.approx([1.0] * 6)


def test_a_hub_that_has_not_answered_is_listened_to_soon(run: Run) -> None:
    clock = Waits(6)
    assert run(clock, settled=False) == 6
    assert clock.slept == pytest.approx([ANSWER_SECONDS, 1.0 - ANSWER_SECONDS] * 3)


def test_a_thread_of_a_long_interval_still_looks_for_its_hub(run: Run) -> None:
    clock = Waits(8)
    run(clock, interval=7.0)
    assert clock.slept == pytest.approx([2.0, 2.0, 2.0, 1.0] * 2)


def test_a_thread_that_could_not_run_for_long_does_not_catch_up(run: Run) -> None:
    clock = Waits(6)
    clock.late = {3: 10.0}  # a C call of the trainer has held the interpreter's lock
    assert run(clock) == 6
    assert clock.slept == pytest.approx([1.0, 1.0, 1.0, 0.2, 1.0, 1.0])


IMPORTS = """
import sys
before = set(sys.modules)
import ranktop.agent.attaching, ranktop.agent.runner, ranktop.agent.trainers, ranktop.agent.identity
import ranktop.agent.imports, ranktop.agent.lifecycle, ranktop.agent.sampler, ranktop.probes.nvml
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def test_a_training_process_gets_no_module_that_it_does_not_need() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    outside = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert {name for name in outside if "cython" not in name} == {"ranktop", "msgspec", "typing_extensions", "zmq"}
    # Of the standard library what torch does not load itself is paid for by the job.
    assert not {"asyncio", "sqlite3", "statistics", "fractions", "multiprocessing", "http", "ssl"} & set(loaded)
    # A hub's and a viewer's parts stay out.
    parts = [name for name in loaded if name.startswith(("ranktop.tui", "ranktop.agent.hub", "ranktop.wire.recording"))]
    assert parts == []
