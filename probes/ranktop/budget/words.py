"""A plan in words."""

from __future__ import annotations

from typing import Final

from ranktop.budget.plan import Layout, OptimizerPlan, Plan, Precision

_DTYPES: Final = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip
_STRATEGIES: Final = {
    "single": "one device", "dp": "DataParallel", "ddp": "DDP", "tp": "TP", "pp": "PP",
    "ps": "parameter server", "3d": "3D parallel",
    "zero-redundancy": "DDP + ZeroRedundancyOptimizer",
}  # fmt: skip
_SHARDING: Final = {
    "full": "full shard", "grad-op": "grad-op shard", "hybrid": "hybrid shard",
    "hybrid-grad-op": "hybrid grad-op shard", "none": "no shard",
}  # fmt: skip


def strategy_words(plan: Plan) -> str:
    """Return a plan in one short line, e.g. ``FSDP2 full shard · dp 8 · bf16/fp32 · AdamW``."""
    parts = [_strategy(plan), *_axes(plan.layout), precision_words(plan.precision), optimizer_words(plan)]
    return " · ".join(part for part in parts if part)


def _strategy(plan: Plan) -> str:
    if plan.fsdp is not None and plan.strategy.startswith("fsdp"):
        offload = " offloaded" if plan.fsdp.cpu_offload else ""
        return f"FSDP{plan.fsdp.version} {_SHARDING.get(plan.fsdp.sharding, plan.fsdp.sharding)}{offload}"
    if plan.zero is not None:
        away = {plan.zero.offload_optimizer, plan.zero.offload_parameters} - {"none"}
        return f"ZeRO-{plan.zero.stage}" + (f" offloaded to {'+'.join(sorted(away))}" if away else "")
    return _STRATEGIES.get(plan.strategy, plan.strategy)


def _axes(layout: Layout) -> list[str]:
    data = f"{layout.replicate}×{layout.shard}" if layout.replicate > 1 < layout.shard else f"{layout.data}"
    sizes = (("tp", layout.tensor), ("pp", layout.pipeline), ("cp", layout.context), ("ep", layout.expert))
    return [f"dp {data}"] * (layout.data > 1) + [f"{name} {size}" for name, size in sizes if size > 1]


def dtype_words(name: str) -> str:
    """Return a dtype's short name, e.g. ``bf16``."""
    return _DTYPES.get(name, name)


def precision_words(precision: Precision) -> str:
    """Return compute and stored dtype, e.g. ``bf16/fp32``; one name when they are the same."""
    stored = dtype_words(precision.parameters)
    compute = dtype_words(precision.compute) if precision.compute else stored
    words = stored if compute == stored else f"{compute}/{stored}"
    if precision.autocast:
        words += f" autocast {dtype_words(precision.autocast)}"
    return words + (f" + {dtype_words(precision.master)} master" if precision.master else "")


def optimizer_words(plan: Plan) -> str:
    """Return the optimizers by name, e.g. ``AdamW`` or ``SGD momentum + AdamW``; empty when there is none."""
    return " + ".join(dict.fromkeys(optimizer_name(group) for group in plan.groups or (plan.optimizer,)))


def optimizer_name(optimizer: OptimizerPlan) -> str:
    """Return one optimizer with the options that change what it keeps, e.g. ``SGD momentum``."""
    options = [name for name in ("momentum", "amsgrad", "centered") if optimizer.options.get(name)]
    return " ".join([optimizer.name, *options]).strip()
