"""What the agent does in the training thread, counted: calls of Python, walks of the tensors, what is left behind.

Counts don't depend on the machine. What they cost is measured in ``tests/bench/bench_agent.py``.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from ranktop.agent.facts import survey
from ranktop.agent.watch import Watch
from ranktop.probes.model import WINDOW, ModelProbe

ROOTS = tuple(str(Path(__file__).parents[2] / root) for root in ("agent", "probes"))


@pytest.fixture
def watch() -> Iterator[Watch]:
    found = Watch()
    found.install()
    yield found
    found.remove()


class Loop:
    """A model of so many tensors, two to a module, trained in this thread."""

    def __init__(self, tensors: int = 20) -> None:
        self.model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(tensors // 2)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.data = torch.ones(2, 4)

    def micro_batch(self) -> None:
        self.model(self.data).sum().backward()

    def step(self, micro_batches: int = 1) -> None:
        for _ in range(micro_batches):
            self.micro_batch()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Calls:
    """Counts the calls of Python from the entry of a function of ours until it returns: its own and all within."""

    def __init__(self) -> None:
        self.own = self.all = self._depth = 0

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and self._depth:
            self._depth -= 1
        elif event == "call":
            ours = frame.f_code.co_filename.startswith(ROOTS)
            self.own += ours
            if ours or self._depth:
                self._depth += 1
                self.all += 1

    def of(self, call: Callable[[], None]) -> Calls:
        sys.setprofile(self._note)
        try:
            call()
        finally:
            sys.setprofile(None)
        return self


def trained(watch: Watch, loop: Loop, steps: int = 6) -> None:
    for _ in range(steps):
        loop.step()
    assert watch.recorder is not None
    assert watch.errors == 0, watch.last_error


def follow(watch: Watch, yes: bool) -> None:
    """Have the next step followed, or only counted."""
    assert watch.recorder is not None
    watch.recorder.next_reading = 0.0 if yes else float("inf")


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_step_that_is_only_counted_costs_one_function_a_hook(watch: Watch, micro_batches: int) -> None:
    loop = Loop()
    trained(watch, loop)
    follow(watch, False)
    loop.step(micro_batches)
    found = Calls().of(lambda: loop.step(micro_batches))
    assert watch.recorder is not None
    assert watch.recorder.skimming
    assert watch.recorder.ended == 8
    hooks = 2 * micro_batches + 2
    assert found.own == hooks
    assert found.all <= 2 * hooks, "each asks whether it is being compiled, and calls nothing else"


def test_a_step_that_is_only_counted_leaves_nothing_behind(watch: Watch) -> None:
    loop = Loop(2)
    trained(watch, loop)
    follow(watch, False)

    def left(steps: int) -> int:
        before = sys.getallocatedblocks()
        for _ in range(steps):
            loop.step()
        return sys.getallocatedblocks() - before

    gc.collect()
    gc.disable()
    try:
        left(20)
        with_agent = min(left(200) for _ in range(3))
        watch.remove()
        left(20)
        without = min(left(200) for _ in range(3))
    finally:
        gc.enable()
    assert with_agent <= without + 20, "not a block for ten steps"


def followed_calls(tensors: int) -> int:
    """Return the calls of Python that a followed step of a model costs."""
    watch = Watch()
    watch.install()
    try:
        loop = Loop(tensors)
        trained(watch, loop)
        follow(watch, True)
        found = Calls().of(loop.step)
        assert watch.recorder is not None
        assert watch.recorder.following
        assert watch.recorder.table is not None
        assert watch.errors == 0, watch.last_error
        return found.all
    finally:
        watch.remove()


def test_a_followed_step_costs_a_bounded_number_of_calls_however_large_the_model() -> None:
    small, large = followed_calls(20), followed_calls(1000)
    assert small <= 240
    assert large <= small + WINDOW, "one look at each of so many modules; the rest is the next steps'"


def test_tensors_are_walked_only_when_the_layout_has_changed(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[int] = []
    walk = ModelProbe._walk

    def counted(probe: ModelProbe, root: nn.Module) -> None:
        walks.append(1)
        walk(probe, root)

    loop = Loop()
    trained(watch, loop)
    monkeypatch.setattr(ModelProbe, "_walk", counted)
    for number in range(20):
        follow(watch, number % 2 == 0)
        loop.step()
    assert walks == []
    loop.model[3].weight.requires_grad_(False)
    follow(watch, True)
    loop.step()
    assert walks == [1]
    follow(watch, True)
    loop.step()
    assert walks == [1]


def test_a_survey_for_which_there_is_no_reason_is_a_thousandth_of_the_time(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    surveys: list[int] = []

    def counted(*given: Any) -> Any:
        surveys.append(1)
        return survey(*given)

    loop = Loop()
    trained(watch, loop)
    assert watch.model is not None
    loop.model.register_buffer("running", torch.zeros(5))
    follow(watch, True)
    loop.step()
    monkeypatch.setattr("ranktop.agent.watch.survey", counted)

    def walk_by_the_clock() -> None:
        assert watch.model is not None
        watch.model._next_walk = 0.0
        follow(watch, True)
        loop.step()

    watch._survey_again = 0.0
    walk_by_the_clock()  # the buffer is new
    walk_by_the_clock()
    assert surveys == [1], "the second walk has found nothing, and its time has not come"
    watch._survey_again = 0.0
    walk_by_the_clock()
    assert surveys == [1, 1]
    loop.model.register_buffer("running", torch.zeros(500))
    walk_by_the_clock()
    assert surveys == [1, 1, 1]


def surveyed_after(
    watch: Watch, loop: Loop, monkeypatch: pytest.MonkeyPatch, change: Callable[[ModelProbe], None]
) -> bool:
    """Whether a change is surveyed in the next followed step although the time for one without a reason is far off."""
    surveys: list[int] = []

    def counted(*given: Any) -> Any:
        surveys.append(1)
        return survey(*given)

    trained(watch, loop)
    assert watch.model is not None
    monkeypatch.setattr("ranktop.agent.watch.survey", counted)
    watch._survey_again = float("inf")
    watch.model._next_walk = 0.0
    follow(watch, True)
    loop.step()
    assert surveys == [], "walked because it was time, and nothing was found"
    change(watch.model)
    follow(watch, True)
    loop.step()
    return surveys == [1]


def test_a_change_that_a_reading_meets_before_the_look_is_surveyed_at_once(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()

    def replace(_: ModelProbe) -> None:
        loop.model[9] = nn.Linear(4, 7)

    assert surveyed_after(watch, loop, monkeypatch, replace)


def test_a_freeze_that_only_a_walk_by_the_clock_finds_is_surveyed_at_once(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(4 * WINDOW)

    def freeze(probe: ModelProbe) -> None:
        loop.model[(probe._at + WINDOW + 1) % len(loop.model)].requires_grad_(False)
        probe._next_walk = 0.0

    assert surveyed_after(watch, loop, monkeypatch, freeze)


class Watched:
    """One watch of several over the same loop, that follows steps by a rule of its own."""

    def __init__(self, follows: Callable[[], bool]) -> None:
        self.watch = Watch()
        self.watch.install()
        self.follows = follows

    def choose(self) -> None:
        if self.watch.recorder is not None:
            follow(self.watch, self.follows())

    def told(self) -> tuple[int, int, str]:
        assert self.watch.recorder is not None
        assert self.watch.errors == 0, self.watch.last_error
        return self.watch.recorder.count, self.watch.recorder.ended, self.watch.recorder.phase


@pytest.mark.parametrize("seed", range(4))
def test_counting_says_of_a_loop_what_following_says(seed: int) -> None:
    """Accumulation, validation, two optimizers, forwards that come to nothing: whoever skims counts the same steps."""
    dice = random.Random(seed)
    watches = [Watched(lambda: True), Watched(lambda: False), Watched(lambda: dice.random() < 0.3)]
    try:
        loop = Loop(4)
        second = torch.optim.SGD(loop.model[1].parameters(), lr=0.1)
        for _ in range(5):
            loop.step()

        def validate() -> None:
            with torch.no_grad():
                loop.model(loop.data)

        def forward_only() -> None:
            loop.model(loop.data)

        events = [loop.micro_batch, loop.optimizer.step, validate, forward_only, second.step]
        for _ in range(300):
            for each in watches:
                each.choose()
            event = dice.choices(events, weights=[6, 4, 1, 1, 2])[0]
            event()
            told = [each.told() for each in watches]
            # Only who follows sees where a backward ends, or that a validation came in the middle of a step.
            if event in (loop.micro_batch, validate):
                told = [(*each[:2], "") for each in told]
            assert told[1] == told[0], event
            assert told[2] == told[0], event
        assert told[0][0] > 20
    finally:
        for each in watches:
            each.watch.remove()
