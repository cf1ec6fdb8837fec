"""A plan as the lines that ask for it: a DeepSpeed JSON, an Accelerate YAML, or code for FSDP2 and DDP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.plan import Fsdp, Plan, Zero

KINDS: Final = ("deepspeed", "accelerate", "code")
"""What a plan can be written as; ``code`` is Python for torch's own wrappers."""

_SHARDING_1: Final = {
    "full": "FULL_SHARD",
    "grad-op": "SHARD_GRAD_OP",
    "none": "NO_SHARD",
    "hybrid": "HYBRID_SHARD",
    "hybrid-grad-op": "HYBRID_SHARD_ZERO2",
}

_STAGE_3: Final = {
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "persistence_threshold": "stage3_param_persistence_threshold",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "sub_group_size": "sub_group_size",
}

_BUCKETS: Final = {
    "reduce_bucket_size": "reduce_bucket_size",
    "allgather_bucket_size": "allgather_bucket_size",
    "contiguous_gradients": "contiguous_gradients",
    "round_robin_gradients": "round_robin_gradients",
}


def config_lines(plan: Plan, kind: str) -> list[str]:
    """Return the lines of a file of one of KINDS. Raises NoRule when that form cannot ask for the plan."""
    if kind == "deepspeed":
        return json.dumps(deepspeed_json(plan), indent=2).splitlines()
    if kind == "accelerate":
        return list(_accelerate(plan))
    if kind == "code":
        return list(_code(plan))
    raise BadInput(f"no config {kind!r}; there are {', '.join(KINDS)}")


def kinds_for(plan: Plan) -> tuple[str, ...]:
    """Return those of KINDS that can ask for a plan, the most direct first."""
    order = ("deepspeed", "accelerate") if plan.zero is not None else ("code", "accelerate")
    possible = []
    for kind in order:
        try:
            config_lines(plan, kind)
        except NoRule:
            continue
        possible.append(kind)
    return tuple(possible)


def deepspeed_json(plan: Plan) -> dict[str, Any]:
    """Return DeepSpeed's config as a mapping; options at their default are left out. Raises NoRule."""
    if plan.zero is None:
        raise NoRule("only ZeRO plans are written as a DeepSpeed JSON")
    layout, batch = plan.layout, plan.batch
    accumulation = plan.micro_batches
    found: dict[str, Any] = {}
    if batch.micro_batch is not None:
        found["train_batch_size"] = batch.micro_batch * accumulation * layout.data
        found["train_micro_batch_size_per_gpu"] = batch.micro_batch
    found["gradient_accumulation_steps"] = accumulation
    half = _half(plan)
    autocast = plan.precision.autocast
    if autocast is not None and plan.precision.parameters == "float32":
        found["torch_autocast"] = {"enabled": True, "dtype": autocast}
    elif half:
        found[half] = {"enabled": True}
    if plan.zero.communication_dtype is not None:
        short = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
        found["communication_data_type"] = short[plan.zero.communication_dtype]
    if plan.zero.gradient_dtype == "float32" and plan.precision.parameters != "float32":
        found["data_types"] = {"grad_accum_dtype": "fp32"}
    found["zero_optimization"] = _zero_section(plan.zero)
    return found


def _zero_section(zero: Zero) -> dict[str, Any]:
    default = Zero(stage=zero.stage)
    found: dict[str, Any] = {"stage": zero.stage, "overlap_comm": zero.overlap_comm}
    names = {**_BUCKETS, **(_STAGE_3 if zero.stage == 3 else {})}
    for field, key in names.items():
        if getattr(zero, field) != getattr(default, field):
            found[key] = getattr(zero, field)
    if zero.offload_optimizer != "none":
        found["offload_optimizer"] = _offload(zero.offload_optimizer, zero.pin_memory, zero.optimizer_buffer_count)
    if zero.offload_parameters != "none" and zero.stage == 3:
        found["offload_param"] = _offload(zero.offload_parameters, zero.pin_memory, zero.nvme_buffer_count)
        if zero.offload_parameters == "nvme":
            found["offload_param"] |= {"buffer_size": zero.nvme_buffer_size, "max_in_cpu": zero.max_in_cpu}
    if zero.gather_weights_on_save and zero.stage == 3:
        found["stage3_gather_16bit_weights_on_model_save"] = True
    return found


