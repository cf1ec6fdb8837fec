"""DeepSpeed's JSON as users write it, and what it means for a run: ZeRO's options, precision, optimizer, batch.

Source: DeepSpeed 0.19.8, runtime/config.py; ``auto`` as Hugging Face's integration fills it in (transformers 5.24,
integrations/deepspeed.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ranktop.budget.configs import deepspeed_batch as batch
from ranktop.budget.configs.deepspeed_json import Section, parse
from ranktop.budget.configs.deepspeed_sections import DTYPES, optimizer, zero_options
from ranktop.budget.model import BadInput, Model
from ranktop.budget.plan import OptimizerPlan, Precision, State, Zero
from ranktop.budget.zero.flat import BF16_WRAPPER

_NO_BYTES: Final = (
    "managed_gradient_accumulation", "scheduler", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    "seq_parallel_communication_data_type", "prescale_gradients", "gradient_predivide_factor",
    "gradient_allreduce_op", "steps_per_print", "dump_state", "memory_breakdown", "disable_python_gc",
    "disable_allgather", "comms_logger", "tensorboard", "wandb", "comet", "csv_monitor", "monitor_config",
    "flops_profiler", "autotuning", "data_efficiency", "checkpoint", "aio", "dataloader_drop_last", "log_level",
    "compile", "timers", "use_data_before_expert_parallelism", "vocabulary_size", "datastates_ckpt",
)  # fmt: skip
"""Keys that DeepSpeed knows and that hold no memory worth counting."""

_UNCOUNTED: Final = ("hybrid_engine", "weight_quantization", "pipeline", "tensor_parallel", "expert_parallel")
"""Sections that change bytes and are not read from here."""

REMOVED: Final = (
    "nebula", "compression_training", "amp", "quantize_training", "sparse_gradients", "eigenvalue",
    "sparse_attention", "elasticity", "graph_harvesting", "curriculum_learning", "progressive_layer_drop",
)  # fmt: skip
"""Keys that DeepSpeed 0.19.8 refuses to start with."""


@dataclass(frozen=True, kw_only=True)
class DeepSpeedConfig:
    """A parsed config."""

    values: Mapping[str, Any]
    where: str = "DeepSpeed config"
    """Its name, for complaints."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """Dotted paths of the keys that DeepSpeed 0.19.8 does not have."""
        return plan_pieces(self, world_size=None).unknown


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """What a config says about a run; None = it leaves that open."""

    zero: Zero
    precision: Precision
    precision_name: str
    """One of ``run.PRECISIONS``."""
    optimizer: OptimizerPlan | None
    """None when the script brings its own."""
    train_batch: int | None
    micro_batch: int | None
    accumulation: int | None
    gradient_clipping: float | None
    strategy: str
    """One of ``run.STRATEGIES``."""
    notes: tuple[str, ...] = ()
    """What makes no difference, was left to others, or is not what it looks like; one line each."""
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trainer's own values, which ``auto`` is replaced by; None = not known."""

    micro_batch: int | None = None
    accumulation: int | None = None
    precision: str | None = None
    """One of ``run.PRECISIONS``."""
    gradient_clipping: float | None = None


def read(text: str, where: str = "DeepSpeed config") -> DeepSpeedConfig:
    """Return the config that a text holds. Raises BadInput with line and column."""
    return DeepSpeedConfig(values=parse(text, where), where=where)


def plan_pieces(
    config: DeepSpeedConfig, *, world_size: int | None, model: Model | None = None, run: Run | None = None
) -> Pieces:
    """Return what a config means on ``world_size`` data-parallel GPUs (None: the batch numbers are not checked).

    ``model`` tells what bucket sizes that are ``auto`` become. Raises BadInput for contradictions and for values that
    DeepSpeed would refuse.
    """
    run = run if run is not None else Run()
    notes: list[str] = []
    top = Section(config.values, config.where)
    zero = zero_options(_zero_section(top, notes), model, notes)
    precision, name = _precision(top, zero, run, notes)
    zero = _accumulation_dtype(top, zero, precision, notes)
    chosen = optimizer(top.section("optimizer"), zero, notes)
    if chosen is not None:
        chosen = _states(chosen, precision, _brain(top))
        zero = _wrapped(zero, precision, chosen)
    numbers = _batches(top, world_size, run, notes)
    clipping = top.number("gradient_clipping")
    if top.is_auto("gradient_clipping"):
        clipping = run.gradient_clipping
    _mentioned(top, notes)
    return Pieces(
        zero=zero,
        precision=precision,
        precision_name=name,
        optimizer=chosen,
        train_batch=numbers.train,
        micro_batch=numbers.micro,
        accumulation=numbers.steps,
        gradient_clipping=clipping,
        strategy=_strategy(zero),
        notes=tuple(dict.fromkeys(notes)),
        unknown=top.unknown(),
    )


