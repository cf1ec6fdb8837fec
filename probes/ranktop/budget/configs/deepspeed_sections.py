"""The sections of DeepSpeed's JSON that decide bytes: ZeRO's options, offloading, data types, the optimizer.

Source: DeepSpeed 0.19.8, runtime/zero/config.py, offload_config.py, runtime/precision_config.py, runtime/config.py;
``_configure_basic_optimizer`` and ``_do_optimizer_sanity_check`` in runtime/engine.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget.configs.deepspeed_json import Section
from ranktop.budget.model import BadInput, Model
from ranktop.budget.plan import OptimizerPlan, State, Zero

DTYPES: Final = {
    "fp32": "float32", "float32": "float32", "float": "float32", "torch.float32": "float32", "fp16": "float16",
    "float16": "float16", "half": "float16", "torch.float16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16",
    "torch.bfloat16": "bfloat16",
}  # fmt: skip
"""Spellings of data types (``DtypeEnum``) -> ours."""

REMOVED: Final = (
    "mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param",
)  # fmt: skip
"""ZeRO keys that DeepSpeed 0.19.8 refuses."""

_NO_BYTES: Final = (
    "allgather_partitions", "load_from_fp32_weights", "elastic_checkpoint", "ignore_unused_parameters",
    "legacy_stage1", "memory_efficient_linear", "pipeline_loading_checkpoint", "override_module_apply",
    "log_trace_cache_warnings", "enable_sanity_checks", "compute_grad_norm", "leaf_module",
    "save_muon_momentum_buffer_in_memory", "cpu_offload_use_pin_memory",
)  # fmt: skip

_OFFLOAD_NO_BYTES: Final = (
    "nvme_path", "pipeline_read", "pipeline_write", "pipeline", "fast_init", "super_offload", "cpuadam_cores_perc",
)  # fmt: skip

_UNCOUNTED: Final = (
    "reduce_scatter", "use_multi_rank_bucket_allreduce", "stage3_module_granularity_threshold",
    "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential", "zero_quantized_gradients",
)  # fmt: skip
"""Keys that change temporary copies by a rule that the budget does not have."""


def zero_options(section: Section, model: Model | None, notes: list[str]) -> Zero:
    """Return the options of ``zero_optimization``; bucket sizes left to the trainer follow the model's width.

    Raises BadInput.
    """
    stage = _stage(section, notes)
    own = Zero()
    overlap = section.flag("overlap_comm")
    sizes = _Sizes(section, model, stage, notes)
    optimizer = _Offload.read(section, "offload_optimizer", "cpu_offload", stage, (1, 2, 3), notes)
    parameters = _Offload.read(section, "offload_param", "cpu_offload_param", stage, (3,), notes)
    gather = section.flag("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save")
    legacy = section.flag("stage3_gather_fp16_weights_on_model_save")
    return Zero(
        stage=stage,
        offload_optimizer=optimizer.device,
        offload_parameters=parameters.device,
        reduce_bucket_size=sizes.get("reduce_bucket_size", own.reduce_bucket_size, least=1),
        allgather_bucket_size=sizes.get("allgather_bucket_size", own.allgather_bucket_size),
        overlap_comm=overlap if overlap is not None else stage == 3,
        contiguous_gradients=_flag(section, "contiguous_gradients", True),
        round_robin_gradients=_flag(section, "round_robin_gradients", False),
        persistence_threshold=sizes.get("param_persistence_threshold", own.persistence_threshold),
        sub_group_size=sizes.get("sub_group_size", own.sub_group_size),
        model_persistence_threshold=sizes.get("model_persistence_threshold", own.model_persistence_threshold),
        parameter_alignment=_flag(section, "parameter_alignment", False),
        prefetch_bucket_size=sizes.get("prefetch_bucket_size", own.prefetch_bucket_size),
        max_live_parameters=sizes.get("max_live_parameters", own.max_live_parameters),
        max_reuse_distance=sizes.get("max_reuse_distance", own.max_reuse_distance),
        pin_memory=parameters.pinned if optimizer.device == "none" else optimizer.pinned,
        gather_weights_on_save=bool(gather or legacy),
        nvme_buffer_count=parameters.buffers if parameters.buffers is not None else own.nvme_buffer_count,
        nvme_buffer_size=parameters.size if parameters.size is not None else own.nvme_buffer_size,
        max_in_cpu=parameters.kept if parameters.kept is not None else own.max_in_cpu,
        optimizer_buffer_count=optimizer.buffers if optimizer.buffers is not None else own.optimizer_buffer_count,
        not_budgeted=_not_budgeted(section, stage, optimizer.ratio, notes),
    )


def _stage(section: Section, notes: list[str]) -> int:
    if section.is_auto("stage"):
        notes.append(f"{section.name('stage')} is left to the launcher; Accelerate's own is 2")
        return 2
    stage = section.whole("stage") or 0
    if stage > 3:
        raise BadInput(f"{section.where}: {section.name('stage')} must be 0, 1, 2 or 3, not {stage}")
    return stage


def _flag(section: Section, key: str, default: bool) -> bool:
    found = section.flag(key)
    return default if found is None else found


class _Sizes:
    """Bucket sizes and thresholds in elements."""

    def __init__(self, section: Section, model: Model | None, stage: int, notes: list[str]) -> None:
        self.section, self.stage, self.notes = section, stage, notes
        self.hidden = model.hidden if model is not None else 0

    def get(self, key: str, default: int, least: int = 0) -> int:
        """Return a size; what is left to the trainer as Hugging Face fills it in, else DeepSpeed's own."""
        keys = (f"stage3_{key}", key) if key in _STAGE3 else (key,)
        if not self.section.is_auto(*keys):
            found = self.section.whole(*keys, least=least)
            return default if found is None else found
        filled = _filled(key, self.hidden, self.stage)
        name = self.section.name(keys[0])
        if filled is None:
            why = "the model's width is not known" if key in _BY_WIDTH else "nobody fills it in"
            self.notes.append(f"{name} is auto, but {why}: DeepSpeed's own {default:,} is taken")
            return default
        self.notes.append(f"{name} is auto: {filled:,}, from the model's width {self.hidden}")
        return filled


