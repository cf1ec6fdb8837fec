"""The recorder is driven by events; a clock that the test moves makes every phase known in advance."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

import pytest
import torch
from torch import nn

from ranktop.agent.skim import AfterForward, BeforeForward, Skim, after_step, before_step
from ranktop.probes.reading import MomentReading, Resident, StepTimes
from ranktop.probes.steps import FORWARDS_WITHOUT_OPTIMIZER, StepRecorder


class FakeClock:
    name = "device"

    def __init__(self) -> None:
        self.now = 100.0
        self.reached = float("inf")

    def mark(self) -> object:
        return self.now

    def between(self, start: object, end: object) -> float | None:
        assert isinstance(start, float)
        assert isinstance(end, float)
        return None if end > self.reached else end - start


class Loop:
    """A training loop whose phases last as long as the test says."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.allocated = 0
        self.recorder = StepRecorder(self.read, self.clock)

    def read(self) -> MomentReading:
        return MomentReading(allocated=self.allocated, reserved=None, resident=Resident())

    @contextmanager
    def forward(self, seconds: float, grad: bool = True) -> Iterator[None]:
        self.recorder.forward_begin(grad)
        self.clock.now += seconds
        yield
        self.recorder.forward_end(grad)

    def optimizer(self, seconds: float) -> None:
        self.recorder.optimizer_begin()
        self.clock.now += seconds
        self.recorder.optimizer_end()

    def step(self, data: float = 1.0, forward: float = 2.0, backward: float = 4.0, optimizer: float = 0.5) -> None:
        self.clock.now += data
        with self.forward(forward):
            pass
        self.recorder.backward_begin()
        self.clock.now += backward
        self.optimizer(optimizer)


def test_phases_add_up_to_the_step() -> None:
    loop = Loop()
    loop.step()
    loop.step()
    loop.recorder.close()
    first, second = loop.recorder.take()
    assert first == StepTimes(1, 6.5, None, 2.0, 4.0, 0.5, 1, "device")
    assert second == StepTimes(2, 7.5, 1.0, 2.0, 4.0, 0.5, 1, "device")
    assert loop.recorder.take() == ()


def test_accumulation_is_one_step_of_several_forwards() -> None:
    loop = Loop()
    loop.step()
    loop.clock.now += 1.0
    for _ in range(3):
        with loop.forward(2.0):
            pass
        loop.clock.now += 4.0
    loop.optimizer(0.5)
    loop.recorder.close()
    step = loop.recorder.take()[-1]
    assert step.micro_batches == 3
    assert loop.recorder.accumulation == 3
    assert (step.data, step.forward, step.backward, step.optimizer) == (1.0, 6.0, 12.0, 0.5)
    assert step.seconds == 19.5


def test_a_step_has_the_tokens_of_its_own_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monkeypatch.setattr(loop.recorder, "_want_reading", lambda: True)
    for sizes in ([10], [7, 5, 3], [8, None], [None, 8], []):
        for tokens in sizes or [None]:
            with loop.forward(1.0):
                if sizes:  # else: looking at the inputs has failed
                    loop.recorder.add_tokens(tokens)
        loop.optimizer(0.5)
    loop.recorder.close()
    assert [step.tokens for step in loop.recorder.take()] == [10, 15, None, None, None]


def test_waiting_for_a_micro_batch_is_data() -> None:
    loop = Loop()
    loop.step()
    loop.clock.now += 1.0
    for _ in range(3):
        with loop.forward(2.0):
            pass
        loop.recorder.backward_begin()
        loop.clock.now += 4.0
        loop.recorder.backward_end()
        assert loop.recorder.phase == "data"
        loop.clock.now += 0.5
    loop.optimizer(0.25)
    loop.recorder.close()
    step = loop.recorder.take()[-1]
    # The half second after the last backward (clipping, say) is not waiting for data.
    assert (step.data, step.forward, step.backward, step.optimizer) == (2.0, 6.0, 12.5, 0.25)
    assert step.seconds == 20.75


class Lane:
    """The hooks of a root and its optimizer over a loop's recorder, as torch calls them."""

    def __init__(self, recorder: StepRecorder) -> None:
        self.recorder = recorder
        self.root = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.root.parameters())
        self.skim = Skim()
        self.skim.recorder, self.skim.root, self.skim.thread = recorder, weakref.ref(self.root), get_ident()
        self.skim.know(self.optimizer)
        self.left: list[str] = []
        """What the hooks did not do themselves."""
        self.before = BeforeForward(lambda *_: self.left.append("before"), self.skim)
        self.after = AfterForward(lambda *_: self.left.append("after"), self.skim)
        self.step_begins = before_step(self.skim, lambda _: self.left.append("step begins"))
        self.step_ends = after_step(self.skim, lambda _: self.left.append("step ends"))

    def forward(self) -> None:
        self.before(self.root, (), {})
        assert self.recorder.phase == "forward"
        self.after(self.root, (), None)
        assert self.recorder.phase == "backward"

    def step(self) -> None:
        self.step_begins(self.optimizer, (), {})
        assert self.recorder.phase == "optimizer"
        self.step_ends(self.optimizer, (), {})
        assert self.recorder.phase == "data"


