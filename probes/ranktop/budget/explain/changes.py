"""What could be changed in a run under a strategy: every knob that applies, with a value to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.model import LEARNED_POSITIONS
from ranktop.budget.plan import Plan
from ranktop.budget.run import Run

ADAMS: Final = ("Adam", "AdamW")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One knob, set to another value."""

    name: str
    before: str
    after: str
    how: str
    run: Run
    strategy: str
    note: str = ""
    telling: bool = False
    """Worth showing although nothing changes: people think that it does."""


def changes(run: Run, strategy: str, plan: Plan) -> Iterator[Change]:
    """Yield every knob of a run that applies to its strategy."""
    yield from _batch(run, strategy, plan)
    yield from _training(run, strategy, plan)
    yield from _ranks(run, strategy, plan)
    if plan.zero is not None:
        from ranktop.budget.explain.changes_zero import zero

        yield from zero(run, strategy, plan)
    elif plan.fsdp is not None:
        yield from _fsdp(run, strategy, plan)
    else:
        yield from _whole(run, strategy, plan)


def _change(run: Run, strategy: str, name: str, before: object, after: object, how: str, note: str = "") -> Change:
    return Change(name=name, before=str(before), after=str(after), how=how, run=run, strategy=strategy, note=note)


def _batch(run: Run, strategy: str, plan: Plan) -> Iterator[Change]:
    micro, steps = run.micro_batch, run.accumulation
    yield _change(replace(run, micro_batch=2 * micro), strategy, "micro-batch", micro, 2 * micro,
                  f"--micro-batch {2 * micro}", note="2x the samples")  # fmt: skip
    if micro > 1:
        half = micro // 2
        each = plan.pipeline.micro_batches if plan.pipeline is not None else steps
        both = replace(run, micro_batch=half, accumulation=each * (micro // half))
        yield _change(both, strategy, "micro-batch", micro, half,
                      f"--micro-batch {half} --grad-accum {both.accumulation}",
                      note="as many samples")  # fmt: skip
    elif plan.pipeline is None:
        more = _change(replace(run, accumulation=2 * steps), strategy, "accumulation", steps, 2 * steps,
                       f"--grad-accum {2 * steps}", note="2x the samples")  # fmt: skip
        yield replace(more, telling=True)
    length = plan.batch.sequence_length or 0
    longest = run.model.positions
    if length and (2 * length <= longest or (not longest and run.model.family not in LEARNED_POSITIONS)):
        yield _change(replace(run, sequence_length=2 * length), strategy, "sequence", length, 2 * length,
                      f"--seq-len {2 * length}")  # fmt: skip
    elif length >= 2 and run.model.family != "vit":
        yield _change(replace(run, sequence_length=length // 2), strategy, "sequence", length, length // 2,
                      f"--seq-len {length // 2}")  # fmt: skip


def _training(run: Run, strategy: str, plan: Plan) -> Iterator[Change]:
    for how in ("none", "selective", "full"):
        if how != run.checkpointing and run.model.family:
            note = {"full": "forward twice", "selective": "part twice"}.get(how, "")
            yield _change(replace(run, checkpointing=how), strategy, "checkpointing", run.checkpointing, how,
                          f"--checkpointing {how}", note=note)  # fmt: skip
    if run.attention == "eager":
        yield _change(replace(run, attention="sdpa"), strategy, "attention", "eager", "sdpa", "--attention sdpa")
    if run.loss in ("auto", "upcast", "hf") and run.model.vocab and run.stack == "torch":
        yield _change(replace(run, loss="chunked"), strategy, "loss", run.loss, "chunked", "--loss chunked",
                      note="fused kernels")  # fmt: skip
    yield from _precision(run, strategy, plan)
    yield from _optimizer(run, strategy, plan)


def _precision(run: Run, strategy: str, plan: Plan) -> Iterator[Change]:
    others = {"fp32": ("amp-bf16", "bf16-master"), "amp-fp16": ("fp16-master",), "amp-bf16": ("bf16-master",),
              "bf16-master": ("bf16",), "fp16-master": ("bf16-master",), "bf16": ("bf16-master",)}  # fmt: skip
    for other in others.get(run.precision, ()):
        if plan.zero is not None and {run.precision, other} == {"bf16", "bf16-master"}:
            continue  # DeepSpeed keeps masters in both
        if plan.stack == "megatron" != run.stack:
            continue  # the layers would be others too
        note = "coarse updates" if other == "bf16" else ""
        yield _change(replace(run, precision=other), strategy, "precision", run.precision, other,
                      f"--precision {other}", note=note)  # fmt: skip


def _optimizer(run: Run, strategy: str, plan: Plan) -> Iterator[Change]:
    optimizer = run.optimizer
    if optimizer.name not in ADAMS or optimizer.options.get("package", "torch") != "torch":
        return
    own = plan.optimizer.name not in ADAMS
    if not own and not optimizer.options.get("fused") and plan.stack != "megatron":
        fused = replace(optimizer, options={**optimizer.options, "fused": True})
        yield _change(replace(run, optimizer=fused), strategy, "optimizer", optimizer.name, f"fused {optimizer.name}",
                      "--optimizer adamw_fused")  # fmt: skip
    if not own and not optimizer.options.get("amsgrad") and plan.stack != "megatron":
        from ranktop.budget.optimizers.names import by_name

        yield _change(replace(run, optimizer=by_name("adamw8bit")), strategy, "optimizer", optimizer.name, "AdamW8bit",
                      "--optimizer adamw8bit")  # fmt: skip


def _ranks(run: Run, strategy: str, plan: Plan) -> Iterator[Change]:
    world, layout = run.world_size, plan.layout
    if strategy != "single":
        wider = replace(run, world_size=2 * world, data=2 * run.data if run.data else None)
        if strategy in ("tp", "3d", "pp-gpipe", "pp-1f1b"):
            # Keep the model's own axes as they are: else two things would change at once.
            wider = replace(wider, tensor=layout.tensor, pipeline=layout.pipeline)
        yield _change(wider, strategy, "GPUs", world, 2 * world, f"--world-size {2 * world}")
    if layout.tensor > 1 or strategy == "tp":
        yield from _tensor(run, strategy, plan)
    if layout.pipeline > 1:
        yield from _pipeline(run, strategy, plan)


def _tensor(run: Run, strategy: str, plan: Plan) -> Iterator[Change]:
    layout = plan.layout
    if layout.tensor % 2 == 0:
        half = layout.tensor // 2
        changed = replace(run, tensor=half, pipeline=layout.pipeline, data=None)
        yield _change(changed, strategy, "tp", layout.tensor, half, f"--tp {half}",
                      note=f"dp {layout.data} → {2 * layout.data}")  # fmt: skip
    if not plan.sequence_parallel and layout.tensor > 1:
        kind = "megatron" if plan.stack == "megatron" else "dtensor"
        yield _change(replace(run, sequence_parallel=kind), strategy, "sequence parallel", "off", "on",
                      "--sequence-parallel")  # fmt: skip


def _pipeline(run: Run, strategy: str, plan: Plan) -> Iterator[Change]:
    pipeline, layout = plan.pipeline, plan.layout
    if pipeline is None:
        return
    fixed = replace(run, pipeline=layout.pipeline, tensor=layout.tensor)
    other = {"pp-gpipe": "pp-1f1b", "pp-1f1b": "pp-gpipe"}.get(strategy)
    if other is not None:
        names = {"pp-gpipe": "GPipe", "pp-1f1b": "1F1B"}
        yield _change(fixed, other, "schedule", names[strategy], names[other], f"ranktop explain {other}")
    more = 2 * pipeline.micro_batches
    yield _change(replace(fixed, accumulation=more), strategy, "micro-batches", pipeline.micro_batches, more,
                  f"--grad-accum {more}", note="less waiting, 2x the samples")  # fmt: skip
    if strategy != "pp-gpipe" and run.virtual == 1 and run.model.layers % (2 * layout.pipeline) == 0:
        yield _change(replace(fixed, virtual=2), strategy, "chunks per stage", 1, 2, "--virtual-stages 2",
                      note="half the waiting")  # fmt: skip
    if layout.pipeline % 2 == 0 and layout.pipeline > 2:
        half = layout.pipeline // 2
        fewer = replace(run, pipeline=half, tensor=layout.tensor, data=None)
        yield _change(fewer, strategy, "pp", layout.pipeline, half, f"--pp {half}",
                      note=f"dp {layout.data} → {2 * layout.data}")  # fmt: skip


def _fsdp(run: Run, strategy: str, plan: Plan) -> Iterator[Change]:
    own = plan.fsdp
    if own is None:
        return
    other = "fsdp-grad-op" if strategy != "fsdp-grad-op" else "fsdp-full"
    words = ("True", "False") if other == "fsdp-grad-op" else ("False", "True")
    yield _change(run, other, "reshard_after_forward", *words, f"ranktop explain {other}")
    yield _change(replace(run, fsdp=replace(own, cpu_offload=not own.cpu_offload)), strategy, "CPU offload",
                  _on(own.cpu_offload), _on(not own.cpu_offload), "CPUOffloadPolicy()")  # fmt: skip
    if own.version == 1:
        yield _change(replace(run, fsdp=replace(own, prefetch=not own.prefetch)), strategy, "backward_prefetch",
                      _on(own.prefetch), _on(not own.prefetch), "backward_prefetch=None")  # fmt: skip
    version = 3 - own.version
    yield _change(replace(run, fsdp=replace(own, version=version)), strategy, "FSDP", own.version, version,
                  "fully_shard" if version == 2 else "FullyShardedDataParallel")  # fmt: skip


def _whole(run: Run, strategy: str, plan: Plan) -> Iterator[Change]:
    """Yield DDP's own knobs, wherever replicas average their gradients by it."""
    ddp = plan.ddp
    if ddp is None or plan.layout.replicate == 1:
        return
    view = ddp.gradient_as_bucket_view
    yield _change(replace(run, ddp=replace(ddp, gradient_as_bucket_view=not view)), strategy,
                  "gradient_as_bucket_view", view, not view, f"gradient_as_bucket_view={not view}")  # fmt: skip
    if strategy == "ddp":
        larger = replace(ddp, bucket_cap_mb=4 * ddp.bucket_cap_mb)
        yield replace(
            _change(replace(run, ddp=larger), strategy, "bucket_cap_mb", f"{ddp.bucket_cap_mb:g}",
                    f"{larger.bucket_cap_mb:g}", f"bucket_cap_mb={larger.bucket_cap_mb:g}",
                    note="fewer calls"),
            telling=True,
        )  # fmt: skip


def _on(value: bool) -> str:
    return "on" if value else "off"