def _zero_section(top: Section, notes: list[str]) -> Section:
    """Return ``zero_optimization``, which used to be true or false."""
    value = top.get("zero_optimization")
    if isinstance(value, bool):
        notes.append("zero_optimization as true or false is deprecated: true is stage 1")
        top.known("allgather_size")
        return Section({"stage": int(value)}, top.where, "zero_optimization")
    return top.section("zero_optimization")


def _strategy(zero: Zero) -> str:
    if zero.stage == 0:
        return "ddp"
    if "nvme" in (zero.offload_optimizer, zero.offload_parameters) and zero.stage == 3:
        return "zero-infinity"
    return f"zero{zero.stage}{'-offload' if zero.offload_optimizer != 'none' else ''}"


def _enabled(section: Section, kind: str, run: Run, notes: list[str]) -> bool:
    """Say whether a 16-bit section is on."""
    if not section.is_auto("enabled"):
        return bool(section.flag("enabled"))
    if run.precision is None:
        notes.append(f"{section.name('enabled')} is auto and the run's precision is not known: off")
        return False
    return kind in run.precision


def _brain(top: Section) -> Section:
    """Return the section of bf16, by today's name or its old one."""
    return top.section("bfloat16" if top.data.get("bf16") is None and top.data.get("bfloat16") else "bf16")


def _precision(top: Section, zero: Zero, run: Run, notes: list[str]) -> tuple[Precision, str]:
    """Return the dtypes: of the weights, of the master weights, of autocast. Raises BadInput."""
    half, brain = top.section("fp16"), _brain(top)
    top.known("bf16", "bfloat16")
    for section in (half, brain):
        section.known(*_PRECISION_NO_BYTES)
    fp16, bf16 = _enabled(half, "fp16", run, notes), _enabled(brain, "bf16", run, notes)
    if fp16 and bf16:
        raise BadInput(f"{top.where}: fp16 and bf16 are both enabled; DeepSpeed takes one of them")
    low = [half.flag("fp16_master_weights_and_grads"), brain.flag("bf16_master_weights_and_grads")]
    brain.flag("bf16_optimizer_states")
    autocast = _autocast(top)
    kind = "fp16" if fp16 else "bf16" if bf16 else ""
    stored = DTYPES[kind] if kind else "float32"
    same = (fp16 and low[0]) or (bf16 and low[1])
    if same and not zero.stage:
        raise BadInput(f"{top.where}: {kind}_master_weights_and_grads needs ZeRO stage 1, 2 or 3")
    master = stored if same else "float32" if kind or zero.stage else None
    reduce = top.word("communication_data_type", among=("fp16", "bf16", "fp32"))
    precision = Precision(
        parameters=stored, master=master, autocast=autocast, reduce=DTYPES[reduce] if reduce else None
    )
    if kind:
        return precision, kind if same else f"{kind}-master"
    names = {"float16": "amp-fp16", "bfloat16": "amp-bf16"}
    return precision, names.get(autocast or "", "fp32")


_PRECISION_NO_BYTES: Final = (
    "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis",
    "min_loss_scale", "immediate_grad_update", "check_grad_overflow",
)  # fmt: skip


def _autocast(top: Section) -> str | None:
    section = top.section("torch_autocast")
    section.known("lower_precision_safe_modules")
    dtype = section.word("dtype", among=tuple(DTYPES))
    return DTYPES[dtype or "bf16"] if section.flag("enabled") else None


