"""A run under a named strategy: the plan of its first rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ranktop.budget.axes import layout
from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.naming import own_strategy, precision_name
from ranktop.budget.plan import Batch, Ddp, Fsdp, Layout, OptimizerPlan, Pipeline, Plan, Precision, Zero
from ranktop.budget.run import PRECISIONS, STRATEGIES, Run
from ranktop.budget.zero.flat import BF16_WRAPPER

_CAUSAL: Final = ("gpt2", "gpt-neox", "llama")
"""Families whose language models compute their loss by ``ForCausalLMLoss`` (transformers/loss/loss_utils.py)."""

_HALF: Final = {"fp16": "float16", "bf16": "bfloat16"}
_FSDP: Final = {"fsdp-full": "full", "fsdp-grad-op": "grad-op", "fsdp-hybrid": "hybrid"}
_CPU_ADAM: Final = {"AdamW": "DeepSpeedCPUAdam", "Adam": "DeepSpeedCPUAdam", "Lion": "DeepSpeedCPULion",
                    "Adagrad": "DeepSpeedCPUAdagrad"}  # fmt: skip
_FUSED_ADAM: Final = {"AdamW": "FusedAdam", "Adam": "FusedAdam", "Lion": "FusedLion"}


def plan_of(run: Run, strategy: str) -> Plan:
    """Return the plan of rank 0; its ``notes`` say what was taken for granted.

    Raises BadInput for what cannot be meant at all, NoRule when this strategy cannot run it.
    """
    if strategy not in STRATEGIES:
        raise BadInput(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")
    if run.precision not in PRECISIONS:
        raise BadInput(f"no precision {run.precision!r}; there are {', '.join(PRECISIONS)}")
    axes, said = layout(run, strategy)
    zero = _zero(run, strategy, axes)
    fsdp = _fsdp(run, strategy)
    megatron = run.stack == "megatron" or (strategy == "3d" and run.precision in ("bf16-master", "fp16-master"))
    notes = [*said]
    if megatron and run.stack != "megatron":
        notes.append("layers and optimizer as in Megatron Core: gradients in fp32, distributed optimizer")
    running = run.running if run.running is not None and own_strategy(run.running) == strategy else None
    precision = _precision(run, fsdp is not None, zero is not None, notes)
    if running is not None and precision_name(running) == run.precision:
        precision = running.precision
    optimizer = _optimizer(run, zero, notes)
    loss = _loss(run, axes, megatron, notes)
    sequence_parallel = run.sequence_parallel
    if strategy == "3d" and axes.tensor > 1 and megatron and not sequence_parallel:
        sequence_parallel = "megatron"
        notes.append("sequence parallel beside tensor parallel")
    return Plan(
        strategy=_name(strategy, axes, zero, fsdp),
        layout=axes,
        ddp=_ddp(run, strategy, axes),
        fsdp=fsdp,
        zero=zero,
        precision=precision,
        optimizer=optimizer,
        batch=_batch(run),
        checkpointing=run.checkpointing,
        checkpoint_every=run.checkpoint_every,
        host=run.host,
        attention=run.attention,
        loss=loss,
        sequence_parallel=sequence_parallel if axes.tensor > 1 else "",
        pipeline=_pipeline(run, strategy, axes, notes),
        lora=run.lora,
        stack="megatron" if megatron else run.stack,
        notes=tuple(notes),
        gradients_at=run.running.gradients_at if run.running is not None else Plan().gradients_at,
        unsharded_gradients_at=running.unsharded_gradients_at if running is not None and run.accumulation > 1 else (),
    )


def _name(strategy: str, axes: Layout, zero: Zero | None, fsdp: Fsdp | None) -> str:
    if zero is not None:
        return f"zero{zero.stage}"
    if fsdp is not None:
        return f"fsdp{fsdp.version}"
    if strategy in ("single", "dp", "ps", "3d"):
        return strategy
    if axes.replicate > 1 or strategy == "ddp":
        return "ddp"
    return "pp" if axes.pipeline > 1 else "tp"


def _ddp(run: Run, strategy: str, axes: Layout) -> Ddp | None:
    if strategy != "ddp" and (axes.replicate == 1 or strategy not in ("tp", "pp-gpipe", "pp-1f1b")):
        return None
    return run.ddp if run.ddp is not None else Ddp()


def _zero(run: Run, strategy: str, axes: Layout) -> Zero | None:
    if not strategy.startswith("zero"):
        return None
    infinity = strategy == "zero-infinity"
    stage = 3 if infinity else int(strategy[4])
    if stage >= 2 and axes.pipeline > 1:
        raise NoRule("DeepSpeed's pipeline engine works with ZeRO-1 at most: gradients must stay whole")
    if run.expert > 1:
        raise NoRule("how DeepSpeed deals out the states of experts (ep) is not budgeted")
    where = "nvme" if infinity else "cpu" if strategy.endswith("-offload") else "none"
    given = run.zero
    base = given if given is not None else Zero()
    same = given is not None and given.stage == stage
    overlap = base.overlap_comm if same else stage == 3
    return replace(
        base if same else _rewrapped(base, stage, where, run.precision),
        stage=stage,
        overlap_comm=overlap,
        offload_optimizer=where,
        offload_parameters=where if stage == 3 else "none",
    )


def _rewrapped(zero: Zero, stage: int, where: str, precision: str) -> Zero:
    """Another stage with the same options: which of DeepSpeed's own optimizers runs depends on the stage.

    Source: ``_configure_zero_optimizer`` in DeepSpeed's runtime/engine.py.
    """
    whole = stage == 1 and precision.startswith("bf16") and zero.gradient_dtype == "float32" and where == "none"
    return replace(zero, wrapper=BF16_WRAPPER if whole else "")


def _fsdp(run: Run, strategy: str) -> Fsdp | None:
    if strategy not in _FSDP:
        return None
    given = run.fsdp if run.fsdp is not None else Fsdp()
    if strategy == "fsdp-hybrid" and given.sharding == "hybrid-grad-op":
        return given
    return replace(given, sharding=_FSDP[strategy])


def _precision(run: Run, sharded: bool, zero: bool, notes: list[str]) -> Precision:
    kind, _, how = run.precision.partition("-")
    if kind == "amp":
        return Precision(parameters="float32", autocast=_HALF[how])
    if kind == "fp8":
        notes.append("fp8: weights are stored in 8 bits, their master copies in fp32, gradients in bf16")
        return Precision(parameters="float8_e4m3fn", gradients="bfloat16", master="float32")
    if kind == "fp32":
        return Precision(parameters="float32")
    half = _HALF[kind]
    if zero and not how:
        notes.append(f"DeepSpeed keeps fp32 master weights whenever it trains in {kind}")
        how = "master"
    if how == "master" and sharded:
        reduce = run.fsdp.reduce_dtype if run.fsdp is not None else None
        return Precision(parameters="float32", compute=half, reduce=reduce or "float32")
    return Precision(parameters=half, master="float32" if how == "master" else None)


def _optimizer(run: Run, zero: Zero | None, notes: list[str]) -> OptimizerPlan:
    plan = run.optimizer
    if zero is None or run.host:
        return plan
    table = _FUSED_ADAM if zero.offload_optimizer == "none" else _CPU_ADAM
    name = table.get(plan.name)
    if name is None:
        return plan
    notes.append(f"DeepSpeed runs {plan.name} as its own {name}")
    return replace(plan, name=name)


def _batch(run: Run) -> Batch:
    if run.micro_batch < 1 or run.accumulation < 1:
        raise BadInput("micro-batch and gradient accumulation must be at least 1")
    length = run.sequence_length or run.model.positions
    return Batch(micro_batch=run.micro_batch, sequence_length=length or None, accumulation=run.accumulation)


def _loss(run: Run, axes: Layout, megatron: bool, notes: list[str]) -> str:
    if run.loss != "auto":
        return "megatron" if megatron and run.loss == "upcast" else run.loss
    if megatron:
        return "megatron"
    if axes.tensor > 1:
        notes.append("the loss is split over the vocabulary, as torch's loss parallel does it")
        return "upcast"
    if run.model.family in _CAUSAL:
        notes.append("the loss is that of transformers: fp32 logits, and the output keeps its own (--loss upcast: not)")
        return "hf"
    return "upcast"


def _pipeline(run: Run, strategy: str, axes: Layout, notes: list[str]) -> Pipeline | None:
    if axes.pipeline == 1:
        return None
    schedule = {"pp-gpipe": "gpipe", "pp-1f1b": "1f1b"}.get(strategy, run.schedule)
    if run.virtual > 1 and schedule == "1f1b":
        schedule = "interleaved"
    micro = run.accumulation
    if micro == 1:
        micro = axes.pipeline
        notes.append(f"{micro} micro-batches per step, as many as stages: with one the stages would wait")
    return Pipeline(schedule=schedule, micro_batches=micro, virtual=run.virtual)
