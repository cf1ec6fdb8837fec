"""The planner's names for what a live plan does."""

from __future__ import annotations

from typing import Final

from ranktop.budget.plan import Plan

_SHARDING: Final = {
    "full": "fsdp-full", "grad-op": "fsdp-grad-op", "hybrid": "fsdp-hybrid", "hybrid-grad-op": "fsdp-hybrid",
    "none": "ddp",
}  # fmt: skip


def own_strategy(plan: Plan) -> str:
    """Return the name in ``run.STRATEGIES`` that a live plan is closest to."""
    layout = plan.layout
    if plan.zero is not None:
        if "nvme" in (plan.zero.offload_optimizer, plan.zero.offload_parameters):
            return "zero-infinity"
        away = plan.zero.offload_optimizer != "none" or plan.zero.offload_parameters != "none"
        stage = f"zero{plan.zero.stage}" if plan.zero.stage else "ddp"
        return f"{stage}-offload" if away and plan.zero.stage else stage
    if layout.tensor > 1 and layout.pipeline > 1:
        return "3d"
    if layout.pipeline > 1:
        return "pp-gpipe" if plan.pipeline is not None and plan.pipeline.schedule == "gpipe" else "pp-1f1b"
    if plan.fsdp is not None:
        return _SHARDING.get(plan.fsdp.sharding, "fsdp-full")
    if layout.tensor > 1:
        return "tp"
    return plan.strategy if plan.strategy in ("single", "dp", "ps", "ddp") else "ddp"


def precision_name(plan: Plan) -> str:
    """Return the name in ``run.PRECISIONS`` that a live plan's dtypes are closest to."""
    dtypes = plan.precision
    if dtypes.autocast:
        return "amp-fp16" if dtypes.autocast == "float16" else "amp-bf16"
    if dtypes.parameters.startswith("float8"):
        return "fp8"
    half = {"bfloat16": "bf16", "float16": "fp16"}
    stored, compute = half.get(dtypes.parameters), half.get(dtypes.compute or "")
    if stored is not None:
        return f"{stored}-master" if dtypes.master or plan.zero is not None or stored == "fp16" else stored
    return f"{compute}-master" if compute is not None and plan.fsdp is not None else "fp32"