def skimmed(loop: Loop) -> Lane:
    """Four followed steps, then the fifth, which has begun, is skimmed."""
    recorder = loop.recorder
    for _ in range(4):
        recorder.next_reading = 0.0
        loop.step()
    recorder.next_reading = float("inf")
    assert recorder.forward_begin(True)
    assert recorder.skimming
    return Lane(recorder)


def test_fast_steps_are_counted_while_skimmed() -> None:
    loop = Loop()
    recorder = loop.recorder
    lane = skimmed(loop)
    assert [s.index for s in recorder.take()] == [1, 2, 3, 4]
    assert not recorder.following
    assert recorder.ended == recorder.count == 4
    lane.step()
    for count in range(5, 9):
        assert recorder.ended == count
        lane.forward()
        assert recorder.count == recorder.ended == count
        lane.forward()  # a second micro-batch of the same step
        lane.step()
        lane.step()  # a second optimizer of the same step
    assert lane.left == []
    recorder.next_reading = 0.0
    lane.before(lane.root, (), {})
    assert lane.left == ["before"]
    assert not recorder.skimming
    loop.step()
    assert recorder.following
    assert (recorder.count, recorder.ended) == (9, 10)
    recorder.close()
    (step,) = recorder.take()
    assert step.index == 10
    assert step.forward == 2.0
    assert step.data is None, "the device was not asked when the skimmed step before it ended"
    assert recorder.count == 10


def test_what_skimming_does_not_know_goes_the_long_way() -> None:
    loop = Loop()
    lane = skimmed(loop)
    other = nn.Linear(1, 1)
    lane.before(other, (), {})
    with torch.no_grad():
        lane.before(lane.root, (), {})
        lane.after(lane.root, (), None)
    lane.after(other, (), None)
    lane.step_begins(torch.optim.SGD(other.parameters()), (), {})
    assert lane.left == ["before", "before", "after", "after", "step begins"]
    lane.left.clear()
    lane.skim.thread = -1  # another one trains
    lane.before(lane.root, (), {})
    lane.step_begins(lane.optimizer, (), {})
    lane.step_ends(lane.optimizer, (), {})
    assert lane.left == ["before", "step begins", "step ends"]
    assert loop.recorder.count == 4
    assert loop.recorder.phase == "forward", "as the step that is skimmed has it"


@pytest.mark.parametrize("left_early", [False, True])
def test_a_followed_step_after_skimmed_ones_leaves_a_validation_before_it_out(left_early: bool) -> None:
    loop = Loop()
    loop.clock.name = "host"
    recorder = loop.recorder
    lane = skimmed(loop)
    if left_early:
        recorder.left_training()
    lane.step()
    if not left_early:
        loop.clock.now += 50.0
        recorder.left_training()
    recorder.next_reading = 0.0
    lane.before(lane.root, (), {})
    loop.step(data=1.0)
    recorder.close()
    step = recorder.take()[-1]
    assert step.index == 6
    if left_early:
        assert step.seconds is not None
        assert step.seconds < 1.0, "by the host's time, which the test does not move"
    else:
        assert (step.seconds, step.data) == (7.5, 1.0)


def test_two_optimizers_make_one_step() -> None:
    loop = Loop()
    loop.step()
    loop.optimizer(0.25)
    loop.step()
    loop.recorder.close()
    steps = loop.recorder.take()
    assert [s.index for s in steps] == [1, 2]
    assert steps[0].optimizer == 0.75


def test_validation_belongs_to_no_step_and_is_not_waiting_for_data() -> None:
    loop = Loop()
    loop.step()
    for _ in range(5):
        with loop.forward(10.0, grad=False):
            assert loop.recorder.phase == "eval"
    loop.step(data=1.0)
    loop.recorder.close()
    second = loop.recorder.take()[1]
    assert second.data == 1.0
    assert second.seconds == 7.5


def test_without_an_optimizer_each_forward_becomes_a_step() -> None:
    loop = Loop()
    for _ in range(FORWARDS_WITHOUT_OPTIMIZER + 10):
        with loop.forward(2.0):
            pass
        loop.clock.now += 1.0
    assert loop.recorder.count == 10
    assert loop.recorder.take()[-1].micro_batches == 1
    loop.optimizer(0.5)
    assert loop.recorder.optimizer_seen
    assert loop.recorder.count == 0, "steps are counted anew once an optimizer says what a step is"


def test_a_step_is_told_only_when_the_device_has_reached_its_end() -> None:
    loop = Loop()
    loop.clock.reached = 0.0
    loop.step()
    loop.step()
    assert loop.recorder.take() == ()
    loop.clock.reached = 1e9
    assert loop.recorder.take() == (), "only the training thread may ask the device: a graph may be in capture there"
    with loop.forward(1.0):
        pass
    assert [s.index for s in loop.recorder.take()] == [1, 2]


