"""A DeepSpeed engine's inventory and plan: its configuration, its parameters and its live optimizer."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Batch, Layout, Plan, Precision, Zero

if TYPE_CHECKING:
    import torch

GROUPS: Final = ("bit16_groups", "bf16_groups", "fp16_groups")
"""Where a wrapper keeps the model's parameters by optimizer group (stage 3: by sub-group)."""

MASTERS: Final = (
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
    "fp32_groups_flat_partition",
    "fp32_groups_flat",
    "fp32_groups",
)
"""Where a wrapper keeps its master weights: stages 1-2, 3, BF16_Optimizer, FP16_Optimizer, the unfused one."""

DEFAULT_WRAPPERS: Final = ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3")
"""What DeepSpeed puts around the base optimizer at stages 1 to 3, but for some data types."""


_ENDS: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[Any], ...]] = weakref.WeakKeyDictionary()


def own(holder: object, name: str) -> Any:
    """Look an attribute up in the instance only: engines pass unknown names on to the model."""
    return getattr(holder, "__dict__", {}).get(name)


def base_optimizer(engine: Any) -> Any | None:
    """Return the torch optimizer that DeepSpeed's wrapper drives, or None without one."""
    outer = own(engine, "optimizer")
    inner = own(outer, "optimizer")
    found = outer if inner is None else inner
    return found if hasattr(found, "param_groups") and hasattr(found, "state") else None


def end_parameters(engine: Any) -> list[Any]:
    """Return the first and the last trainable parameter, looked for once per engine."""
    known = _ENDS.get(engine)
    if known is None:
        trainable = [p for p in own(engine, "module").parameters() if p.requires_grad]
        known = tuple(weakref.ref(p) for p in (*trainable[:1], *trainable[-1:]))
        _ENDS[engine] = known
    return [p for p in (ref() for ref in known) if p is not None]


def inventory(engine: Any) -> Inventory:
    """Return the model's parameters by whole shape, in the order of ``parameters()``."""
    model: torch.nn.Module = own(engine, "module")
    groups = _group_of(engine)
    kinds = [
        Kind(
            shape=tuple(getattr(parameter, "ds_shape", parameter.shape)),
            dtype=_name(parameter.dtype),
            trainable=parameter.requires_grad,
            group=groups.get(id(parameter), -1),
        )
        for parameter in model.parameters()
    ]
    return Inventory.of(kinds, sum(b.untyped_storage().nbytes() for b in model.buffers()))


def plan(engine: Any, seen: Any = None) -> Plan:
    """Return the plan; ``seen`` tells the sequence length if it has one."""
    from ranktop.probes.optimizer import describe

    stage = int(engine.zero_optimization_stage())
    parameters = next((_name(p.dtype) for p in end_parameters(engine)), "float32")
    accumulated = _name(engine.get_data_types()[1])
    gradients = accumulated if accumulated != parameters else None
    base = base_optimizer(engine)
    optimizer, groups = describe([base] if base is not None else [])
    return Plan(
        strategy=f"zero{stage}",
        layout=_layout(engine, stage),
        zero=zero(engine, stage, gradients),
        precision=Precision(
            parameters=parameters,
            gradients=gradients,
            reduce=_name(engine.communication_data_type),
            autocast=_name(engine.torch_autocast_dtype()) if engine.torch_autocast_enabled() else None,
            master=_master(own(engine, "optimizer")),
        ),
        optimizer=optimizer,
        groups=groups,
        batch=Batch(
            micro_batch=int(engine.train_micro_batch_size_per_gpu()),
            sequence_length=getattr(seen, "sequence_length", None),
            accumulation=int(engine.gradient_accumulation_steps()),
        ),
        gradients_at=("backward_end", "step_end"),
        notes=_notes(engine),
        host=engine.device.type == "cpu",
    )


def _layout(engine: Any, stage: int) -> Layout:
    import torch.distributed as dist

    group = own(engine, "seq_data_parallel_group")
    ranks = int(engine.seq_dp_world_size)
    together = dist.is_available() and dist.is_initialized()
    rank = max(0, dist.get_rank(group)) if together else 0
    world = dist.get_world_size() if together else ranks
    tensor = max(1, int(engine.mp_world_size))
    if stage:
        return Layout(world_size=world, tensor=tensor, shard=ranks, shard_rank=rank)
    return Layout(world_size=world, tensor=tensor, replicate=ranks, replicate_rank=rank)


