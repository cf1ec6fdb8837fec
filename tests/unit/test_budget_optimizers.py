"""Predicted optimizer state against what torch's own optimizers keep after a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ranktop.budget.optimizers.states import Piece, optimizer_amount, states_of
from ranktop.budget.plan import OptimizerPlan, Plan, State
from ranktop.probes.optimizer import class_name, describe, distinct, innermost, seen_states, state_key

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True}),
    ("Adam", {"fused": True}),
    ("AdamW", {}),
    ("AdamW", {"foreach": True, "amsgrad": True}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Adamax", {}),
    ("Adadelta", {}),
    ("Adagrad", {}),
    ("ASGD", {}),
    ("Rprop", {}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Adafactor", {}),
    ("Muon", {}),
]


class Pair(nn.Module):
    def __init__(self, muon: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 13))
        if not muon:
            self.bias = nn.Parameter(torch.randn(7))
            self.stack = nn.Parameter(torch.randn(3, 5, 2))
        self.frozen = nn.Parameter(torch.randn(4, 4), requires_grad=False)

    def backward(self) -> None:
        sum(((p * p).sum() for p in self.parameters()), torch.zeros(())).backward()


def count(optimizer: torch.optim.Optimizer) -> int:
    tensors = [v for kept in optimizer.state.values() for v in kept.values() if isinstance(v, torch.Tensor)]
    return sum(t.numel() * t.element_size() for t in tensors)


def pieces(model: nn.Module) -> list[Piece]:
    return [Piece(tuple(p.shape), p.element_size(), trainable=p.requires_grad) for p in model.parameters()]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=lambda v: v if isinstance(v, str) else "-".join(v))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prediction_is_what_a_live_optimizer_keeps(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    model = Pair(name == "Muon").to(dtype)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, **options)
    plan, groups = describe([optimizer])
    assert groups == ()
    before = optimizer_amount(pieces(model), Plan(optimizer=plan, host=True), before_first_step=True)
    assert before.bytes == count(optimizer)
    predicted = optimizer_amount(pieces(model), Plan(optimizer=plan, host=True))
    model.backward()
    optimizer.step()
    assert predicted.bytes == count(optimizer)
    assert predicted.rule.startswith(f"{name}: ")


def test_two_groups_with_different_options_are_told_apart() -> None:
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(5))
    chosen: list[dict[str, Any]] = [{"params": [first], "momentum": 0.9}, {"params": [second]}]
    optimizer = torch.optim.SGD(chosen, lr=0.1)
    plan, groups = describe([optimizer])
    assert [group.options.get("momentum") for group in groups] == [0.9, None]
    both = [Piece((3,), 4, group=0), Piece((5,), 4, group=1)]
    assert optimizer_amount(both, Plan(optimizer=plan, groups=groups, host=True)).bytes == 12


class Odd(torch.optim.Optimizer):
    """Keeps a matrix of its own, a half-precision copy and a counter."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("copy", p.detach().half())
                self.state[p].setdefault("table", torch.zeros(4, 4))
                self.state[p].setdefault("count", torch.zeros(()))
                self.state[p].setdefault("note", "text")


def test_an_unknown_class_is_budgeted_as_seen_and_says_so() -> None:
    parameters = [nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(5))]
    optimizer = Odd(parameters)
    found = [Piece((3, 2), 4), Piece((5,), 4)]
    unknown = optimizer_amount(found, Plan(optimizer=describe([optimizer])[0], host=True))
    assert unknown.bytes is None
    assert "no rule for the optimizer Odd" in unknown.rule
    optimizer.step()
    plan = describe([optimizer])[0]
    assert {state.name: state.like for state in plan.states} == {
        "copy": "parameter",
        "count": "scalar",
        "table": "other",
    }
    seen = optimizer_amount(found, Plan(optimizer=plan, host=True))
    assert seen.bytes == count(optimizer) == 11 * 2 + 2 * 4 + 2 * 64
    assert "as seen on the live optimizer" in seen.rule


class Renamed(torch.optim.AdamW):
    """Inherits everything."""


class Changed(torch.optim.AdamW):
    """Keeps nothing."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        return None


def test_a_subclass_follows_its_base_unless_it_steps_by_itself() -> None:
    parameter = nn.Parameter(torch.ones(3))
    assert class_name(torch.optim.AdamW([parameter])) == ("AdamW", "torch")
    assert class_name(Renamed([parameter])) == ("AdamW", "torch")
    assert class_name(Changed([parameter]))[0] == "Changed"


class Wrapper:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


def test_a_wrapped_optimizer_counts_once() -> None:
    inner = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    outer = Wrapper(inner)
    assert innermost(outer) is inner
    assert distinct([inner, outer]) == [outer]
    assert distinct([outer, inner, inner]) == [outer]
    assert state_key(outer) == state_key(inner)


def test_seen_states_of_adamw_name_dtype_and_place() -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    assert seen_states(optimizer) == (
        State(name="step", like="scalar", dtype="float32"),
        State(name="exp_avg"),
        State(name="exp_avg_sq"),
    )


def test_factored_states_of_a_shard_are_not_guessed() -> None:
    plan = Plan(optimizer=OptimizerPlan(name="Adafactor", count=1))
    amount = optimizer_amount([Piece((3, 13), 4, whole=False)], plan)
    assert amount.bytes is None
    assert "on a shard is not known" in amount.rule


def test_the_default_dtype_makes_wider_counters() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        parameter = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([parameter])
        plan, _ = describe([optimizer])
        parameter.sum().backward()
        optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert optimizer_amount([Piece((3,), 8)], Plan(optimizer=plan, host=True)).bytes == count(optimizer) == 56


def test_no_optimizer_is_no_state() -> None:
    assert states_of(OptimizerPlan()) == ((), "no optimizer")
    assert optimizer_amount([Piece((3,), 4)], Plan()).bytes == 0
