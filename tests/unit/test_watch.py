"""The training thread's side of the agent: what it follows, and what it must leave alone."""

from __future__ import annotations

import dataclasses
import gc
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ranktop.agent.facts import differentiable
from ranktop.agent.mode import Mode
from ranktop.agent.sampler import stopped
from ranktop.agent.say import say
from ranktop.agent.watch import MAX_ERRORS, Watch


@pytest.fixture
def watch() -> Iterator[Watch]:
    found = Watch()
    found.install()
    yield found
    found.remove()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train(model: nn.Module, steps: int = 5, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def steps_of(watch: Watch) -> int:
    watch.close()
    assert watch.errors == 0, watch.last_error
    return 0 if watch.recorder is None else watch.recorder.count


class OwnEquality(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __hash__(self) -> int:
        return 1

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


def test_a_module_with_its_own_equality_is_never_compared(watch: Watch) -> None:
    first, second = OwnEquality(), OwnEquality()
    train(first)
    assert steps_of(watch) == 5
    assert len(second._forward_hooks) == 1


def test_lazy_modules_are_followed_once_they_have_their_parameters(watch: Watch) -> None:
    train(nn.Sequential(nn.LazyLinear(16), nn.LazyLinear(4)))
    assert steps_of(watch) == 4


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputed_forward_is_no_forward_of_the_loop(watch: Watch, reentrant: bool) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        checkpoint(model, torch.ones(2, 8, requires_grad=True), use_reentrant=reentrant).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    if reentrant:
        return  # its first forward runs without gradients, so only the recomputed one could count, and it must not
    assert watch.recorder is not None
    assert {s.micro_batches for s in watch.recorder.take()} == {1}


def test_function_transforms_and_traces_pass_unseen(watch: Watch) -> None:
    model = mlp()

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.func.functional_call(model, parameters, (x,))
        return output.square().mean()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        for _ in range(3):
            doubled = {name: 2 * p for name, p in model.named_parameters()}
            loss(doubled, torch.ones(2, 8)).backward()
            torch.func.grad(loss)(dict(model.named_parameters()), torch.ones(2, 8))
        torch.jit.trace(model, torch.ones(2, 8))
    assert watch.errors == 0, watch.last_error
    assert watch.recorder is None


def test_a_parameter_that_a_module_returns_gets_no_hook(watch: Watch) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            return self.weight

    model = Holder()
    for _ in range(5):
        model().sum().backward()
    assert not model.weight._backward_hooks


@dataclasses.dataclass(slots=True)
class Output:
    logits: torch.Tensor
    more: object = None


def test_outputs_of_any_shape_are_looked_through() -> None:
    wanted = torch.ones(2, requires_grad=True) * 2
    leaf = torch.ones(2, requires_grad=True)
    for output in (wanted, (leaf, wanted), {"a": [wanted]}, Output(wanted, leaf), Output(leaf, {"b": (wanted, 3)})):
        assert [id(t) for t in differentiable(output)] == [id(wanted)]
    looped: list[object] = []
    looped.append(looped)
    assert differentiable(looped) == []
    assert differentiable(Output) == []


def test_a_model_that_two_threads_train_is_left_alone(watch: Watch) -> None:
    model = mlp()
    train(model)
    assert steps_of(watch) == 5
    other = threading.Thread(target=train, args=(model,))
    other.start()
    other.join()
    assert not watch.enabled
    assert stopped(watch) == ("the agent stopped following the model: several threads train the model at the same time")
    train(model)
    assert steps_of(watch) == 5


def test_an_agent_that_ends_with_its_process_has_not_given_up(watch: Watch) -> None:
    watch.failed(ValueError("once"))
    watch.remove()
    assert stopped(watch) == ""


def test_too_many_errors_are_told(watch: Watch) -> None:
    for _ in range(MAX_ERRORS):
        watch.failed(ValueError("odd"))
    assert stopped(watch) == f"the agent stopped following the model after {MAX_ERRORS} errors: ValueError: odd"


def test_another_threads_model_is_not_looked_at(watch: Watch) -> None:
    model, theirs = mlp(), nn.Linear(8, 2)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    other = threading.Thread(target=train, args=(theirs, 5, optimizer))
    train(model, 2)
    other.start()
    other.join()
    train(model, 3)
    assert watch.model is not None
    assert optimizer not in watch.model.optimizers()
    assert watch.enabled


def test_a_model_may_move_to_another_thread(watch: Watch) -> None:
    model = mlp()
    first = threading.Thread(target=train, args=(model,))
    first.start()
    first.join()
    train(model)
    assert watch.enabled
    assert steps_of(watch) == 10


def test_each_step_that_is_followed_has_the_tokens_of_its_own_batch(watch: Watch) -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lengths = [[5], [7, 3], [2, 2], [11], [4, 9]]
    told: list[int | None] = []
    for micro_batches in lengths:
        for length in micro_batches:
            model(torch.zeros(2, length, dtype=torch.long)).sum().backward()
        with torch.no_grad():
            model(torch.zeros(2, 50, dtype=torch.long))
        optimizer.step()
        optimizer.zero_grad()
        watch.close()
        assert watch.recorder is not None
        told += [step.tokens for step in watch.recorder.take()]
        watch.recorder.next_reading = 0.0  # as if the next step came half a second later: it is followed
    assert told == [2 * sum(micro_batches) for micro_batches in lengths]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_inputs_are_no_trouble(watch: Watch) -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        batch = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)], layout=torch.jagged)
        model(batch).values().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert steps_of(watch) == 3
    assert watch.recorder is not None
    assert [step.tokens for step in watch.recorder.take()] == [8, 8, 8]


