"""FSDP as config files describe it: Accelerate's and the Trainer's ``fsdp_config``, torchtitan's ``parallelism``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ranktop.budget.configs.setup import Section, Setup
from ranktop.budget.model import BadInput
from ranktop.budget.plan import Fsdp

SHARDING: Final = {
    "FULL_SHARD": "full",
    "SHARD_GRAD_OP": "grad-op",
    "NO_SHARD": "none",
    "HYBRID_SHARD": "hybrid",
    "HYBRID_SHARD_ZERO2": "hybrid-grad-op",
}
"""FSDP1's strategies, numbered from 1 in this order (``FSDP_SHARDING_STRATEGY`` in accelerate/utils/constants.py)."""

STRATEGY_OF: Final = {
    "full": "fsdp-full",
    "grad-op": "fsdp-grad-op",
    "none": "ddp",
    "hybrid": "fsdp-hybrid",
    "hybrid-grad-op": "fsdp-hybrid",
}

_PREFETCH: Final = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")

_NO_BYTES: Final = (
    "state_dict_type", "cpu_ram_efficient_loading", "sync_module_states", "forward_prefetch", "ignored_modules",
    "transformer_layer_cls_to_wrap", "min_num_params", "xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt",
)  # fmt: skip
"""Known keys of ``fsdp_config`` that the budget has no rule for or that move no bytes during a step."""


@dataclass(frozen=True, slots=True)
class Read:
    """An ``fsdp_config`` as it was read."""

    fsdp: Fsdp
    checkpointing: bool
    notes: tuple[str, ...]