def test_a_forward_that_raises_leaves_the_next_step_right() -> None:
    loop = Loop()
    loop.step()
    with pytest.raises(MemoryError), loop.forward(2.0):
        raise MemoryError
    loop.step()
    loop.recorder.close()
    assert [s.index for s in loop.recorder.take()] == [1, 2]


def test_moments_carry_what_was_allocated_then() -> None:
    loop = Loop()
    recorder = loop.recorder
    amounts = {"step_start": 10, "forward_end": 50, "backward_start": 70, "backward_end": 30, "step_end": 40}
    for _ in range(2):
        loop.allocated = amounts["step_start"]
        recorder.forward_begin(True)
        loop.allocated = amounts["forward_end"]
        recorder.forward_end(True)
        loop.allocated = amounts["backward_start"]
        recorder.backward_begin()
        loop.allocated = 1
        recorder.backward_begin()
        loop.allocated = amounts["backward_end"]
        recorder.optimizer_begin()
        loop.allocated = amounts["step_end"]
        recorder.optimizer_end()
    table = recorder.table
    assert table is not None
    assert table.index == 1
    assert table.first
    assert {name: m.allocated for name, m in table.moments.items()} == amounts


def test_readings_are_thinned_to_their_share_of_the_time() -> None:
    """Every reading here takes 2 ms; once warm, no second may hold more than a share of it."""
    import time

    reads = 0

    def slow() -> MomentReading:
        nonlocal reads
        reads += 1
        time.sleep(0.002)
        return MomentReading(allocated=1, reserved=1, resident=Resident())

    recorder = StepRecorder(slow)

    def step() -> None:
        recorder.forward_begin(True)
        recorder.forward_end(True)
        recorder.optimizer_begin()
        recorder.optimizer_end()

    for _ in range(4):
        step()
    warm = reads
    began = time.perf_counter()
    while time.perf_counter() - began < 0.5:
        step()
    assert reads == warm, "five readings of 2 ms need more than three seconds between them"


def closure_step(loop: Loop, data: float = 1.0, backward_seen: bool = True) -> None:
    """One step as an optimizer with a closure makes it: forward and backward within its own call."""
    loop.clock.now += data
    loop.recorder.optimizer_begin()
    with loop.forward(2.0):
        pass
    loop.recorder.backward_begin()
    loop.clock.now += 4.0
    if backward_seen:
        loop.recorder.backward_end()
    loop.clock.now += 0.5
    loop.recorder.optimizer_end()


def test_a_closure_belongs_to_the_phases_it_runs_not_to_its_optimizer() -> None:
    loop = Loop()
    for _ in range(3):
        closure_step(loop)
    loop.recorder.close()
    assert loop.recorder.count == 3
    _, second, third = loop.recorder.take()
    assert second == StepTimes(2, 7.5, 1.0, 2.0, 4.0, 0.5, 1, "device")
    assert third == StepTimes(3, 7.5, 1.0, 2.0, 4.0, 0.5, 1, "device")
    assert loop.recorder.table is not None
    assert list(loop.recorder.table.moments) == [
        "step_start",
        "forward_end",
        "backward_start",
        "backward_end",
        "step_end",
    ]


def test_where_the_end_of_a_closures_backward_was_not_seen_nothing_is_said_of_it() -> None:
    loop = Loop()
    for _ in range(2):
        closure_step(loop, backward_seen=False)
    loop.recorder.close()
    _, second = loop.recorder.take()
    assert (second.seconds, second.forward, second.backward, second.optimizer) == (7.5, 2.0, None, None)


def test_a_closure_after_micro_batches_of_their_own_ends_one_step() -> None:
    loop = Loop()
    for _ in range(2):
        loop.clock.now += 1.0
        with loop.forward(2.0):
            pass
        loop.clock.now += 4.0
        loop.recorder.backward_end()
        closure_step(loop)
    loop.recorder.close()
    _, second = loop.recorder.take()
    assert second == StepTimes(2, 14.5, 2.0, 4.0, 8.0, 0.5, 2, "device")


def test_an_optimizer_that_runs_its_closure_several_times_makes_one_step() -> None:
    loop = Loop()
    for _ in range(2):
        loop.recorder.optimizer_begin()
        for _ in range(3):
            with loop.forward(2.0):
                pass
            loop.clock.now += 4.0
            loop.recorder.backward_end()
            loop.clock.now += 0.5
        loop.recorder.optimizer_end()
    loop.recorder.close()
    _, second = loop.recorder.take()
    assert second == StepTimes(2, 19.5, 0.0, 6.0, 12.0, 1.5, 3, "device")


def test_the_first_call_of_an_optimizer_with_a_closure_is_a_step_though_its_beginning_came_before_the_model() -> None:
    loop = Loop()
    with loop.forward(2.0):
        pass
    loop.recorder.optimizer_end()
    closure_step(loop)
    loop.recorder.close()
    assert loop.recorder.count == 2