_STAGE3: Final = (
    "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters",
    "max_reuse_distance",
)  # fmt: skip
"""Options that the JSON spells with ``stage3_`` in front."""

_BY_WIDTH: Final = ("reduce_bucket_size", "prefetch_bucket_size", "param_persistence_threshold")


def _filled(key: str, hidden: int, stage: int) -> int | None:
    """Return what Hugging Face puts for ``auto`` (transformers integrations/deepspeed.py)."""
    if not hidden or key not in _BY_WIDTH or (stage != 3 and key != "reduce_bucket_size"):
        return None
    square = hidden * hidden
    sizes = {"reduce_bucket_size": square, "prefetch_bucket_size": int(0.9 * square)}
    return sizes.get(key, 10 * hidden)


@dataclass(frozen=True)
class _Offload:
    """One of the two offload sections."""

    device: str = "none"
    pinned: bool = True
    buffers: int | None = None
    size: int | None = None
    kept: int | None = None
    ratio: float = 1.0

    @staticmethod
    def read(
        section: Section, key: str, deprecated: str, stage: int, stages: tuple[int, ...], notes: list[str]
    ) -> _Offload:
        """Return what a section says; where it does nothing, nothing is offloaded and a note says so."""
        old = section.flag(deprecated)
        if section.is_auto(key):
            notes.append(f"{section.name(key)} is auto, which nobody fills in: nothing is offloaded")
            return _Offload()
        given = section.section(key)
        device = given.word("device", among=("none", "cpu", "nvme")) or ("cpu" if old else "none")
        pinned, ratio = given.flag("pin_memory"), given.number("ratio")
        found = _Offload(
            device,
            True if pinned is None else pinned,
            given.whole("buffer_count"),
            given.whole("buffer_size"),
            given.whole("max_in_cpu"),
            1.0 if ratio is None else ratio,
        )
        given.known(*_OFFLOAD_NO_BYTES)
        if old is not None:
            notes.append(f"{section.name(deprecated)} is deprecated; today's key is {key}")
        if device != "none" and stage not in stages:
            notes.append(f"{section.name(key)} does nothing at stage {stage}")
            return _Offload()
        return found


