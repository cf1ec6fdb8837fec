"""The budget of the model states: which rule speaks for a strategy, and what exists at which moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ranktop.budget import data_parallel, ddp, zero_redundancy
from ranktop.budget.fsdp import states as fsdp
from ranktop.budget.held import Held
from ranktop.budget.inventory import Inventory
from ranktop.budget.optimizers import muon as muon
from ranktop.budget.plan import Plan
from ranktop.budget.terms import MOMENTS, NOT_BUDGETED, STATES, Amount, Budget
from ranktop.budget.words import strategy_words as strategy_words

_RULES: Final[dict[str, Callable[[Inventory, Plan], Held]]] = {
    "single": ddp.expected,
    "dp": data_parallel.data_parallel,
    "ps": data_parallel.parameter_server,
    "3d": data_parallel.distributed_optimizer,
    "ddp": ddp.expected,
    "tp": ddp.expected,
    "pp": ddp.expected,
    "zero-redundancy": zero_redundancy.expected,
    "fsdp1": fsdp.expected,
    "fsdp2": fsdp.expected,
}

_WITH_STEP: Final = ("backward_end", "step_end")
"""Moments at which the gradients of a step exist whatever came before it."""

_FREED: Final = Amount(0, "the script has freed its gradients by then (zero_grad)")
_NOT_YET: Final = Amount(0, "no gradients before the first backward")


def expected_states(inventory: Inventory, plan: Plan, *, first_step: bool = False) -> Budget:
    """Return what this rank should hold at each moment of a step: parameters, gradients, optimizer.

    With ``first_step`` the optimizer's state did not exist until ``step_end``. Categories without a rule yet
    have no bytes and say so.
    """
    rest = {name: Amount(None, NOT_BUDGETED) for name in ("activations", "buffers", "runtime")}
    if plan.zero is not None:
        from ranktop.budget.zero import states as zero

        moments = zero.expected(inventory, plan, first_step=first_step)
        return Budget({moment: {**moments.get(moment, {}), **rest} for moment in MOMENTS})
    states = held_of(inventory, plan)
    if states is None:
        unknown = Amount(None, f"no rule for the strategy {plan.strategy!r}")
        return Budget({moment: {**dict.fromkeys(STATES, unknown), **rest} for moment in MOMENTS})
    return Budget({moment: {**at(moment, states, plan, first_step), **rest} for moment in MOMENTS})


def held_of(inventory: Inventory, plan: Plan) -> Held | None:
    """Return the states of this rank by its strategy's rule (all but DeepSpeed's); None without a rule."""
    rule = _RULES.get(plan.strategy)
    if rule is not None and plan.zero_redundancy and plan.strategy == "ddp":
        rule = zero_redundancy.expected
    return None if rule is None else rule(*muon.dealt(inventory, plan))


def at(moment: str, states: Held, plan: Plan, first_step: bool) -> dict[str, Amount]:
    """Return the amounts of the states at one of MOMENTS."""
    gradients = states.gradients if moment in plan.gradients_at else _FREED
    if moment in plan.unsharded_gradients_at and states.unsharded is not None:
        gradients = states.unsharded
    accumulating = (plan.batch.accumulation or 1) > 1
    if first_step and moment not in _WITH_STEP and (moment == "step_start" or not accumulating):
        gradients = _NOT_YET
    before = first_step and moment != "step_end"
    return {
        "parameters": states.parameters,
        "gradients": gradients,
        "optimizer": states.optimizer_before if before else states.optimizer,
    }