def test_graphed_callables_find_no_hooks(watch: Watch) -> None:
    model = nn.Linear(4, 4)
    assert model._forward_hooks
    with pytest.raises(Exception) as caught:  # noqa: PT011 (whatever CUDA says here)
        torch.cuda.make_graphed_callables(model, (torch.ones(1, 4),))
    assert "hooks" not in str(caught.value)
    assert model._forward_hooks, "the module is followed again"
    watch.remove()
    assert "watch" not in repr(torch.cuda.make_graphed_callables)
    assert not hasattr(torch.cuda.make_graphed_callables, "__wrapped__")


def test_a_layer_that_computes_otherwise_with_hooks_gets_none(watch: Watch) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert not layer._forward_hooks
    assert not layer._forward_pre_hooks


def test_modes_of_the_script_see_no_call_of_ours(watch: Watch) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(str(function))
            return function(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(str(function))
            return function(*args, **(kwargs or {}))

    def seen() -> list[str]:
        calls.clear()
        model = nn.Sequential(nn.Embedding(10, 8, sparse=True), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with Functions(), Operators():  # type: ignore[no-untyped-call]
                model(torch.ones(2, dtype=torch.long)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return list(calls)

    with_agent = seen()
    assert steps_of(watch) == 3
    watch.remove()
    assert with_agent == seen()


def test_nothing_is_kept_alive(watch: Watch) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, 4, optimizer)
    output = model(torch.ones(2, 8))
    parts = [weakref.ref(each) for each in (model, optimizer, output, next(model.parameters()))]
    gc.disable()
    try:
        del model, optimizer, output
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()


def test_a_script_that_calls_no_module_is_not_searched_at_every_step(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    searches: list[int] = []

    def none_found() -> list[nn.Module]:
        searches.append(1)
        return []

    monkeypatch.setattr(watch.roots, "roots", none_found)
    for _ in range(100):
        model.forward(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    assert 1 <= len(searches) <= 8


@pytest.mark.parametrize("broken", [None, object()])
def test_words_never_raise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: object) -> None:
    monkeypatch.setattr(sys, "stderr", broken)
    say("nobody hears this")
    assert capsys.readouterr().out == ""


class Device:
    """Stands in for CUDA: notes what is asked of it, and whether a graph is being captured."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.capturing = False

    def event(self, enable_timing: bool = False) -> Device:
        self.asked.append("event")
        return self

    def record(self, stream: object) -> None:
        self.asked.append("record")

    def query(self) -> bool:
        self.asked.append("query")
        return True

    def elapsed_time(self, other: Device) -> float:
        return 1.0


class DeviceClock:
    name = "device"

    def __init__(self, device: Device) -> None:
        self._device = device

    def mark(self) -> object:
        self._device.event().record(None)
        return self._device

    def between(self, start: object, end: object) -> float | None:
        assert start is end is self._device
        return 0.001 if self._device.query() else None


def test_nothing_is_asked_of_a_device_that_captures_a_graph(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: device.capturing)
    monkeypatch.setattr("ranktop.agent.watch.device_of", lambda root: torch.device("cpu"))
    monkeypatch.setattr("ranktop.agent.watch.clock_of", lambda _: DeviceClock(device))
    model = mlp()
    device.capturing = True
    train(model)
    assert watch.recorder is None, "not even what the model is"
    device.capturing = False
    train(model)
    assert watch.recorder is not None
    assert device.asked
    device.asked.clear()
    device.capturing = True
    train(model)
    assert watch.recorder.take()
    assert device.asked == [], "and the thread that samples asks for nothing at any time"


def test_a_model_that_a_script_validates_behind_its_wrapper_is_in_evaluation(watch: Watch) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return cast("torch.Tensor", self.module(x))

    inner = mlp()
    model, mode = Wrapper(inner), Mode()
    assert mode.phase(watch) == ""
    train(model)
    assert mode.phase(watch) == "data"
    inner.eval()
    assert mode.phase(watch) == "eval"
    inner.train()
    assert mode.phase(watch) == "data"
    inner.eval()
    for phase in ("forward", "data"):  # it trains in evaluation mode, so that this says nothing
        assert watch.recorder is not None
        watch.recorder.phase = phase
        assert mode.phase(watch) == phase