def _not_budgeted(section: Section, stage: int, ratio: float, notes: list[str]) -> tuple[str, ...]:
    """Name what moves bytes without a rule, as a live job's options do; note what only changes temporary copies."""
    section.known(*_NO_BYTES)
    found = []
    if (section.whole("zero_hpz_partition_size") or 1) > 1:
        found.append("zero_hpz_partition_size")
    quantized = ("zero_quantized_weights", "zero_quantized_nontrainable_weights")
    found.extend(key for key in quantized if section.flag(key))
    if section.get("zenflow") is not None:
        found.append("ZenFlow")
    if stage == 3 and ratio < 1.0:
        found.append("partial optimizer offload")
    for key in _UNCOUNTED:
        value = section.get(key, key.removeprefix("stage3_"))
        usual = key in ("reduce_scatter", "use_multi_rank_bucket_allreduce")
        if value is not None and bool(value) != usual:
            notes.append(f"{section.name(key)} changes temporary copies, which the budget counts as without it")
    notes.extend(
        f"{section.name(key)} is no longer supported: DeepSpeed 0.19.8 refuses it"
        for key in REMOVED
        if section.get(key) is not None
    )
    return tuple(found)


_ONE_BIT: Final = ("onebitadam", "zerooneadam", "onebitlamb")


def optimizer(section: Section, zero: Zero, notes: list[str]) -> OptimizerPlan | None:
    """Return the optimizer that DeepSpeed makes of the section, None when the script brings its own."""
    kind = section.get("type")
    parameters = section.section("params")
    section.known("legacy_fusion")
    if kind is None:
        return None
    options = _options(parameters)
    name = _class(str(kind).strip(), parameters, zero.offload_optimizer != "none", notes)
    states: tuple[State, ...] = ()
    if name.lower() in _ONE_BIT:
        states = (State(name="exp_avg"), State(name="exp_avg_sq"), State(name="worker_error"))
        notes.append(f"{kind}: DeepSpeed 0.19.8 no longer has it; its server_error is left out")
    return OptimizerPlan(name=name, count=1, options=options, states=states)


def _options(parameters: Section) -> dict[str, bool | float | str]:
    """Return those parameters that change bytes; the others have been seen."""
    parameters.known(*parameters.data)
    found: dict[str, bool | float | str] = {}
    for key in ("amsgrad", "fused", "foreach", "capturable", "maximize", "centered", "nesterov"):
        value = parameters.flag(key)
        if value is not None:
            found[key] = value
    for key in ("momentum", "weight_decay"):
        number = parameters.number(key)
        if number:
            found[key] = number
    return found


def _class(kind: str, parameters: Section, on_host: bool, notes: list[str]) -> str:
    """Return the class that DeepSpeed uses for a type."""
    lower = kind.lower()
    if lower in ("adam", "adamw"):
        if parameters.flag("torch_adam"):
            return "Adam" if lower == "adam" and parameters.flag("adam_w_mode") is False else "AdamW"
        return "DeepSpeedCPUAdam" if on_host else "FusedAdam"
    if lower == "muon":
        notes.append("Muon: its momentum and the Adam beside it have no rule under ZeRO")
        return "Muon"
    table = {
        "lamb": ("FusedLamb", "FusedLamb"),
        "lion": ("FusedLion", "DeepSpeedCPULion"),
        "adagrad": ("Adagrad", "DeepSpeedCPUAdagrad"),
        "muadam": ("Adam", "Adam"),
        "muadamw": ("AdamW", "AdamW"),
        "musgd": ("SGD", "SGD"),
    }
    return table[lower][on_host] if lower in table else kind
