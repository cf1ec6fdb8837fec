"""Accelerate's YAML, the Trainer's arguments and torchtitan's config, read as a description of a run.

Takes what a YAML, JSON or TOML parser gives. Source: accelerate 1.15 ``commands/config``, ``commands/launch.py``,
``utils/dataclasses.py``; transformers 5.24 ``training_args.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ranktop.budget.configs.fsdp import STRATEGY_OF, read_section, read_titan
from ranktop.budget.configs.setup import Section, Setup
from ranktop.budget.model import BadInput

_TYPES: Final = (
    "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU",
    "MULTI_NEURON", "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM",
)  # fmt: skip

_NO_BYTES: Final = (
    "compute_environment", "debug", "use_cpu", "machine_rank", "gpu_ids", "main_process_ip", "main_process_port",
    "rdzv_backend", "same_network", "main_training_function", "enable_cpu_affinity", "mpirun_config", "downcast_bf16",
    "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env",
    "dynamo_config", "fp8_config",
)  # fmt: skip

_IN_THE_JSON: Final = (
    "gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
    "offload_param_device", "offload_optimizer_nvme_path", "offload_param_nvme_path", "zero3_save_16bit_model",
)  # fmt: skip
"""Keys that Accelerate refuses beside ``deepspeed_config_file``."""

_SIZES: Final = {"tp": "tensor", "cp": "context", "dp_replicate": "replicate", "dp_shard": "data"}


def read_accelerate(data: object, where: str = "config") -> Setup:
    """Return what a parsed config says: Accelerate's, the Trainer's (``fsdp``/``fsdp_config``) or torchtitan's.

    Raises BadInput for contradictions and for values that cannot be meant; unknown keys are listed in the result.
    """
    if not isinstance(data, Mapping):
        raise BadInput(f"{where}: a config is a mapping of keys to values, not {type(data).__name__}")
    keys = {str(key): value for key, value in data.items()}
    if "distributed_type" in keys:
        return _accelerate(keys, where)
    if "fsdp" in keys or "fsdp_config" in keys:
        return _trainer(keys, where)
    if "parallelism" in keys:
        return read_titan(keys, where)
    raise BadInput(
        f"{where}: neither Accelerate's distributed_type, nor the Trainer's fsdp, nor torchtitan's parallelism"
    )


def _accelerate(data: dict[str, Any], where: str) -> Setup:
    top = Section(data, where)
    kind = top.word("distributed_type", _TYPES)
    world, nodes = top.whole("num_processes"), top.whole("num_machines") or 1
    if kind == "NO" and (world or 1) > 1:
        raise BadInput(f"{where}: distributed_type NO contradicts num_processes {world}")
    if world is not None and world % nodes:
        raise BadInput(f"{where}: num_processes {world} cannot be shared out evenly over num_machines {nodes}")
    half = top.word("mixed_precision", ("no", "fp16", "bf16", "fp8"), "no")
    top.passed_over(*_NO_BYTES)
    base = Setup(world_size=world or (1 if kind == "NO" else None), nodes=nodes,
                 accumulation=top.whole("gradient_accumulation_steps"))  # fmt: skip
    sections = {
        name: Section(top.get(name), where, name, prefix)
        for name, prefix in (("fsdp_config", "fsdp_"), ("deepspeed_config", ""),
                             ("megatron_lm_config", "megatron_lm_"), ("parallelism_config", "parallelism_config_"))
    }  # fmt: skip
    found = _by_kind(kind, base, sections, half, where)
    found = _with_axes(found, sections["parallelism_config"], where)
    unused = [name for name, section in sections.items() if section.values and name not in _used(kind)]
    unknown = [*top.unknown(), *(key for name in _used(kind) for key in sections[name].unknown())]
    notes = [*found.notes, *(f"{name} makes no difference with distributed_type {kind}" for name in unused)]
    if half == "fp8":
        notes.append("fp8: matrices multiply in 8 bits, weights stay as they are; budgeted as bf16")
    return replace(found, unknown=tuple(unknown), notes=tuple(notes))


def _used(kind: str) -> tuple[str, ...]:
    return {
        "FSDP": ("fsdp_config", "parallelism_config"),
        "DEEPSPEED": ("deepspeed_config",),
        "MEGATRON_LM": ("megatron_lm_config",),
    }.get(kind, ())


def _by_kind(kind: str, base: Setup, sections: dict[str, Section], half: str, where: str) -> Setup:
    if kind == "FSDP":
        return _fsdp(base, sections["fsdp_config"], half)
    if kind == "DEEPSPEED":
        return _deepspeed(base, sections["deepspeed_config"], half, where)
    if kind == "MEGATRON_LM":
        return _megatron(base, sections["megatron_lm_config"], half)
    if kind == "XLA":
        raise BadInput(f"{where}: distributed_type XLA runs on TPUs, for which there is no budget")
    strategy = "single" if base.world_size == 1 else "ddp"
    return replace(base, strategy=strategy, precision=_amp(half))


def _amp(half: str) -> str:
    """Return autocast over weights as they are: what Accelerate does wherever nothing shards."""
    return {"no": "fp32", "fp16": "amp-fp16", "bf16": "amp-bf16", "fp8": "amp-bf16"}[half]


def _master(half: str) -> str:
    return {"no": "fp32", "fp16": "fp16-master", "bf16": "bf16-master", "fp8": "bf16-master"}[half]


def _fsdp(base: Setup, section: Section, half: str, *, version: int = 1, legacy: str = "") -> Setup:
    """Under mixed precision shards stay in fp32, what is gathered and reduced has 16 bits (``set_mixed_precision``)."""
    read = read_section(section, version=version, legacy=legacy)
    notes = list(read.notes)
    none = read.fsdp.sharding == "none"
    if none:
        notes.append("NO_SHARD: nothing is split, as under DDP")
    low = {"no": None, "fp16": "float16"}.get(half, "bfloat16")
    return replace(
        base,
        strategy=STRATEGY_OF[read.fsdp.sharding],
        fsdp=None if none else replace(read.fsdp, reduce_dtype=low),
        precision=_amp(half) if none else _master(half),
        checkpointing="full" if read.checkpointing else None,
        notes=tuple(notes),
    )


def _deepspeed(base: Setup, section: Section, half: str, where: str) -> Setup:
    section.passed_over(
        "zero3_init_flag", "deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_exclusion_filter",
        "deepspeed_inclusion_filter", "deepspeed_moe_layer_cls_names",
    )  # fmt: skip
    path = section.get("deepspeed_config_file")
    if path not in (None, "none"):
        beside = [key for key in _IN_THE_JSON if section.get(key) is not None]
        if beside:
            raise BadInput(f"{where}: deepspeed_config_file leaves no room for {', '.join(beside)}: write it there")
        return replace(base, deepspeed_file=str(path))
    stage = section.whole("zero_stage", least=0)
    stage = 2 if stage is None else stage
    if stage > 3:
        raise BadInput(f"{where}: zero_stage must be 0, 1, 2 or 3, not {stage}")
    devices = ("none", "cpu", "nvme")
    optimizer = section.word("offload_optimizer_device", devices, "none")
    parameters = section.word("offload_param_device", devices, "none")
    notes = []
    if parameters != "none" and stage != 3:
        notes.append(f"offload_param_device {parameters} makes no difference with zero_stage {stage}")
    zero: dict[str, Any] = {"stage": stage}
    if optimizer != "none":
        zero["offload_optimizer"] = {"device": optimizer, **_path(section, "offload_optimizer_nvme_path", optimizer)}
    if parameters != "none" and stage == 3:
        zero["offload_param"] = {"device": parameters, **_path(section, "offload_param_nvme_path", parameters)}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = section.flag("zero3_save_16bit_model")
    accumulation = section.whole("gradient_accumulation_steps") or base.accumulation
    json: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": accumulation or "auto",
        "zero_optimization": zero,
    }
    if section.get("gradient_clipping") is not None:
        json["gradient_clipping"] = section.get("gradient_clipping")
    if half != "no":
        json["fp16" if half == "fp16" else "bf16"] = {"enabled": True}
    section.passed_over("zero3_save_16bit_model", "offload_optimizer_nvme_path", "offload_param_nvme_path")
    return replace(base, strategy=zero_strategy(zero), deepspeed=json, precision=_master(half),
                   accumulation=accumulation, notes=tuple(notes))  # fmt: skip


def _path(section: Section, key: str, device: str) -> dict[str, str]:
    path = section.get(key)
    return {"nvme_path": str(path)} if device == "nvme" and path is not None else {}


def zero_strategy(zero: Mapping[str, Any]) -> str:
    """Return the name of the strategy that a ``zero_optimization`` section asks for."""
    stage = zero.get("stage", 0)
    devices = {(zero.get(name) or {}).get("device", "none") for name in ("offload_optimizer", "offload_param")}
    if stage == 0:
        return "ddp"
    if stage == 3 and "nvme" in devices:
        return "zero-infinity"
    return f"zero{stage}-offload" if devices & {"cpu", "nvme"} else f"zero{stage}"


def _megatron(base: Setup, section: Section, half: str) -> Setup:
    tensor, pipeline = section.whole("tp_degree") or 1, section.whole("pp_degree") or 1
    context, expert = section.whole("context_parallel_size") or 1, section.whole("expert_model_parallel_size") or 1
    inner = tensor * pipeline * context
    if base.world_size is not None and base.world_size % inner:
        raise BadInput(f"{section.where}: tp {tensor} × pp {pipeline} × cp {context} = {inner} does not divide "
                       f"num_processes {base.world_size}")  # fmt: skip
    data = None if base.world_size is None else base.world_size // inner
    granularity = section.word("recompute_granularity", ("full", "selective"))
    selective = section.flag("recompute_activations")
    sharded = section.flag("use_distributed_optimizer")
    notes = []
    if not sharded and (data or 1) > 1:
        notes.append("without the distributed optimizer; a 3d plan is budgeted with it")
    if section.flag("optimizer_cpu_offload"):
        notes.append("optimizer_cpu_offload: no rule, budgeted on the device")
    section.passed_over(
        "gradient_clipping", "use_custom_fsdp", "no_load_optim", "eod_mask_loss", "no_save_optim",
        "use_precision_aware_optimizer", "overlap_cpu_optimizer_d2h_h2d", "decoder_last_pipeline_num_layers",
        "recompute_method", "recompute_num_layers", "attention_backend", "attention_dropout", "hidden_dropout",
        "attention_softmax_in_fp32", "expert_tensor_parallel_size", "calculate_per_token_loss",
        "use_rotary_position_embeddings",
    )  # fmt: skip
    return replace(
        base,
        strategy="3d" if sharded or (tensor > 1 and pipeline > 1) else "pp-1f1b" if pipeline > 1 else "tp",
        precision=_master(half), data=data, tensor=tensor, pipeline=pipeline, context=context, expert=expert,
        accumulation=section.whole("num_micro_batches") or base.accumulation,
        checkpointing=granularity or ("selective" if selective else None),
        sequence_parallel="megatron" if tensor > 1 and section.flag("sequence_parallelism") else "",
        stack="megatron", notes=tuple(notes),
    )  # fmt: skip


def _with_axes(found: Setup, section: Section, where: str) -> Setup:
    """Add ``parallelism_config``, which Accelerate takes with FSDP2 alone."""
    if not section.values:
        return found
    if found.fsdp is None or found.fsdp.version == 1:
        raise BadInput(f"{where}: parallelism_config needs distributed_type FSDP and fsdp_version 2")
    sizes = {axis: section.whole(f"{name}_size") or 1 for name, axis in _SIZES.items()}
    sequence = section.whole("sp_size") or 1
    section.passed_over("cp_backend", "cp_comm_strategy", "sp_backend", "sp_seq_length", "sp_seq_length_is_variable",
                        "sp_attn_implementation")  # fmt: skip
    product = sequence
    for size in sizes.values():
        product *= size
    if found.world_size is not None and product != found.world_size:
        words = " × ".join(f"{name} {sizes[axis]}" for name, axis in _SIZES.items())
        raise BadInput(f"{where}: parallelism_config makes {words} = {product} ranks, num_processes says "
                       f"{found.world_size}")  # fmt: skip
    notes = (*found.notes, *(["sp_size: no rule for Ulysses sequence parallel"] if sequence > 1 else []))
    replicate = sizes.pop("replicate")
    fsdp, strategy = found.fsdp, found.strategy
    if replicate > 1:
        fsdp = replace(fsdp, sharding={"full": "hybrid", "grad-op": "hybrid-grad-op"}[fsdp.sharding])
        strategy = STRATEGY_OF[fsdp.sharding]
        sizes["data"] *= replicate
    return replace(found, strategy=strategy, fsdp=fsdp, replicate=replicate, world_size=product, notes=notes,
                   data=sizes["data"], tensor=sizes["tensor"], context=sizes["context"])  # fmt: skip


def _trainer(data: dict[str, Any], where: str) -> Setup:
    """Read Hugging Face's TrainingArguments as far as they say how the job is distributed."""
    top = Section(data, where)
    bf16, fp16 = top.flag("bf16"), top.flag("fp16")
    if bf16 and fp16:
        raise BadInput(f"{where}: bf16 contradicts fp16; leave one out")
    half = "bf16" if bf16 else "fp16" if fp16 else "no"
    asked = top.get("fsdp")
    words = asked if isinstance(asked, str) else " ".join(map(str, asked)) if isinstance(asked, list) else ""
    if words.strip().lower() in ("true", "false"):
        asked, words = words.strip().lower() == "true", ""
    base = Setup(
        micro_batch=top.whole("per_device_train_batch_size"),
        accumulation=top.whole("gradient_accumulation_steps"),
        checkpointing="full" if top.flag("gradient_checkpointing") else None,
    )
    if not asked and (asked is not None or not top.get("fsdp_config")):
        return replace(base, precision=_amp(half))
    section = Section(top.get("fsdp_config"), where, "fsdp_config", "fsdp_")
    found = _fsdp(base, section, half, version=2, legacy=words)
    return replace(found, checkpointing=found.checkpointing or base.checkpointing, unknown=section.unknown())
