"""What a script may tell with ``report`` and ``annotate``: any number, from anywhere, at no cost and never an error."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy
import pytest
import torch

import ranktop.agent
from ranktop.agent import annotate, progress, report
from ranktop.agent.identity import discover
from ranktop.agent.progress import Reports
from ranktop.agent.sampler import Sampler
from ranktop.agent.told_numbers import SLOTS, SPACING, Reader
from ranktop.probes.steps import StepRecorder
from ranktop.wire.codec import decode_body, encode_body
from ranktop.wire.progress import Progress, loss_step
from ranktop.wire.schema import Header, Sample

NOW = [100.0]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reports]:
    NOW[0] = 100.0
    monkeypatch.setattr(progress, "_clock", lambda: NOW[0])
    made = progress.begin(lambda: None)
    yield made
    progress.end(made)
    assert progress.current is None


def known(reports: Reports) -> Progress:
    found = reports.progress()
    assert found is not None
    body = decode_body(Header("sample", 0, 1, 0, 0), encode_body(Sample(rank=0, progress=found)))
    assert isinstance(body, Sample)
    assert body.progress == found, "it can be sent"
    return found


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return capfd.readouterr().err.splitlines()


def test_nothing_is_known_before_anything_is_told(reports: Reports) -> None:
    assert reports.progress() is None
    assert reports.activity(None) == ""


def test_what_is_told_keeps_the_step_and_the_time_it_was_told_with(reports: Reports) -> None:
    report(step=1000, total_steps=5000, loss=2.5, learning_rate=3e-4, epoch=0.5, eval_loss=2.75)
    NOW[0] += 30.0
    report(step=1012)
    NOW[0] += 0.5
    found = known(reports)
    assert (found.step, found.total_steps, found.loss, found.learning_rate) == (1012, 5000, 2.5, 3e-4)
    assert found.values == {"eval_loss": 2.75}
    assert found.steps == dict.fromkeys(("epoch", "loss", "learning_rate", "eval_loss"), 1000)
    assert found.age == pytest.approx(0.5)
    assert found.ages["loss"] == pytest.approx(30.5)
    assert loss_step(found) == 1000
    assert found.source == "script"


def test_a_step_told_by_itself_is_that_of_what_follows(reports: Reports) -> None:
    report(step=7)
    report(loss=1.0)
    assert loss_step(known(reports)) == 7


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (2, 2.0), (True, 1.0), (numpy.float32(0.5), 0.5), (numpy.int64(3), 3.0), (numpy.array([0.25]), 0.25),
        (Fraction(1, 4), 0.25), (Decimal("1.5"), 1.5), (torch.tensor(0.75), 0.75), (torch.tensor([3]), 3.0),
        (torch.tensor(0.5, requires_grad=True) * 2, 1.0), (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.nn.Parameter(torch.tensor(2.0)), 2.0),
    ],
    ids=str,
)  # fmt: skip
def test_any_kind_of_number_is_read(
    reports: Reports, value: Any, number: float, capfd: pytest.CaptureFixture[str]
) -> None:
    report(step=1, loss=value)
    assert known(reports).loss == number
    assert said(capfd) == []


@pytest.mark.parametrize(
    ("value", "step"),
    [(torch.tensor(7), 7), (numpy.int64(7), 7), (7.0, 7), (2**63, None), (-(2**70), None), (10**400, None)],
    ids=lambda value: str(value)[:12],
)
def test_a_step_is_any_whole_number_that_a_message_can_carry(reports: Reports, value: Any, step: int | None) -> None:
    report(step=value, total_steps=value, loss=0.5)
    found = known(reports)
    assert (found.step, found.total_steps, found.loss) == (step, step, 0.5)
    msgspec.msgpack.encode(found)


class Sharded(torch.Tensor):
    """As a DTensor looks from outside: its value is in parts."""

    _local_tensor = torch.tensor(1.0)
    placements = (SimpleNamespace(is_replicate=lambda: False),)


class Replicated(Sharded):
    placements = (SimpleNamespace(is_replicate=lambda: True),)


class Rude:
    """An object that raises whatever it is asked."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("2.5", "is a str, not a number"), ([2.5], "is a list, not a number"), (10**400, "is too large"),
        (2.5j, "is a complex, not a number"), (torch.zeros(3), "holds no single number"),
        (torch.empty((), device="meta"), "holds no single number"), (numpy.zeros(3), "several numbers"),
        (torch.tensor(1j), "holds no single number"), (torch.tensor(1.0).as_subclass(Sharded), "not replicated"),
        (Rude(), "RuntimeError while it was read"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_no_number_costs_one_line_and_nothing_else(
    reports: Reports, value: Any, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for step in range(3):
        report(step=step, loss=value, learning_rate=0.5)
    (line,) = said(capfd)
    assert line.startswith("ranktop: report: ")
    assert why in line
    assert line.endswith("ignored")
    found = known(reports)
    assert found.loss is None
    assert found.step == 2


def test_a_replicated_dtensor_is_read_by_its_own_part(reports: Reports) -> None:
    report(loss=torch.tensor(5.0).as_subclass(Replicated))
    assert known(reports).loss == 1.0


def test_a_mode_of_the_script_does_not_see_what_is_asked(reports: Reports) -> None:
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    loss = torch.tensor(2.0)
    with Mode():
        report(loss=loss)
    assert seen == []
    assert known(reports).loss == 2.0


def test_a_loss_that_is_no_number_is_counted_from_the_first_of_its_series(reports: Reports) -> None:
    for step, loss in enumerate([1.0, math.nan, 1.0, math.inf, -math.inf, math.nan], start=10):
        report(step=step, loss=loss, accuracy=math.nan)
    found = known(reports)
    assert found.loss is None
    assert found.not_finite == {"loss": "nan", "accuracy": "nan"}
    assert (found.bad_losses, found.bad_since) == (4, 13)
    assert loss_step(found) == 15
    report(step=16, loss=torch.tensor(2.0))
    assert (known(reports).loss, known(reports).bad_losses, known(reports).bad_since) == (2.0, 4, 13)


def test_the_usual_time_between_losses_is_known_from_the_third_on(reports: Reports) -> None:
    every = []
    for step in range(0, 2000, 500):
        NOW[0] += 250.0
        report(step=step, loss=1.0)
        every.append(known(reports).every)
    assert every == [None, None, 250.0, 250.0]


def test_tokens_a_second_are_those_told_by_the_time_between(reports: Reports) -> None:
    report(tokens=999)
    assert known(reports).tokens_per_second is None, "of the first the time is not known"
    for _ in range(300):
        NOW[0] += 0.05
        report(tokens=torch.tensor(100))
    assert known(reports).tokens_per_second == pytest.approx(2000.0)
    for _ in range(300):
        NOW[0] += 0.1
        report(tokens=100)
    assert known(reports).tokens_per_second == pytest.approx(1000.0)
    with annotate("validation"):
        NOW[0] += 60.0
    for _ in range(3):
        NOW[0] += 0.1
        report(tokens=100)
    assert known(reports).tokens_per_second == pytest.approx(1000.0), "validation is no time of the training's"


def test_eight_other_values_are_kept_under_clean_names(reports: Reports, capfd: pytest.CaptureFixture[str]) -> None:
    report(**{f"\x1b[31mvalue{number:02}" + "x" * 50: float(number) for number in range(5000)})
    found = known(reports)
    assert len(found.values) == 8
    assert all(name.startswith("value0") and len(name) == 32 for name in found.values)
    assert len(said(capfd)) == 1


def test_an_agent_that_gets_no_thread_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sampler = Sampler(discover("train.py"), tmp_path, "train.py", 1.0)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        sampler.start()
    assert progress.current is None


def test_a_child_process_a_stopped_agent_and_none_at_all_take_nothing(reports: Reports) -> None:
    report(step=1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        report(step=2)
        with annotate("save"):
            os.write(writer, b"none" if progress.current is None and reports.activity(None) == "" else b"some")
        os._exit(0)
    assert os.read(reader, 4) == b"none"
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    progress.end(reports)
    report(step=3, loss=1.0)
    assert known(reports).step == 1


def test_threads_may_tell_at_the_same_time(reports: Reports) -> None:
    def tell(offset: int) -> None:
        for step in range(500):
            report(step=step, loss=float(offset), **{f"of_{offset}": float(step)})

    threads = [threading.Thread(target=tell, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        reports.progress()
    found = known(reports)
    assert found.values == {f"of_{number}": 499.0 for number in range(4)}


# -- values on a GPU -------------------------------------------------------------------------------------------------


class Event:
    """One that has passed when the test says so; anything but ``record`` and ``query`` is an error."""

    passed = False

    def record(self, stream: object) -> None:
        self.stream = stream

    def query(self) -> bool:
        return Event.passed


class OnGpu:
    """Records what is asked of a tensor on a GPU: its value must never be."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, value: float) -> None:
        self.value = value
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        assert name in ("detach", "reshape", "to"), f"{name} waits for the device"
        self.asked.append(name)
        return lambda *args: self


class Pinned(dict[int, Any]):
    def __missing__(self, slot: int) -> Any:
        made = self[slot] = SimpleNamespace(value=math.nan)

        def copy(tensor: OnGpu, non_blocking: bool) -> None:
            assert non_blocking
            made.value = tensor.value

        made.copy_, made.item = copy, lambda: made.value
        return made


def gpu(capturing: bool = False) -> Any:
    cuda = SimpleNamespace(
        Event=Event, current_stream=lambda device: "stream", is_current_stream_capturing=lambda: capturing
    )
    return SimpleNamespace(cuda=cuda, empty=lambda *shape, **more: Pinned(), float64="float64", _C=torch._C)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    NOW[0], Event.passed = 100.0, False
    monkeypatch.setitem(sys.modules, "torch", gpu())
    return Reader(lambda: NOW[0])


def test_a_value_on_a_gpu_is_copied_without_a_wait_and_read_once_its_event_has_passed(reader: Reader) -> None:
    taken: list[float] = []
    value = OnGpu(2.5)
    reader._send("loss", value, taken.append, gpu())
    assert value.asked == ["detach", "reshape", "to"]
    reader.collect()
    assert (taken, reader.waiting) == ([], True)
    Event.passed = True
    reader.collect()
    assert (taken, reader.waiting) == ([2.5], False)


def test_of_one_name_a_value_is_copied_ten_times_a_second_at_most(reader: Reader) -> None:
    Event.passed = True
    taken: list[float] = []
    for number in range(100):
        NOW[0] += 0.01
        reader._send("loss", OnGpu(float(number)), taken.append, gpu())
        reader._send("gradient_norm", OnGpu(0.5), lambda value: None, gpu())
        reader.collect()
    assert len(taken) == pytest.approx(1.0 / SPACING, abs=1)
    assert taken == sorted(taken)


def test_a_device_that_hangs_fills_its_slots_and_no_more(reader: Reader) -> None:
    for number in range(3 * SLOTS):
        NOW[0] += 1.0
        reader._send("loss", OnGpu(float(number)), lambda value: None, gpu())
    assert len(reader._flights) == SLOTS


def test_two_threads_that_collect_take_each_value_once_and_none_before_its_time(reader: Reader) -> None:
    """Between its look at the first flight and its taking it, another thread may have taken that one."""
    taken: list[float] = []
    reader._send("loss", OnGpu(1.0), taken.append, gpu())

    class Late(Event):
        def query(self) -> bool:
            if reader._flights and len(taken) < 2:
                Event.passed = True
                reader.collect()
                Event.passed = False
            return False

    reader._flights.appendleft(reader._flights.pop()._replace(event=Late()))
    reader._send("gradient_norm", OnGpu(2.0), taken.append, gpu())
    reader.collect()
    assert taken == [2.0]
    assert len(reader._flights) == 1


def test_a_value_that_comes_late_from_a_gpu_does_not_replace_a_newer_one(reports: Reports) -> None:
    report(step=5, loss=2.0)
    reports._take("loss", 9.0, 4, NOW[0] - 1.0)
    assert (known(reports).loss, loss_step(known(reports))) == (2.0, 5)
    report(eval_loss=3.0)
    reports._take("eval_loss", 9.0, 4, NOW[0] - 1.0)
    assert known(reports).values == {"eval_loss": 3.0}


def test_a_loss_that_comes_late_from_a_gpu_is_of_the_step_at_which_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = SimpleNamespace(ended=7)
    watch: Any = SimpleNamespace(recorder=recorder, thread=threading.get_ident())
    reports = progress.begin(lambda: watch)
    flights: list[Any] = []

    def send(name: str, value: object, take: Any) -> tuple[None, str]:
        flights.append(take)
        return None, ""

    monkeypatch.setattr(reports._reader, "read", send)
    report(loss=OnGpu(math.nan))
    recorder.ended = 9
    flights[0](math.nan)
    progress.end(reports)
    assert (known(reports).counted, known(reports).bad_since) == (7, 7)


def test_a_part_that_ends_while_a_graph_is_captured_asks_for_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    recorder = SimpleNamespace(ended=7, left_training=lambda: calls.append("left"))
    watch: Any = SimpleNamespace(recorder=recorder, thread=threading.get_ident())
    reports = progress.begin(lambda: watch)
    for captured in (True, False):
        monkeypatch.setattr("ranktop.agent.facts.capturing", lambda captured=captured: captured)
        with annotate("validation"):
            assert calls == []
    progress.end(reports)
    assert calls == ["left"]


def test_nothing_is_copied_into_a_graph_that_is_being_captured(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    reader._send("loss", OnGpu(1.0), lambda value: None, gpu(capturing=True))
    assert not reader.waiting
    reader._send("loss", OnGpu(1.0), lambda value: None, gpu())
    Event.passed = True
    monkeypatch.setitem(sys.modules, "torch", gpu(capturing=True))
    reader.collect()
    assert reader.waiting, "to ask for an event would break the capture"


# -- annotate --------------------------------------------------------------------------------------------------------


@annotate("save\x1b[0m\nnow" + "x" * 50)
def _fails_while_saving(reports: Reports) -> None:
    assert reports.activity(None) == ("save now" + "x" * 50)[:32]
    raise KeyError


def test_the_innermost_part_is_named_and_an_error_goes_on_its_way(reports: Reports) -> None:
    with annotate("validation"):
        assert reports.activity(None) == "validation"
        with pytest.raises(KeyError):
            _fails_while_saving(reports)
        assert reports.activity(None) == "validation"
    assert reports.activity(None) == ""
    assert reports.activities == {}


def test_another_thread_does_not_name_what_the_training_thread_does(reports: Reports) -> None:
    def other() -> None:
        with annotate("upload"):
            assert reports.activity(threading.get_ident()) == "upload"
            assert reports.activity(None) == ""

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert reports.activities == {}


def test_functions_of_every_kind_are_decorated(reports: Reports) -> None:
    seen: list[str] = []

    def note() -> None:
        seen.append(reports.activity(None))

    @annotate("plain")
    def plain(depth: int) -> int:
        note()
        return plain(depth - 1) if depth else 7

    @annotate("batches")
    def batches() -> Iterator[int]:
        note()
        yield 1

    @annotate("later")
    async def later() -> int:
        note()
        await asyncio.sleep(0)
        return 8

    assert (plain(1), list(batches()), asyncio.run(later())) == (7, [1], 8)
    assert plain.__name__ == "plain"
    assert seen == ["plain", "plain", "batches", "later"]
    assert reports.activities == {}


class Mute:
    """An object that has no words."""

    def __str__(self) -> str:
        raise RuntimeError("none")


@pytest.mark.parametrize(
    ("what", "shown"),
    [(None, "None"), (b"x", "b'x'"), (7, "7"), (Mute(), "Mute")],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_text_is_shown_as_one(reports: Reports, what: Any, shown: str) -> None:
    with annotate(what):
        assert reports.activity(None) == shown


def test_a_generator_that_is_left_within_a_part_ends_without_a_word() -> None:
    script = """
import builtins
from ranktop.agent import annotate, progress
progress.begin(lambda: None)

def batches():
    with annotate("validation"):
        yield 1

builtins.kept = batches()
next(builtins.kept)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_one_annotation_may_be_entered_within_itself(reports: Reports) -> None:
    again = annotate("save")
    with again, again:
        assert reports.activity(None) == "save"
    assert reports.activity(None) == ""


class Shaped:
    """A training thread's recorder, for what is named between its steps."""

    def __init__(self) -> None:
        self.recorder = StepRecorder(lambda: None)
        self.thread = threading.get_ident()

    def step(self) -> None:
        self.recorder.forward_begin(True)
        NOW[0] += 0.1
        self.recorder.forward_end(True)
        NOW[0] += 0.2
        self.recorder.optimizer_begin()
        NOW[0] += 0.1
        self.recorder.optimizer_end()


@pytest.mark.parametrize(("what", "data"), [("save", 0.0), ("Evaluation", 0.0), ("augmentation", 30.0)])
def test_the_time_of_validation_and_saving_belongs_to_no_step(
    monkeypatch: pytest.MonkeyPatch, what: str, data: float
) -> None:
    NOW[0] = 100.0
    monkeypatch.setattr("ranktop.probes.clock.time", SimpleNamespace(perf_counter=lambda: NOW[0]))
    watch: Any = Shaped()
    reports = progress.begin(lambda: watch)
    watch.step()
    with annotate(what):
        NOW[0] += 30.0
    watch.step()
    watch.recorder.close()
    progress.end(reports)
    (_, second) = watch.recorder.take()
    assert second.data == pytest.approx(data)
    assert second.seconds == pytest.approx(0.4 + data)


def test_an_agent_that_comes_or_goes_within_a_part_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    with annotate("before"):
        made = progress.begin(lambda: None)
        with annotate("save"):
            assert made.activity(None) == "save"
            progress.end(made)
    assert made.activity(None) == ""
    assert "report" in ranktop.agent.__all__
