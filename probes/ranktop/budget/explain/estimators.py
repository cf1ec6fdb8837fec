"""What DeepSpeed's own estimators of model states answer, to stand beside the budget.

Source: DeepSpeed 0.19.8 ``estimate_zero2_model_states_mem_needs`` (runtime/zero/stage_1_and_2.py) and
``estimate_zero3_model_states_mem_needs`` (runtime/zero/stage3.py). They know no activations, no buckets, no batch.
"""

from __future__ import annotations

from ranktop.budget.explain.whole import Whole
from ranktop.budget.models.tensors import tensors
from ranktop.budget.plan import Plan
from ranktop.budget.run import Run


def zero_2(run: Run, plan: Plan, parameters: int) -> int:
    """Return bytes per GPU for ZeRO-2."""
    if plan.zero is not None and plan.zero.offload_optimizer != "none":
        return 2 * parameters
    return 2 * parameters + 18 * parameters // plan.layout.world_size


def zero_3_states(run: Run, plan: Plan, whole: Whole) -> int | None:
    """Return bytes per GPU for ZeRO-3; None when the largest layer is not known."""
    if not run.model.family:
        return None
    # A "layer" is a module with parameters of its own: its weight and its bias.
    largest = 4 * max(tensor.numel for tensor in tensors(run.model))
    options, parameters = plan.zero, whole.parameters
    if options is not None and options.offload_parameters != "none":
        return largest
    each = 2 if options is not None and options.offload_optimizer != "none" else 18
    return largest + each * parameters // plan.layout.world_size
