"""Temporaries of an optimizer's step against what torch's own optimizers allocate, as MemTracker counts it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker

from ranktop.budget.optimizers.states import Piece
from ranktop.budget.optimizers.step import temporaries
from ranktop.budget.plan import OptimizerPlan, Plan

SHAPES = [(96, 64), (64, 96), (64, 64), (32, 64)]

CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("AdamW", {"amsgrad": True}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Adamax", {}),
    ("Adagrad", {}),
    ("Adadelta", {}),
    ("RMSprop", {}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("ASGD", {}),
    ("Rprop", {}),
    ("Adafactor", {}),
]


def step_peak(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> int:
    """Return the most bytes of a later step beyond what exists before it (RAdam is plain for the first five)."""
    for _ in range(7):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        tracker = MemTracker()
        tracker.track_external(optimizer, *parameters, *[p.grad for p in parameters if p.grad is not None])
        with tracker:
            before = tracker.get_tracker_snapshot("current")[torch.device("cpu")]["Total"]
            optimizer.step()
        peak = int(tracker._peak_mem[torch.device("cpu")])
    return peak - int(before)


def plan(name: str, options: dict[str, Any]) -> Plan:
    return Plan(optimizer=OptimizerPlan(name=name, count=1, options=options), host=True)


PIECES = [Piece(shape, 4) for shape in SHAPES]
SMALL = 4 * min(a * b for a, b in SHAPES)


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_temporaries_are_those_of_a_real_step(name: str, options: dict[str, Any], foreach: bool) -> None:
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    optimizer = getattr(torch.optim, name)(parameters, lr=1e-3, foreach=foreach, **options)
    measured = step_peak(optimizer, parameters)
    found = temporaries(PIECES, plan(name, {**options, "foreach": foreach}))
    assert found.bytes is not None
    # Scalars and factored rows come on top; a copy of even the smallest tensor may not be missed or made up.
    assert abs(found.bytes - measured) < SMALL / 2, f"{found.rule}: {found.bytes}, measured {measured}"


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_fused_steps_need_nothing(name: str) -> None:
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    optimizer = getattr(torch.optim, name)(parameters, lr=1e-3, fused=True)
    assert step_peak(optimizer, parameters) < SMALL / 2
    assert temporaries(PIECES, plan(name, {"fused": True})).bytes == 0


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_works_on_one_matrix_at_a_time() -> None:
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    measured = step_peak(torch.optim.Muon(parameters, lr=1e-3), parameters)
    found = temporaries(PIECES, plan("Muon", {}))
    assert found.bytes == pytest.approx(measured, rel=0.1)


def test_a_gpu_steps_foreach_by_default_and_a_host_in_a_loop() -> None:
    every, largest = sum(4 * a * b for a, b in SHAPES), 4 * 96 * 64
    adamw = OptimizerPlan(name="AdamW", count=1)
    assert temporaries(PIECES, Plan(optimizer=adamw)).bytes == every
    assert temporaries(PIECES, Plan(optimizer=adamw, host=True)).bytes == 3 * largest


def test_groups_step_one_after_the_other() -> None:
    updated = [Piece((10, 10), 4, group=0), Piece((20, 10), 4, group=1)]
    pieces = [*updated, Piece((5,), 4, group=-1), Piece((90, 9), 4, group=0, trainable=False)]
    groups = (OptimizerPlan(name="AdamW", count=1), OptimizerPlan(name="AdamW", count=1))
    assert temporaries(pieces, Plan(optimizer=groups[0], groups=groups)).bytes == 800


def test_an_unknown_optimizer_is_a_guess_and_says_so() -> None:
    found = temporaries(PIECES, Plan(optimizer=OptimizerPlan(name="Odd", count=1)))
    assert found.bytes == 2 * 4 * 96 * 64
    assert found.within is None
