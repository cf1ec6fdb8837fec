"""What a live model and its inputs tell of the strategy, in one process."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from ranktop.budget.plan import Layout, Plan
from ranktop.probes.model import ModelProbe
from ranktop.probes.strategy import Seen, batch_of, detect, tokens_of

CPU = torch.device("cpu")


def plan_of(model: nn.Module, *optimizers: Any, seen: Seen | None = None) -> Plan:
    plan = detect(model, optimizers, CPU, seen)
    assert not [note for note in plan.notes if note.startswith("could not")]
    return plan


def test_a_plain_model_and_what_hooks_have_seen() -> None:
    model = nn.Linear(3, 5).to(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    seen = Seen(micro_batch=4, sequence_length=16, accumulation=2, gradients_at=("step_end",), autocast="float16")
    plan = plan_of(model, optimizer, seen=seen)
    assert (plan.strategy, plan.layout, plan.host) == ("single", Layout(), True)
    assert (plan.precision.parameters, plan.precision.autocast) == ("bfloat16", "float16")
    assert (plan.optimizer.name, plan.optimizer.options["amsgrad"]) == ("Adam", True)
    assert (plan.batch.micro_batch, plan.batch.sequence_length, plan.batch.accumulation) == (4, 16, 2)
    assert plan.gradients_at == ("step_end",)
    assert plan.checkpointing is None
    assert any("checkpointing" in note for note in plan.notes)


def test_most_parameters_name_the_precision() -> None:
    model = nn.Sequential(nn.Linear(30, 30).half(), nn.LayerNorm(30))
    assert plan_of(model).precision.parameters == "float16"


def test_checkpointing_is_seen_in_wrappers_and_in_switches() -> None:
    assert plan_of(nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)))).checkpointing == "full"
    selective = checkpoint_wrapper(nn.Linear(2, 2), context_fn=lambda: None)
    assert plan_of(nn.Sequential(selective)).checkpointing == "selective"
    model = nn.Linear(2, 2)
    for switch, word in ((False, "none"), (True, "full")):
        model.gradient_checkpointing = switch  # type: ignore[assignment]
        assert plan_of(model).checkpointing == word


def test_a_compiled_model_is_seen_without_compiling_it() -> None:
    model = nn.Linear(2, 2)
    assert not plan_of(model).compiled
    assert plan_of(torch.compile(model)).compiled  # type: ignore[arg-type]
    model.compile()
    assert plan_of(model).compiled


def test_parameters_on_another_device_are_noted_and_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2, device="meta"))
    assert "2 parameters lie on other devices and are not counted" in plan_of(model).notes
    probe = ModelProbe(model, [], CPU)
    assert [kind.shape for kind in probe.inventory()] == [(5, 3), (5,)]
    assert probe.resident().parameters == 20 * 4


class Hostile(nn.Linear):
    """Fails on every question beyond those of a module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_get"):
            raise RuntimeError("no")
        return super().__getattr__(name)


class BadOptimizer:
    @property
    def param_groups(self) -> list[Any]:
        raise ValueError("broken")


def test_detection_never_raises_and_notes_what_failed() -> None:
    plan = detect(Hostile(2, 2), [BadOptimizer()], CPU, Seen())
    assert plan.strategy == "single"
    assert any(note.startswith("could not tell the optimizer's options: ValueError") for note in plan.notes)


@dataclasses.dataclass
class Inputs:
    name: str
    ids: torch.Tensor


TOKENS = torch.zeros(4, 16, dtype=torch.long)


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((TOKENS,), {}, (4, 16)),
        ((), {"attention_mask": torch.ones(9, 9), "input_ids": TOKENS}, (4, 16)),
        (({"labels": torch.ones(9, 9), "input_ids": TOKENS},), {}, (4, 16)),
        ((Inputs("a", TOKENS),), {}, (4, 16)),
        (([None, (TOKENS, 3)],), {}, (4, 16)),
        ((torch.zeros(4, 16, 8),), {}, (4, 16)),
        ((torch.zeros(4, 3, 32, 32),), {}, (4, None)),
        ((torch.zeros(4, 8),), {}, (4, None)),
        ((torch.tensor(3.0), torch.zeros(6, 8)), {}, (6, None)),
        ((TOKENS[0],), {}, (16, None)),
        ((), {}, (None, None)),
        (("text", 3), {"flag": True}, (None, None)),
    ],
)
def test_the_batch_is_read_from_the_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[int | None, int | None]
) -> None:
    assert batch_of(args, kwargs) == expected
    batch, sequence = expected
    assert tokens_of(args, kwargs) == (None if batch is None else batch * (sequence or 1))


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_batch_is_counted_by_its_own_lengths(layout: torch.layout) -> None:
    tokens = torch.nested.nested_tensor(
        [torch.ones(3, dtype=torch.long), torch.ones(5, dtype=torch.long)], layout=layout
    )
    hidden = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)], layout=layout)
    for nested in (tokens, hidden):
        assert batch_of((nested,), {}) == (2, None)
        assert tokens_of((nested,), {}) == 8