def _offload(device: str, pinned: bool, buffers: int) -> dict[str, Any]:
    found: dict[str, Any] = {"device": device, "pin_memory": pinned}
    return found | {"nvme_path": "/local_nvme", "buffer_count": buffers} if device == "nvme" else found


def _half(plan: Plan) -> str:
    """Return ``bf16`` or ``fp16``, the number format that matrices are computed in, or nothing for fp32."""
    precision = plan.precision
    dtype = precision.compute or precision.autocast or precision.parameters
    return {"bfloat16": "bf16", "float16": "fp16"}.get(dtype, "")


def _accelerate(plan: Plan) -> Iterator[str]:
    layout = plan.layout
    if plan.pipeline is not None or layout.expert > 1 or plan.strategy in ("dp", "ps"):
        raise NoRule("Accelerate's config has no words for this layout")
    head: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE"}
    tail: dict[str, Any] = {"num_machines": 1, "num_processes": layout.world_size, "main_training_function": "main"}
    if plan.zero is not None:
        section = _deepspeed_section(plan)
        body: dict[str, Any] = {"distributed_type": "DEEPSPEED", "deepspeed_config": section}
        if "deepspeed_config_file" not in section:
            body["mixed_precision"] = _half(plan) or "no"
        yield from _yaml(head | body | tail)
    elif plan.fsdp is not None:
        yield from _comments(plan)
        mixed = _half(plan) if plan.precision.compute else ""
        body = {"distributed_type": "FSDP", "mixed_precision": mixed or "no"}
        body["fsdp_config"] = _fsdp_section(plan.fsdp, plan)
        if plan.fsdp.version == 2 and max(layout.replicate, layout.tensor, layout.context) > 1:
            sizes = {"dp_replicate": layout.replicate, "dp_shard": layout.shard, "tp": layout.tensor,
                     "cp": layout.context}  # fmt: skip
            body["parallelism_config"] = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
        yield from _yaml(head | body | tail)
    else:
        if layout.tensor > 1 or layout.context > 1 or layout.shard > 1:
            raise NoRule("Accelerate splits models with FSDP2, DeepSpeed or Megatron-LM alone")
        if plan.precision.master:
            raise NoRule("Accelerate's DDP keeps no master weights")
        yield from _comments(plan)
        kind = "NO" if layout.world_size == 1 else "MULTI_GPU"
        mixed = _half(plan) if plan.precision.autocast else ""
        yield from _yaml(head | {"distributed_type": kind, "mixed_precision": mixed or "no"} | tail)


def _comments(plan: Plan) -> Iterator[str]:
    """Yield what Accelerate wants in the script instead of its config."""
    if (plan.batch.accumulation or 1) > 1:
        yield f"# in the script: Accelerator(gradient_accumulation_steps={plan.batch.accumulation})"
    if plan.precision.parameters in ("bfloat16", "float16"):
        yield f"# in the script: load the model with dtype=torch.{plan.precision.parameters}"
    if plan.checkpointing == "selective" or (plan.checkpointing == "full" and plan.fsdp is None):
        yield f"# in the script: {plan.checkpointing} activation checkpointing"


def _deepspeed_section(plan: Plan) -> dict[str, Any]:
    """Return Accelerate's few keys, or the file beside it when they do not say everything."""
    zero = plan.zero
    assert zero is not None
    told = {"stage", "overlap_comm", "offload_optimizer", "offload_param", "stage3_gather_16bit_weights_on_model_save"}
    whole = deepspeed_json(plan)
    plain = zero.overlap_comm == (zero.stage == 3) and zero.pin_memory
    more = {"communication_data_type", "data_types", "torch_autocast"} & set(whole)
    if not plain or more or set(whole["zero_optimization"]) - told:
        return {"deepspeed_config_file": "ds_config.json"}
    found: dict[str, Any] = {
        "zero_stage": zero.stage,
        "gradient_accumulation_steps": whole["gradient_accumulation_steps"],
        "offload_optimizer_device": zero.offload_optimizer,
        "offload_param_device": zero.offload_parameters,
    }
    for name in ("optimizer", "param"):
        if found[f"offload_{name}_device"] == "nvme":
            found[f"offload_{name}_nvme_path"] = "/local_nvme"
    if zero.stage == 3:
        found |= {"zero3_init_flag": True, "zero3_save_16bit_model": zero.gather_weights_on_save}
    return found


