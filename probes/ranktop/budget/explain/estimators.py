"""What DeepSpeed's own estimators of model states answer for a plan, to stand beside the budget.

They know no activations, no buckets, no batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from ranktop.budget.estimators import deepspeed_zero2, deepspeed_zero3
from ranktop.budget.explain.whole import Whole
from ranktop.budget.models.tensors import tensors
from ranktop.budget.plan import Plan
from ranktop.budget.run import Run


@dataclass(frozen=True, slots=True)
class Said:
    """One estimator's answer."""

    formula: str
    bytes: int
    """Per GPU."""
    function: str


def zero_2(plan: Plan, parameters: int) -> Said:
    """Return bytes per GPU for ZeRO-2; with offload the estimator leaves the 16-bit weights alone on it."""
    offload = plan.zero is not None and plan.zero.offload_optimizer != "none"
    found = deepspeed_zero2(parameters, plan.layout.world_size, offload=offload)
    return Said("2P" if offload else "2P + 18P/N", found.gpu, "estimate_zero2_model_states_mem_needs")


def zero_3(run: Run, plan: Plan, whole: Whole) -> Said | None:
    """Return bytes per GPU for ZeRO-3; None when the largest layer is not known.

    A layer is a module with parameters of its own; of a matrix and its bias the matrix is taken alone.
    """
    if not run.model.family:
        return None
    optimizer = plan.zero is not None and plan.zero.offload_optimizer != "none"
    weights = plan.zero is not None and plan.zero.offload_parameters != "none"
    found = deepspeed_zero3(
        whole.parameters,
        max(tensor.numel for tensor in tensors(run.model)),
        plan.layout.world_size,
        offload_optimizer=optimizer,
        offload_parameters=weights,
    )
    formula = "4 × largest layer"
    if not (optimizer and weights):
        formula += f" + {2 if optimizer else 18}P/N"
    return Said(formula, found.gpu, "estimate_zero3_model_states_mem_needs")