def _accumulation_dtype(top: Section, zero: Zero, precision: Precision, notes: list[str]) -> Zero:
    """Return the options with the dtypes of gradients: accumulated (``data_types``), and on their way."""
    types = top.section("data_types")
    types.known("param_dtype", "buffer_dtype", "keep_in_fp32_modules")
    word = types.word("grad_accum_dtype", among=tuple(DTYPES))
    gradients = DTYPES[word] if word else None
    reduce = precision.reduce if precision.reduce != precision.parameters else None
    zero = replace(zero, communication_dtype=reduce)
    if gradients in (None, precision.parameters):
        return zero
    if zero.stage == 0:
        raise BadInput(
            f"{top.where}: data_types.grad_accum_dtype {word} differs from the weights' {precision.parameters}, "
            "which DeepSpeed does not support at stage 0; leave it out"
        )
    plain = zero.stage != 1 or precision.parameters != "bfloat16" or zero.offload_optimizer != "none"
    if zero.stage == 1 and not plain:
        notes.append("stage 1 with bf16 weights and fp32 gradients runs BF16_Optimizer: whole fp32 gradients are kept")
    return replace(zero, gradient_dtype=gradients, wrapper="" if plain else BF16_WRAPPER)


def _states(plan: OptimizerPlan, precision: Precision, brain: Section) -> OptimizerPlan:
    """CPU Adam keeps fp32 states even of 16-bit masters, unless ``bf16_optimizer_states``."""
    low = precision.master not in (None, "float32")
    if plan.name != "DeepSpeedCPUAdam" or not low or brain.flag("bf16_optimizer_states"):
        return plan
    return replace(plan, states=tuple(State(name=name, dtype="float32") for name in ("exp_avg", "exp_avg_sq")))


def _wrapped(zero: Zero, precision: Precision, plan: OptimizerPlan) -> Zero:
    """Name the wrapper of stage 0, which lays fused optimizers' masters out flat; Muon has no rule."""
    if plan.name == "Muon" and zero.stage:
        return replace(zero, not_budgeted=(*zero.not_budgeted, "Muon"))
    if zero.stage == 0 and precision.master is not None and plan.name == "FusedAdam":
        return replace(zero, wrapper="FP16_Optimizer")
    return zero


def _batches(top: Section, world_size: int | None, run: Run, notes: list[str]) -> batch.Batches:
    """Return the batch numbers; ``auto`` and missing ones from the run, else inferred."""
    train, micro, steps = (top.whole(key, least=1) for key in (batch.TRAIN, batch.MICRO, batch.STEPS))
    if micro is None and (top.is_auto(batch.MICRO) or train is None):
        micro = run.micro_batch
    if steps is None and (top.is_auto(batch.STEPS) or train is None):
        steps = run.accumulation
    if world_size is None:
        return batch.Batches(train, micro, steps)
    found = batch.Batches(train, micro, steps).settled(world_size, top.where)
    if found.train is None and (top.is_auto(batch.TRAIN) or top.is_auto(batch.MICRO)):
        auto = batch.MICRO if top.is_auto(batch.MICRO) else batch.TRAIN
        notes.append(f"{auto} is auto, and the trainer's micro-batch is not known here")
    elif found.train is None:
        notes.append(f"neither {batch.TRAIN} nor {batch.MICRO} is given: DeepSpeed needs one of them")
    return found


def _mentioned(top: Section, notes: list[str]) -> None:
    """Note what looks as if it moved bytes, and does not, or does by other means."""
    top.known(*_NO_BYTES)
    if top.flag("wall_clock_breakdown"):
        notes.append("wall_clock_breakdown: timers that wait for the device; no memory")
    checkpointing = top.section("activation_checkpointing")
    if checkpointing.data:
        checkpointing.known(
            "number_checkpoints", "contiguous_memory_optimization", "synchronize_checkpoint_boundary", "profile"
        )
        notes.append(
            "activation_checkpointing only sets deepspeed.checkpointing up: the model must call it, nothing is "
            "recomputed by this section alone"
        )
        if checkpointing.flag("cpu_checkpointing"):
            notes.append("cpu_checkpointing: inputs of checkpointed blocks go to the host, if the model uses it")
        if checkpointing.flag("partition_activations"):
            notes.append("partition_activations: inputs of checkpointed blocks are split over tensor-parallel ranks")
    there = [key for key in (*_UNCOUNTED, *REMOVED) if top.get(key) is not None]
    notes.extend(f"{key} is not read from here: say its sizes as flags" for key in there if key in _UNCOUNTED)
    notes.extend(
        f"{key} is no longer supported: DeepSpeed 0.19.8 refuses to start with it" for key in there if key in REMOVED
    )
