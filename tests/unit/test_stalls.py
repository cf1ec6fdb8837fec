"""When a step counts as taking too long, how often its stack is told then, and what is told of real threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ranktop.agent.stalls import CHANGED, NO_MODEL, REPEAT, SHORTEST, TIMES, UNUSUAL, Pace, StallWatch
from ranktop.agent.watch import Watch
from ranktop.wire.schema import Call, Stack


class Recorder:
    """How far a loop has come; its steps may be followed or only counted."""

    def __init__(self) -> None:
        self.count = 0
        self.ended = 0
        self.last_end: float | None = None


class Job:
    """A training loop on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.watch: Any = Watch()
        self.asked: list[int | None] = []
        self.calls: tuple[tuple[str, int, str], ...] = (("train.py", 9, "main"),)
        self.reason = ""
        self.stalls = StallWatch(3, lambda: self.now, self._calls_of)

    def _calls_of(self, thread: int | None) -> tuple[tuple[tuple[str, int, str], ...], str]:
        self.asked.append(thread)
        return self.calls, self.reason

    def model_runs(self) -> None:
        self.watch.recorder = Recorder()

    def steps(self, seconds: float, count: int = 1, looks: int = 1) -> None:
        """Let so many steps of so many seconds end between one look and the next."""
        for _ in range(looks):
            self.now += count * seconds
            self.watch.recorder.ended += count
            self.watch.recorder.count = self.watch.recorder.ended - 1
            self.watch.recorder.last_end = self.now
            assert self.look() is None

    def look(self) -> Stack | None:
        return self.stalls.look(self.watch)

    def waits(self, seconds: float) -> Stack | None:
        self.now += seconds
        return self.look()


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.mark.parametrize(
    ("seconds", "count", "limit"), [(0.01, 100, SHORTEST), (0.5, 2, SHORTEST), (1.0, 1, 3.0), (40.0, 1, 120.0)]
)
def test_a_step_is_too_long_beyond_three_times_the_usual_and_two_seconds(
    job: Job, seconds: float, count: int, limit: float
) -> None:
    assert limit == max(TIMES * seconds, SHORTEST)
    job.model_runs()
    job.look()
    job.steps(seconds, count, looks=4)
    assert job.waits(limit - 0.01) is None
    stack = job.waits(0.02)
    assert stack is not None
    assert stack.waited == pytest.approx(limit + 0.01)
    assert (stack.rank, stack.step) == (3, job.watch.recorder.count)
    assert stack.calls == (Call("train.py", 9, "main"),)
    job.steps(seconds, count)


def test_a_pause_now_and_then_does_not_become_the_usual(job: Job) -> None:
    job.model_runs()
    job.look()
    job.steps(1.0, looks=8)
    job.watch.recorder.last_end = job.now = job.now + 300.0  # a validation
    job.watch.recorder.ended += 1
    assert job.look() is None
    assert job.waits(3.1) is not None


def test_before_a_step_time_is_usual_the_limit_is_longer(job: Job) -> None:
    job.model_runs()
    job.look()
    assert job.waits(UNUSUAL) is None
    assert job.waits(0.1) is not None, "the first forward has not come to the end of a step"
    job.steps(60.0)
    assert job.waits(UNUSUAL) is None, "one end tells no step time: the next one may compile too"
    stack = job.waits(0.1)
    assert stack is not None
    assert stack.waited == pytest.approx(UNUSUAL + 0.1)


def test_without_a_model_the_import_of_torch_is_the_beginning(job: Job) -> None:
    assert job.stalls.look(None) is None
    job.now += 1000.0
    assert job.stalls.look(None) is None
    assert job.look() is None
    assert job.waits(NO_MODEL) is None
    stack = job.waits(0.1)
    assert stack is not None
    assert stack.step == 0
    assert stack.waited == pytest.approx(NO_MODEL + 0.1)
    assert job.asked == [None], "of the main thread"
    job.model_runs()
    assert job.look() is None, "the model's own time begins"
    job.watch.thread = 77
    assert job.waits(UNUSUAL + 0.1) is not None
    assert job.asked == [None, 77]