def zero(engine: Any, stage: int, gradient_dtype: str | None) -> Zero:
    """Return the options of DeepSpeed's ``zero_optimization`` as the engine resolved them."""
    config = engine._config.zero_config
    wrapper = type(own(engine, "optimizer")).__name__
    plain = wrapper in DEFAULT_WRAPPERS or not wrapper.endswith("Optimizer")
    return Zero(
        stage=stage,
        offload_optimizer=_offload(config.offload_optimizer),
        offload_parameters=_offload(config.offload_param),
        reduce_bucket_size=int(config.reduce_bucket_size),
        allgather_bucket_size=int(config.allgather_bucket_size),
        overlap_comm=bool(config.overlap_comm),
        contiguous_gradients=bool(config.contiguous_gradients),
        round_robin_gradients=bool(config.round_robin_gradients),
        persistence_threshold=int(config.param_persistence_threshold),
        sub_group_size=int(config.sub_group_size),
        gradient_dtype=gradient_dtype,
        model_persistence_threshold=int(config.model_persistence_threshold),
        parameter_alignment=bool(getattr(config, "parameter_alignment", False)),
        wrapper="" if plain else wrapper,
        not_budgeted=_not_budgeted(engine, config, stage),
        prefetch_bucket_size=int(config.prefetch_bucket_size),
        max_live_parameters=int(config.max_live_parameters),
        max_reuse_distance=int(config.max_reuse_distance),
        pin_memory=bool(getattr(config.offload_optimizer or config.offload_param, "pin_memory", True)),
        gather_weights_on_save=bool(config.gather_16bit_weights_on_model_save),
        communication_dtype=_name(engine.communication_data_type),
    )


def _group_of(engine: Any) -> dict[int, int]:
    """Map the identity of each updated parameter to its optimizer group."""
    source = own(own(engine, "optimizer"), "sub_group_to_group_id") or {}
    return {id(p): source.get(index, index) for index, group in enumerate(_groups(engine)) for p in group}


def _groups(engine: Any) -> list[list[Any]]:
    """Return the updated parameters by optimizer group, at stage 3 by sub-group, in DeepSpeed's order."""
    outer = own(engine, "optimizer")
    groups = next((found for found in (own(outer, name) for name in GROUPS) if found is not None), None)
    if groups is None:
        groups = [[p for p in group["params"] if p.requires_grad] for group in getattr(outer, "param_groups", ())]
    return list(groups)


def _notes(engine: Any) -> tuple[str, ...]:
    if base_optimizer(engine) is None:
        return ("the DeepSpeed engine has no optimizer",)
    position = {id(p): index for index, p in enumerate(own(engine, "module").parameters())}
    for group in _groups(engine):
        places = [position.get(id(p), -1) for p in group]
        if places != sorted(places):
            return (
                "an optimizer group has its parameters in another order than the model: "
                "which of them lie on a border between ranks is not known",
            )
    return ()


def _master(outer: object) -> str | None:
    """Dtype of the master weights, None when the base optimizer updates the model's own parameters."""
    for name in MASTERS:
        masters = own(outer, name)
        if masters:
            first = masters[0]
            return _name((first[0] if isinstance(first, list) else first).dtype)
    return None


def _not_budgeted(engine: Any, config: Any, stage: int) -> tuple[str, ...]:
    """Name the options in use that move bytes by rules the budget does not have."""
    offload = config.offload_optimizer
    base, inner = type(own(engine, "optimizer")).__name__, type(base_optimizer(engine)).__name__
    checks = {
        "NVMe offload": "nvme" in (_offload(offload), _offload(config.offload_param)),
        "zero_hpz_partition_size": int(getattr(config, "zero_hpz_partition_size", 1)) > 1,
        "zero_quantized_weights": bool(getattr(config, "zero_quantized_weights", False)),
        "zero_quantized_nontrainable_weights": bool(getattr(config, "zero_quantized_nontrainable_weights", False)),
        "ZenFlow": getattr(config, "zenflow", None) is not None,
        "partial optimizer offload": stage == 3 and float(getattr(offload, "ratio", 1.0)) < 1.0,
        "mixture of experts": bool(own(engine, "has_moe_layers")),
        "Muon": "muon" in inner.lower(),
        "Adagrad, whose first states DeepSpeed leaves beside": stage > 0 and inner == "Adagrad",
        "pipeline engine": type(engine).__name__ == "PipelineEngine",
        "no optimizer": own(engine, "optimizer") is None or base in ("DummyOptim", "DeepSpeedZeRoOffload"),
    }
    return tuple(name for name, used in checks.items() if used)


def _offload(config: Any) -> str:
    device = getattr(config, "device", None)
    return "none" if device is None else str(getattr(device, "value", device))


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
