"""DeepSpeed's knobs, as its JSON has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ranktop.budget.explain.changes import Change
from ranktop.budget.plan import Plan, Zero
from ranktop.budget.run import Run


def zero(run: Run, strategy: str, plan: Plan) -> Iterator[Change]:
    """Yield the options of DeepSpeed that apply to a stage, and offloading."""
    own = plan.zero
    if own is None:
        return
    yield from _buckets(run, strategy, own)
    if own.stage == 3:
        yield from _stage_3(run, strategy, own)
    yield from _offload(run, strategy, own)


def _option(
    run: Run, strategy: str, own: Zero, field: str, key: str, after: Any, note: str = "", telling: bool = False
) -> Change:
    changed = replace(run, zero=replace(own, **{field: after}))
    before = getattr(own, field)
    how = f'"{key}": {str(after).lower() if isinstance(after, bool) else after}'
    return Change(name=key, before=_short(before), after=_short(after), how=how, run=changed, strategy=strategy,
                  note=note, telling=telling)  # fmt: skip


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    return str(value).lower()


def _buckets(run: Run, strategy: str, own: Zero) -> Iterator[Change]:
    smaller = max(1, own.reduce_bucket_size // 10)
    yield _option(run, strategy, own, "reduce_bucket_size", "reduce_bucket_size", smaller)
    yield _option(run, strategy, own, "overlap_comm", "overlap_comm", not own.overlap_comm, telling=True)
    if own.stage < 3:
        yield _option(
            run, strategy, own, "allgather_bucket_size", "allgather_bucket_size",
            max(1, own.allgather_bucket_size // 10), "has no buffer", telling=True,
        )  # fmt: skip
        yield _option(run, strategy, own, "round_robin_gradients", "round_robin_gradients",
                      not own.round_robin_gradients)  # fmt: skip
    if own.contiguous_gradients:
        yield _option(run, strategy, own, "contiguous_gradients", "contiguous_gradients", False)
    if own.gradient_dtype is None and own.stage >= 2 and own.offload_optimizer == "none":
        changed = replace(run, zero=replace(own, gradient_dtype="float32"))
        yield Change(name="grad_accum_dtype", before="model's", after="fp32",
                     how='"data_types": {"grad_accum_dtype": "fp32"}', run=changed, strategy=strategy)  # fmt: skip


def _stage_3(run: Run, strategy: str, own: Zero) -> Iterator[Change]:
    yield _option(run, strategy, own, "max_live_parameters", "stage3_max_live_parameters",
                  max(1, own.max_live_parameters // 10), "less gathered ahead")  # fmt: skip
    yield _option(run, strategy, own, "max_reuse_distance", "stage3_max_reuse_distance", 0, "kept less long")
    yield _option(run, strategy, own, "prefetch_bucket_size", "stage3_prefetch_bucket_size",
                  own.prefetch_bucket_size // 10)  # fmt: skip
    yield _option(run, strategy, own, "persistence_threshold", "stage3_param_persistence_threshold",
                  10 * own.persistence_threshold, "more stay whole")  # fmt: skip
    if own.offload_optimizer != "nvme":
        yield _option(run, strategy, own, "sub_group_size", "sub_group_size", max(1, own.sub_group_size // 10),
                      "step in pieces", telling=True)  # fmt: skip
    if not own.gather_weights_on_save:
        yield _option(run, strategy, own, "gather_weights_on_save", "stage3_gather_16bit_weights_on_model_save", True,
                      "costs when saving", telling=True)  # fmt: skip


def _offload(run: Run, strategy: str, own: Zero) -> Iterator[Change]:
    base = strategy.removesuffix("-offload")
    if strategy == "zero-infinity":
        yield Change(name="offload to", before="NVMe", after="CPU", how="ranktop explain zero3-offload", run=run,
                     strategy="zero3-offload")  # fmt: skip
        return
    off, on = ("off", "CPU") if base == strategy else ("CPU", "off")
    other = f"{base}-offload" if base == strategy else base
    what = "offload_optimizer" + (", offload_param" if own.stage == 3 else "")
    yield Change(name=what, before=off, after=on, how=f"ranktop explain {other}", run=run, strategy=other)
    if own.offload_optimizer != "none":
        yield _option(run, strategy, own, "pin_memory", "pin_memory", not own.pin_memory,
                      "pinned or not", telling=True)  # fmt: skip
    if base == "zero3" and base != strategy:
        yield Change(name="offload to", before="CPU", after="NVMe", how="ranktop explain zero-infinity", run=run,
                     strategy="zero-infinity")  # fmt: skip
