"""Model states under DeepSpeed ZeRO-0 to ZeRO-3, to the byte, for one rank at the moments of a step.

Source: DeepSpeed 0.19.8. Its optimizer works group by group (stage 3: sub-group by sub-group): ``backward_end``
is just before the base optimizer's first step of those, ``step_end`` just after the last. With accumulation,
``forward_end`` and ``backward_start`` belong to the last micro-batch of a step.
"""

from __future__ import annotations

from typing import Final

from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Plan, Zero
from ranktop.budget.terms import MOMENTS, STATES, Amount
from ranktop.budget.zero.flat import BF16_WRAPPER, Flat, FlatBf16
from ranktop.budget.zero.job import Job, Layout
from ranktop.budget.zero.whole import Partitioned, Replicated

NVME: Final = "NVMe offload"
"""How a live job's options name it among those without a rule."""


def expected(inventory: Inventory, plan: Plan, first_step: bool = False) -> dict[str, dict[str, Amount]]:
    """Return moment -> category -> bytes of parameters, gradients and optimizer of one rank on its device.

    What is offloaded to the host counts only where the job computes on the host itself (``Plan.host``): there the
    host is the device. ``first_step`` is the step during which the base optimizer makes its state.
    """
    options = options_of(plan)
    reason = uncovered(plan, options)
    if reason is not None:
        return {moment: dict.fromkeys(STATES, Amount(None, reason)) for moment in MOMENTS}
    layout = layout_of(Job(inventory, plan, options, first_step))
    return {
        moment: {
            "parameters": layout.parameters(moment),
            "gradients": layout.gradients(moment),
            "optimizer": layout.optimizer(moment),
        }
        for moment in MOMENTS
    }


def options_of(plan: Plan) -> Zero:
    """Return the plan's ZeRO options, or the defaults of the stage that its strategy names."""
    return plan.zero if plan.zero is not None else Zero(stage=int(plan.strategy.removeprefix("zero")))


def layout_of(job: Job) -> Layout:
    """Return the rules for how DeepSpeed lays this job's states out."""
    if job.options.stage == 0:
        return Replicated(job)
    if job.options.stage == 3:
        return Partitioned(job)
    return FlatBf16(job) if job.options.wrapper == BF16_WRAPPER else Flat(job)


def uncovered(plan: Plan, options: Zero) -> str | None:
    """Say why no rule covers this plan, or None.

    On a device of its own NVMe offload leaves as much as offload to the host does; stages 1 and 2 treat it as that.
    A job on the host would need to know which swap buffers are in use.
    """
    used = [name for name in options.not_budgeted if name != NVME]
    if plan.host and "nvme" in (options.offload_optimizer, options.offload_parameters):
        used.append(f"{NVME} of a job on the host")
    mixed = options.gradient_dtype not in (None, plan.precision.parameters)
    if mixed and options.stage == 1 and options.wrapper != BF16_WRAPPER:
        used.append("ZeRO-1 that accumulates gradients in another dtype than the parameters'")
    if mixed and options.stage == 2 and options.offload_optimizer != "none":
        used.append("ZeRO-2 offload that accumulates gradients in another dtype than the parameters'")
    return f"no rule for DeepSpeed with {', '.join(used)}" if used else None
