"""Which modules carry hooks, and that nothing else notices them."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ranktop.agent.roots import RootTracker


class Calls:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def root_begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.seen.append(f"begin {type(module).__name__}")

    def root_end(self, module: nn.Module, output: object) -> None:
        self.seen.append(f"end {type(module).__name__}")


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def tracker(calls: Calls) -> Iterator[RootTracker]:
    found = RootTracker(calls)
    found.install()
    yield found
    found.remove()


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x)


def test_only_the_outermost_module_is_hooked(tracker: RootTracker, calls: Calls) -> None:
    model = Wrapper(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))))
    assert tracker.roots() == [model]
    model(torch.zeros(1, 2))
    assert calls.seen == ["begin Wrapper", "end Wrapper"]
    assert all(not m._forward_hooks for m in model.module.modules())


def test_a_lone_layer_is_a_root(tracker: RootTracker, calls: Calls) -> None:
    nn.Linear(2, 2)(torch.zeros(1, 2))
    assert calls.seen == ["begin Linear", "end Linear"]


def test_a_compiled_module_takes_the_place_of_its_original(tracker: RootTracker, calls: Calls) -> None:
    model = torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    assert [type(m).__name__ for m in tracker.roots()] == ["OptimizedModule"]
    model(torch.zeros(1, 2))
    assert calls.seen == ["begin OptimizedModule", "end OptimizedModule"]


def test_copies_carry_no_hook(tracker: RootTracker, calls: Calls) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    copied = copy.deepcopy(model)
    copied(torch.zeros(1, 2))
    assert calls.seen == []
    buffer = io.BytesIO()
    torch.save(model, buffer)
    # A process without this package must be able to load the file.
    script = (
        "import sys, io, torch; sys.modules['ranktop'] = None\n"
        "model = torch.load(io.BytesIO(sys.stdin.buffer.read()), weights_only=False)\n"
        "print(tuple(model(torch.zeros(1, 2)).shape))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], input=buffer.getvalue(), capture_output=True, check=False)
    assert loaded.stdout.decode().strip() == "(1, 2)", loaded.stderr.decode()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_and_export_work_on_a_hooked_module(tracker: RootTracker) -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3)))
    assert scripted(torch.zeros(1, 3)).shape == (1, 3)
    exported = torch.export.export(nn.Linear(3, 3), (torch.zeros(1, 3),))
    assert exported.module()(torch.zeros(1, 3)).shape == (1, 3)


def test_removal_leaves_nothing(calls: Calls) -> None:
    tracker = RootTracker(calls)
    tracker.install()
    model = nn.Sequential(nn.Linear(2, 2))
    tracker.remove()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert "__prepare_scriptable__" not in vars(nn.Module)
    later = nn.Sequential(nn.Linear(2, 2))
    assert not later._forward_hooks


def test_our_hook_runs_before_those_put_in_front_later(tracker: RootTracker, calls: Calls) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    order: list[str] = []
    model.register_forward_pre_hook(lambda *_: order.append(f"theirs after {len(calls.seen)}"), prepend=True)
    for _ in range(2):
        model(torch.zeros(1, 2))
    assert order == ["theirs after 0", "theirs after 3"], "from the second call on ours comes first"
