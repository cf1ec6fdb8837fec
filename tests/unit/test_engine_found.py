"""Which DeepSpeed engine runs a model, by the hooks that engines leave on it."""

from __future__ import annotations

import gc
import sys
import weakref
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from ranktop.probes import engines
from ranktop.probes.deepspeed import find
from ranktop.probes.model import ModelProbe


class Engine:
    """Holds its model and leaves a hook on it, as ``DeepSpeedEngine._create_module_forward_pre_hook`` does."""

    def __init__(self, model: nn.Module) -> None:
        self.module = model
        self.optimizer = self.basic_optimizer = None

        def hook(module: nn.Module, inputs: Any) -> None:
            assert self.module is module

        self.handle = model.register_forward_pre_hook(hook)


@pytest.fixture(autouse=True)
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DeepSpeed that has nothing but this engine."""
    module = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = Engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.engine", module)
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    monkeypatch.setattr(engines, "_probe", None)


def test_of_two_engines_of_one_model_the_later_runs_it() -> None:
    model = nn.Linear(2, 2)
    probe = ModelProbe(model, [], torch.device("cpu"))
    assert find(model) is None
    assert probe._engine_of(model) is None
    one = Engine(model)
    assert find(model) is one
    assert probe._engine_of(model) is one
    assert probe.refresh()
    assert not probe.refresh()
    other = Engine(model)
    assert find(model) is other
    assert probe.refresh(), "nothing of the one is taken for the other's"
    assert probe._engine_of(model) is other


def test_an_engine_that_was_found_is_not_kept_alive() -> None:
    model = nn.Linear(2, 2)
    probe = ModelProbe(model, [], torch.device("cpu"))
    engine = Engine(model)
    assert probe._engine_of(model) is engine
    engine.handle.remove()
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    assert probe._engine_of(model) is None
