"""What DeepSpeed's own estimators of model states answer, to stand beside the budget.

Source: DeepSpeed 0.19.8 ``estimate_zero2_model_states_mem_needs`` (runtime/zero/stage_1_and_2.py) and
``estimate_zero3_model_states_mem_needs`` (runtime/zero/stage3.py). They know no activations, no buckets, no batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from ranktop.budget.explain.whole import Whole
from ranktop.budget.models.tensors import tensors
from ranktop.budget.plan import Plan
from ranktop.budget.run import Run


@dataclass(frozen=True, slots=True)
class Estimate:
    """One estimator's answer."""

    formula: str
    bytes: int
    function: str


def zero_2(plan: Plan, parameters: int) -> Estimate:
    """Return bytes per GPU for ZeRO-2; with offload the estimator leaves the 16-bit weights alone on it."""
    name = "estimate_zero2_model_states_mem_needs"
    if plan.zero is not None and plan.zero.offload_optimizer != "none":
        return Estimate("2P", 2 * parameters, name)
    return Estimate("2P + 18P/N", 2 * parameters + 18 * parameters // plan.layout.world_size, name)


def zero_3(run: Run, plan: Plan, whole: Whole) -> Estimate | None:
    """Return bytes per GPU for ZeRO-3; None when the largest layer is not known.

    A layer is a module with parameters of its own; of a matrix and its bias the matrix is taken alone.
    """
    if not run.model.family:
        return None
    name = "estimate_zero3_model_states_mem_needs"
    largest = 4 * max(tensor.numel for tensor in tensors(run.model))
    options, parameters = plan.zero, whole.parameters
    if options is not None and options.offload_parameters != "none":
        return Estimate("4 × largest layer", largest, name)
    each = 2 if options is not None and options.offload_optimizer != "none" else 18
    return Estimate(f"4 × largest layer + {each}P/N", largest + each * parameters // plan.layout.world_size, name)