def _fsdp_section(fsdp: Fsdp, plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {"fsdp_version": fsdp.version}
    if fsdp.version == 1:
        strategy = _SHARDING_1[fsdp.sharding]
        # Accelerate sets the first from its default unless it is given, and goes by it.
        found |= {"fsdp_sharding_strategy": strategy, "fsdp_reshard_after_forward": strategy}
        found["fsdp_backward_prefetch"] = "BACKWARD_PRE" if fsdp.prefetch else "NO_PREFETCH"
        found["fsdp_use_orig_params"] = fsdp.use_orig_params
    elif fsdp.sharding == "none" or fsdp.reshard_after_forward is not None:
        raise NoRule("Accelerate's FSDP2 re-shards after forward or not, nothing in between")
    else:
        found["fsdp_reshard_after_forward"] = fsdp.sharding in ("full", "hybrid")
    found["fsdp_auto_wrap_policy"] = "TRANSFORMER_BASED_WRAP"
    found["fsdp_offload_params"] = fsdp.cpu_offload
    found["fsdp_activation_checkpointing"] = plan.checkpointing == "full"
    found["fsdp_state_dict_type"] = "SHARDED_STATE_DICT"
    return found


def _yaml(data: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Yield nested mappings of plain words and numbers as YAML."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _yaml(value, indent + "  ")
        elif isinstance(value, bool):
            yield f"{indent}{key}: {str(value).lower()}"
        else:
            # Bare "no" is false to a YAML parser.
            yield f"{indent}{key}: {value!r}" if value in ("no", "NO") else f"{indent}{key}: {value}"


def _code(plan: Plan) -> Iterator[str]:
    if plan.zero is not None or plan.pipeline is not None or max(plan.layout.tensor, plan.layout.context) > 1:
        raise NoRule("more than a wrapper around the model")
    if plan.fsdp is not None:
        yield from _fsdp2_code(plan.fsdp, plan)
        return
    if plan.ddp is None:
        raise NoRule("no wrapper around the model")
    options = "" if not plan.ddp.gradient_as_bucket_view else ", gradient_as_bucket_view=True"
    options += f", bucket_cap_mb={plan.ddp.bucket_cap_mb:g}" if plan.ddp.bucket_cap_mb != 25.0 else ""
    options += ", static_graph=True" if plan.ddp.static_graph else ""
    yield "from torch.nn.parallel import DistributedDataParallel"
    yield f"model = DistributedDataParallel(model{options})"


def _fsdp2_code(fsdp: Fsdp, plan: Plan) -> Iterator[str]:
    """FSDP2, block by block; ``model.layers`` stands for wherever the model keeps its blocks."""
    if fsdp.version == 1 or fsdp.sharding == "none":
        raise NoRule("FSDP1 is asked for through Accelerate's config")
    options = _fsdp2_options(fsdp, plan)
    names = {"fully_shard", *(name for name in ("MixedPrecisionPolicy", "CPUOffloadPolicy") if name in str(options))}
    yield "import torch"
    yield "from torch.distributed.device_mesh import init_device_mesh"
    yield f"from torch.distributed.fsdp import {', '.join(sorted(names))}"
    full = plan.checkpointing == "full"
    if full:
        yield "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper"
    yield "options = dict("
    yield from (f"    {option}," for option in options)
    yield ")"
    reshard: object = fsdp.reshard_after_forward or fsdp.sharding in ("full", "hybrid")
    yield "for name, block in model.layers.named_children():"
    if full:
        yield "    block = checkpoint_wrapper(block)"
        yield "    model.layers.register_module(name, block)"
    elif plan.checkpointing == "selective":
        yield "    # here: selective activation checkpointing of the block"
    yield f"    fully_shard(block, reshard_after_forward={reshard}, **options)"
    yield f"fully_shard(model, {'' if reshard else 'reshard_after_forward=False, '}**options)"


def _fsdp2_options(fsdp: Fsdp, plan: Plan) -> list[str]:
    layout, precision = plan.layout, plan.precision
    shape = f"({layout.shard},)"
    if fsdp.sharding.startswith("hybrid"):
        shape = f'({layout.replicate}, {layout.shard}), mesh_dim_names=("replicate", "shard")'
    options = [f'mesh=init_device_mesh("cuda", {shape})']
    if precision.compute:
        dtypes = f"param_dtype=torch.{precision.compute}, reduce_dtype=torch.{precision.reduce or precision.compute}"
        options.append(f"mp_policy=MixedPrecisionPolicy({dtypes})")
    if fsdp.cpu_offload:
        options.append("offload_policy=CPUOffloadPolicy()")
    return options
