"""What trainers say beside what is seen: imports that are waited for, notes of a difference, adapters by modules."""

from __future__ import annotations

import importlib
import importlib.abc
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
from torch import nn

from ranktop.agent import imports, trainers
from ranktop.agent.imports import when_imported
from ranktop.agent.trainers import Told, forget, tell, told
from ranktop.agent.trainers.weigh import weigh
from ranktop.budget.activations.closed import activations
from ranktop.budget.live import understand
from ranktop.budget.model import Model
from ranktop.budget.models.place import inventory
from ranktop.budget.plan import Batch, Forward, Lora, Plan, Precision
from ranktop.probes.adapters import lora_of
from ranktop.probes.architecture import dropout_of

TOLD = Told(trainer="a 1.0 Trainer", micro_batch=4, accumulation=2, precision="bfloat16", sequence_length=128)
LLAMA = Model(family="llama", layers=3, hidden=128, ffn=320, vocab=512, heads=4, kv_heads=2, head_dim=32, positions=128)


@pytest.fixture(autouse=True)
def _nobody_has_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "_told", {})
    monkeypatch.setattr(trainers, "_readers", [])


def test_each_module_that_is_waited_for_calls_back_once_and_its_failure_stays_here(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rt_pack").mkdir()
    (tmp_path / "rt_pack" / "__init__.py").write_text("from rt_pack import inner\n")
    (tmp_path / "rt_pack" / "inner.py").write_text("value = 1\n")
    (tmp_path / "rt_broken.py").write_text("raise ValueError('own')\n")
    monkeypatch.syspath_prepend(tmp_path)
    before, calls = list(sys.meta_path), []

    def bad() -> None:
        calls.append("bad")
        raise RuntimeError("ours")

    when_imported("rt_pack.inner", lambda: calls.append(sys.modules["rt_pack.inner"].value))
    when_imported("rt_pack", bad)
    when_imported("rt_broken", lambda: calls.append("never"))
    import rt_pack  # type: ignore[import-not-found]  # noqa: F401

    assert calls == [1, "bad"]
    assert "rt_pack was imported, but the agent can't follow it: RuntimeError: ours" in capsys.readouterr().err
    with pytest.raises(ValueError, match="own"):
        import rt_broken  # type: ignore[import-not-found]  # noqa: F401
    when_imported("rt_pack", lambda: calls.append("at once"))
    assert calls == [1, "bad", "at once"]
    (tmp_path / "rt_broken.py").write_text("value = 3\n")
    sys.modules.pop("rt_broken", None)
    importlib.invalidate_caches()
    importlib.import_module("rt_broken")
    assert calls[-1] == "never", "an import that failed may be tried again"
    assert [finder for finder in sys.meta_path if finder not in before] == []
    for name in ("rt_pack", "rt_pack.inner", "rt_broken"):
        sys.modules.pop(name, None)


class Sealed(importlib.abc.Loader):
    """A loader that nobody can put anything on."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["value"] = 5


def test_a_loader_that_cannot_be_followed_loads_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, path: object, target: object = None) -> ModuleSpec | None:
            return ModuleSpec(name, Sealed()) if name == "rt_sealed" else None

    finder = imports._Finder()
    monkeypatch.setattr(imports, "_finder", finder)
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    when_imported("rt_sealed", lambda: None)
    try:
        assert importlib.import_module("rt_sealed").value == 5
    finally:
        sys.modules.pop("rt_sealed", None)
    assert "not told when rt_sealed has been imported" in capsys.readouterr().err


def test_the_agent_imports_no_trainer_by_itself() -> None:
    script = (
        "from ranktop.agent import trainers; trainers.look_out(); import sys;"
        "print([m for m in ('transformers', 'accelerate', 'lightning', 'deepspeed') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_higher_trainer_names_the_job_and_the_lower_one_fills_what_it_leaves_open() -> None:
    assert told() is None
    tell(Told(trainer="top 2", micro_batch=8, rank=2))
    tell(Told(trainer="base 1", micro_batch=4, accumulation=3))
    found = told()
    assert found is not None
    assert (found.trainer, found.micro_batch, found.accumulation) == ("top 2", 8, 3)
    forget("top 2")
    found = told()
    assert found is not None
    assert (found.trainer, found.micro_batch) == ("base 1", 4)


def test_what_is_only_told_fills_gaps_and_what_was_seen_wins_with_a_note() -> None:
    half = Plan(precision=Precision(parameters="bfloat16"))
    plan, notes = weigh(half, TOLD)
    assert (plan.batch, notes) == (Batch(micro_batch=4, accumulation=2, sequence_length=128), ())
    seen = replace(half, batch=Batch(micro_batch=1, sequence_length=512, accumulation=2), checkpointing="none")
    plan, notes = weigh(seen, replace(TOLD, checkpointing="full"), largest=1)
    assert plan == seen
    assert len(notes) == 3
    assert notes[0] == "a 1.0 Trainer says a micro-batch of 4, but the model gets 1: what was seen counts"
    assert weigh(seen, None) == (seen, ())


def test_the_short_last_batch_of_an_epoch_contradicts_nobody() -> None:
    last = Plan(precision=Precision(parameters="bfloat16"), batch=Batch(micro_batch=2, accumulation=2))
    assert weigh(last, TOLD, largest=4)[1] == ()


class Adapted(nn.Module):
    """A linear layer as PEFT wraps it."""

    def __init__(self, inner: int, outer: int, rank: int, dropout: float) -> None:
        super().__init__()
        self.base_layer = nn.Linear(inner, outer, bias=False).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inner, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outer, bias=False)})
        self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(dropout)})
        self.r, self.active_adapters = {"default": rank}, ["default"]


def test_adapters_are_told_by_their_modules_and_their_dropout_is_not_the_models() -> None:
    model = nn.ModuleDict({"q_proj": Adapted(8, 8, 2, 0.1), "v_proj": Adapted(8, 4, 2, 0.1), "drop": nn.Dropout(0.0)})
    assert lora_of(model) == (Lora(rank=2, targets=("q", "v"), dropout=0.1), "")
    assert dropout_of(model) == 0.0
    assert lora_of(nn.Linear(2, 2)) == (None, "")
    model["strange"] = Adapted(8, 8, 2, 0.1)
    assert lora_of(model)[0] is None
    assert "strange" in lora_of(model)[1]


def test_a_base_is_recognised_under_its_adapters_only_when_these_are_all_that_is_trained() -> None:
    lora = Lora(rank=4, targets=("q", "v"))
    plan = Plan(batch=Batch(micro_batch=4, sequence_length=128), lora=lora, forward=Forward(heads=4))
    kinds = inventory(LLAMA, plan)
    found = understand(kinds, plan)
    assert found.model is not None
    assert (found.model.layers, found.model.hidden, found.model.kv_heads) == (3, 128, 2)
    assert understand(kinds, replace(plan, lora=replace(lora, rank=8))).model is None
    assert understand(kinds, replace(plan, lora=None)).model is None
    plain, dropped = activations(LLAMA, plan), activations(LLAMA, replace(plan, lora=replace(lora, dropout=0.05)))
    # Each adapter keeps its own input in fp32 and a mask of a byte, where both of a block read the same tensor before.
    assert dropped.blocks - plain.blocks > 3 * 2 * 4 * 128 * 128


def test_a_trainer_of_an_unknown_version_costs_a_line_and_not_what_the_others_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken() -> Told:
        raise AttributeError("moved")

    trainers._readers.extend((broken, lambda: TOLD))
    for _ in range(5):
        assert told() == TOLD
    assert capsys.readouterr().err.count("AttributeError: moved") == 1
    assert broken not in trainers._readers