def test_another_model_begins_anew(job: Job) -> None:
    job.model_runs()
    job.look()
    job.steps(0.01, 100, looks=3)
    job.now += 1.0
    job.watch.recorder = None
    assert job.look() is None
    job.model_runs()
    job.look()
    assert job.waits(SHORTEST + 1.0) is None


def test_a_model_that_is_followed_no_more_tells_nothing(job: Job) -> None:
    job.model_runs()
    job.look()
    job.steps(1.0, looks=3)
    job.watch.enabled = False
    assert job.waits(1000.0) is None


def test_a_stack_is_told_again_when_it_changed_or_after_a_while(job: Job) -> None:
    job.model_runs()
    job.look()
    job.steps(1.0, looks=3)
    assert job.waits(10.0) is not None
    assert job.waits(CHANGED + 0.1) is None
    job.calls = (("train.py", 10, "main"),)
    assert job.waits(0.1) is None, "another line of the same calls"
    job.calls = (("train.py", 10, "main"), ("train.py", 30, "load"))
    assert job.waits(0.1) is not None
    job.calls = (("train.py", 10, "main"), ("train.py", 40, "read"))
    assert job.waits(0.1) is None, "not at every look"
    assert job.waits(CHANGED) is not None
    job.calls = (("other.py", 1, "outer"), *job.calls)
    assert job.waits(REPEAT - 0.1) is not None, "two calls have become three"
    job.calls = (("another.py", 1, "outer"), *job.calls)
    assert job.waits(REPEAT - 0.1) is None, "the innermost are the same"
    assert job.waits(0.1) is not None
    job.steps(1.0)
    assert job.waits(3.1) is not None, "the next stall is told at once"


def test_a_thread_that_is_gone_is_told_with_the_reason(job: Job) -> None:
    job.model_runs()
    job.look()
    job.steps(1.0, looks=3)
    job.calls, job.reason = (), "the thread that trained has ended"
    stack = job.waits(10.0)
    assert stack is not None
    assert (stack.calls, stack.reason) == ((), "the thread that trained has ended")


def test_pace_counts_from_the_first_end_seen() -> None:
    pace = Pace()
    assert pace.usual() is None
    for ended, at in ((5, 100.0), (5, 100.0), (9, 102.0), (9, 102.0), (10, 102.5)):
        pace.see(ended, at)
    assert pace.usual() == 0.5
    pace.see(1, 200.0)  # the first optimizer has begun the count anew
    pace.see(2, 201.5)
    assert pace.usual() == 0.5


# -- real threads ------------------------------------------------------------------------------------------------------


@pytest.fixture
def watch() -> Iterator[Watch]:
    found = Watch()
    found.install()
    yield found
    found.remove()


class Trainer:
    """Trains in a thread of its own until it meets what it cannot pass."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.batches: queue.Queue[torch.Tensor] = queue.Queue()

    def spin(self) -> None:
        while not self.release.is_set():
            pass

    def blocked_loader(self) -> None:
        self.batches.get(timeout=120)

    def sleep(self) -> None:
        while not self.release.is_set():
            time.sleep(0.2)

    def run(self, obstacle: Callable[[], None]) -> None:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(1000):
            if step == 200:
                obstacle()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            time.sleep(0.001)


@pytest.mark.parametrize("obstacle", ["spin", "blocked_loader", "sleep"])
def test_a_real_loop_that_stops_is_told_where_and_recovers(watch: Watch, obstacle: str) -> None:
    trainer = Trainer()
    thread = threading.Thread(target=trainer.run, args=(getattr(trainer, obstacle),))
    stalls = StallWatch(0)
    thread.start()
    try:
        stack: Stack | None = None
        deadline = time.monotonic() + 60
        while stack is None:
            assert time.monotonic() < deadline
            assert thread.is_alive()
            stack = stalls.look(watch)
            time.sleep(0.02)
        functions = [call.function for call in stack.calls]
        assert functions.index("run") < functions.index(obstacle)
        assert {call.file for call in stack.calls} >= {"threading.py", "test_stalls.py"}
        assert stack.step > 3, "most steps before it were only counted"
        assert SHORTEST < stack.waited < UNUSUAL
    finally:
        trainer.release.set()
        trainer.batches.put(torch.ones(1))
        thread.join()
    assert watch.errors == 0, watch.last_error