def read_section(section: Section, *, version: int, legacy: str = "") -> Read:
    """Read ``fsdp_config``; ``version`` when it names none, ``legacy`` the Trainer's ``full_shard auto_wrap`` words.

    Raises BadInput. Source: accelerate/utils/dataclasses.py ``FullyShardedDataParallelPlugin``,
    transformers/training_args.py ``_process_fsdp_args``.
    """
    version = section.whole("version") or version
    if version not in (1, 2):
        raise BadInput(f"{section.where}: {section.prefix}version must be 1 or 2, not {version}")
    words, offload = _legacy(legacy, section.where)
    notes: list[str] = []
    sharding = _sharding_1(section, words, notes) if version == 1 else _sharding_2(section, words, notes)
    prefetch = section.word("backward_prefetch", _PREFETCH, "NO_PREFETCH" if version == 1 else "BACKWARD_PRE")
    if section.word("auto_wrap_policy", ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")) == "NO_WRAP":
        notes.append("auto_wrap_policy NO_WRAP: one unit, all parameters are gathered at once; budgeted per block")
    checkpointing = section.flag("activation_checkpointing")
    if section.flag("activation_checkpointing_offload"):
        if not checkpointing or version == 1:
            need = "activation_checkpointing" if version == 2 else "version 2"
            raise BadInput(f"{section.where}: activation_checkpointing_offload needs {need}")
        notes.append("activation_checkpointing_offload: block inputs wait in host memory; budgeted on the device")
    section.passed_over(*_NO_BYTES)
    fsdp = Fsdp(
        version=version,
        sharding=sharding,
        use_orig_params=section.flag("use_orig_params", default=True) if version == 1 else True,
        cpu_offload=section.flag("offload_params") or section.flag("cpu_offload") or offload,
        prefetch=prefetch == "BACKWARD_PRE" or version == 2,
        limit_all_gathers=section.flag("limit_all_gathers", default=True),
    )
    section.get("use_orig_params")
    return Read(fsdp, checkpointing, tuple(notes))


def _legacy(text: str, where: str) -> tuple[str, bool]:
    """Return (sharding strategy in capitals or empty, offload) of the Trainer's ``fsdp`` words."""
    strategy, offload = "", False
    for word in text.split():
        if word.upper() in SHARDING:
            if strategy and strategy != word.upper():
                raise BadInput(f"{where}: fsdp {text!r} names two sharding strategies")
            strategy = word.upper()
        elif word == "offload":
            offload = True
        elif word != "auto_wrap":
            raise BadInput(f"{where}: fsdp does not know {word!r}; there are {', '.join(SHARDING).lower()}, auto_wrap, "
                           "offload")  # fmt: skip
    return strategy, offload


def _sharding_1(section: Section, words: str, notes: list[str]) -> str:
    given = _strategy_1(section, "sharding_strategy")
    reshard = section.get("reshard_after_forward")
    if isinstance(reshard, bool) or str(reshard).lower() in ("true", "false"):
        raise BadInput(
            f"{section.where}: reshard_after_forward {reshard} is FSDP2's; FSDP1 takes {', '.join(SHARDING)}"
        )
    after = _strategy_1(section, "reshard_after_forward")
    if given and after and given != after:
        raise BadInput(f"{section.where}: sharding_strategy {given} contradicts reshard_after_forward {after}")
    if words and (given or after) and words != (given or after):
        raise BadInput(f"{section.where}: {given or after} contradicts fsdp {words.lower()!r}")
    if after and not given and after != "FULL_SHARD" and section.prefix:
        notes.append(
            f"fsdp_reshard_after_forward {after}: `accelerate launch` (1.15) sets fsdp_sharding_strategy FULL_SHARD, "
            "which wins; write fsdp_sharding_strategy too"
        )
    return SHARDING[given or after or words or "FULL_SHARD"]


def _strategy_1(section: Section, key: str) -> str:
    """Return FSDP1's strategy by name or number, in capitals; empty when not given."""
    value = section.get(key)
    if value is not None and str(value).isdigit() and 1 <= int(value) <= len(SHARDING):
        return list(SHARDING)[int(value) - 1]
    return section.word(key, tuple(SHARDING))


def _sharding_2(section: Section, words: str, notes: list[str]) -> str:
    if words in ("NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"):
        raise BadInput(f"{section.where}: fsdp {words.lower()!r} is FSDP1's; set version 1")
    if section.get("sharding_strategy") is not None:
        notes.append("sharding_strategy is FSDP1's: FSDP2 goes by reshard_after_forward")
    value = section.get("reshard_after_forward")
    if isinstance(value, str) and value.upper() in SHARDING:
        raise BadInput(f"{section.where}: reshard_after_forward {value} is FSDP1's; FSDP2 takes true or false")
    return "full" if section.flag("reshard_after_forward", default=words != "SHARD_GRAD_OP") else "grad-op"


_TITAN_RESHARD: Final = ("default", "always", "never")
_TITAN_DTYPES: Final = ("bfloat16", "float32", "float16")


def read_titan(data: dict[str, Any], where: str) -> Setup:
    """Read torchtitan's sections ``parallelism``, ``training`` and ``activation_checkpoint``. Raises BadInput.

    Source: torchtitan/config. ``data_parallel_shard_degree`` -1 takes the ranks that are left.
    """
    parallelism = Section(data.get("parallelism"), where, "parallelism")
    training = Section(data.get("training"), where, "training")
    checkpoint = Section(data.get("activation_checkpoint"), where, "activation_checkpoint")
    replicate = parallelism.whole("data_parallel_replicate_degree") or 1
    shard = parallelism.whole("data_parallel_shard_degree", least=-1)
    tensor, pipeline, context, expert = (
        parallelism.whole(f"{axis}_parallel_degree") or 1 for axis in ("tensor", "pipeline", "context", "expert")
    )
    reshard = parallelism.word("fsdp_reshard_after_forward", _TITAN_RESHARD, "default")
    kept = reshard == "never" or (reshard == "default" and pipeline > 1)
    offload = training.flag("enable_cpu_offload")
    sharded = shard is None or shard != 1
    hybrid = replicate > 1
    fsdp = Fsdp(sharding=("hybrid-grad-op" if kept else "hybrid") if hybrid else "grad-op" if kept else "full",
                cpu_offload=offload, reduce_dtype=training.word("mixed_precision_reduce", _TITAN_DTYPES, "float32"),
                )  # fmt: skip
    parameter = training.word("mixed_precision_param", _TITAN_DTYPES, "bfloat16")
    half = {"bfloat16": "bf16-master", "float16": "fp16-master", "float32": "fp32"}[parameter]
    product = None if shard is None or shard < 1 else replicate * shard * tensor * pipeline * context
    return Setup(
        strategy=STRATEGY_OF[fsdp.sharding] if sharded else "ddp" if replicate > 1 else "single",
        fsdp=fsdp if sharded else None,
        precision=half if sharded else {"bf16-master": "amp-bf16", "fp16-master": "amp-fp16"}.get(half, half),
        world_size=product,
        data=None if product is None else replicate * (shard or 1),
        replicate=replicate,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert,
        micro_batch=training.whole("local_batch_size"),
        sequence_length=training.whole("seq_len"),
        checkpointing=checkpoint.word("mode", ("none", "selective", "full")) or None,
        sequence_parallel="dtensor" if tensor > 1 else "",
    )
