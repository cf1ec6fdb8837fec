"""What DeepSpeed's ZeRO stages send, as version 0.19.8 does it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ranktop.budget.collective import Collective
from ranktop.budget.communication.fetches import Parameter, fetches, modules_of
from ranktop.budget.communication.step import Step, closed_before
from ranktop.budget.inventory import Kind
from ranktop.budget.plan import Zero
from ranktop.budget.terms import DTYPE_BYTES
from ranktop.budget.zero.flat import BF16_WRAPPER, Flat, FlatBf16
from ranktop.budget.zero.job import Job
from ranktop.budget.zero.layout import persistent, share

FALLBACK_BUCKET: Final = 500_000_000
"""Elements that are reduced at once without ZeRO (``MEMORY_OPT_ALLREDUCE_SIZE`` in runtime/engine.py)."""


def zero(step: Step) -> Iterator[Collective]:
    """Return the collectives of the plan's stage; copies between device and host are none."""
    plan = step.plan
    options = plan.zero or Zero(stage=int(plan.strategy.removeprefix("zero") or 0))
    job = Job(step.inventory, plan, options, first_step=False)
    if options.stage == 0:
        return _stage_0(step, job)
    return _stage_3(step, job) if options.stage == 3 else _stages_1_2(step, job)


def _comm_item(job: Job, kind: Kind) -> int:
    """Bytes per element that gradients are reduced in (``communication_data_type``: the model's, when not given)."""
    return DTYPE_BYTES[job.options.communication_dtype or kind.dtype]


def _gradient_ranks(step: Step) -> int:
    layout = step.plan.layout
    return layout.data * layout.context


def _stage_0(step: Step, job: Job) -> Iterator[Collective]:
    """All gradients once per step. Source: runtime/engine.py ``buffered_allreduce_fallback``."""
    trained = [kind for kind in job.kinds if kind.trainable]
    calls = sum(
        _closed_beyond((kind.numel for kind in trained if kind.dtype == dtype), FALLBACK_BUCKET)
        for dtype in dict.fromkeys(kind.dtype for kind in trained)
    )
    yield Collective(
        kind="all_reduce", group=_gradient_ranks(step), bytes=sum(k.numel * _comm_item(job, k) for k in trained),
        calls=calls, axis="replicate", what="gradients, once per step",
        rule="ZeRO-0: buffered_allreduce_fallback (DeepSpeed runtime/engine.py)",
    )  # fmt: skip


def _closed_beyond(sizes: Iterable[int], limit: int) -> int:
    """Count buckets that are closed by the tensor that brings them beyond ``limit``."""
    buckets = filled = 0
    for size in sizes:
        filled += size
        if filled > limit:
            buckets, filled = buckets + 1, 0
    return buckets + (filled > 0)


def _stages_1_2(step: Step, job: Job) -> Iterator[Collective]:
    """Gradients are all-reduced, not reduce-scattered (``use_multi_rank_bucket_allreduce``), parameters gathered.

    Stage 2 reduces in every micro-batch, stage 1 in the last. The gather is of whole flat groups, whatever
    ``allgather_bucket_size`` says. Source: runtime/zero/stage_1_and_2.py ``average_tensor``,
    ``allreduce_and_scatter``; runtime/utils.py ``all_gather_into_tensor_dp_groups``.
    """
    options = job.options
    name = f"ZeRO-{options.stage}"
    wrapped = options.wrapper == BF16_WRAPPER
    flats = (FlatBf16(job) if wrapped else Flat(job)).flats
    micro = step.micro_steps if options.stage == 2 else 1
    if wrapped:
        size = sum(flat.size * _comm_item(job, kind) for flat, kind in flats)
        calls = _closed_beyond((flat.size for flat, _ in flats), FALLBACK_BUCKET)
        source = "BF16_Optimizer, runtime/bf16_optimizer.py"
    else:
        kinds = [kind for group in job.groups for kind in group]
        if options.stage == 2 or options.overlap_comm:
            kinds.reverse()  # by hooks, in the order of backward
        size = sum(kind.numel * _comm_item(job, kind) for kind in kinds)
        calls = closed_before((kind.numel for kind in kinds), options.reduce_bucket_size)
        source = "runtime/zero/stage_1_and_2.py"
    when = "bucket by bucket in every micro-batch" if options.stage == 2 else "bucket by bucket"
    yield Collective(
        kind="all_reduce", group=_gradient_ranks(step), bytes=micro * size, calls=micro * calls, axis="shard",
        what=f"gradients, {when}", rule=f"{name}: all-reduce, not reduce-scatter (DeepSpeed {source})",
    )  # fmt: skip
    yield Collective(
        kind="all_gather", group=job.ranks, bytes=sum(flat.size * kind.itemsize for flat, kind in flats),
        calls=len(flats), axis="shard", phase="optimizer", what="updated parameters, one flat group at a time",
        rule=f"{name}: all_gather_dp_groups (DeepSpeed runtime/utils.py)",
    )  # fmt: skip


def _stage_3(step: Step, job: Job) -> Iterator[Collective]:
    """Parameters are gathered for forward and again for backward, gradients scattered, in every micro-batch.

    What stays within the reuse distance or was prefetched for backward is not gathered twice; persistent parameters
    are gathered once per step. Source: runtime/zero/{partitioned_param_coordinator,stage3,partition_parameters}.py,
    runtime/comm/coalesced_collectives.py.
    """
    options, n, micro = job.options, job.ranks, step.micro_steps
    marks = persistent([k.numel for k in job.kinds], options.persistence_threshold, options.model_persistence_threshold)
    gathered = tuple(
        Parameter(k.numel, share(k.numel, n) * n * k.itemsize, kept) for k, kept in zip(job.kinds, marks, strict=True)
    )
    tied = step.model is not None and step.model.tied and step.plan.layout.pipeline == 1
    found = fetches(
        gathered, modules_of(job.kinds), prefetch=options.prefetch_bucket_size, max_live=options.max_live_parameters,
        reuse=options.max_reuse_distance, tied=tied,
    )  # fmt: skip
    rule = "ZeRO-3: fetch and prefetch (DeepSpeed runtime/zero/partitioned_param_coordinator.py)"
    yield Collective(kind="all_gather", group=n, bytes=micro * found.forward, calls=micro * found.forward_calls,
                     axis="shard", phase="forward", what="parameters, module by module", rule=rule,
                     within=0.01)  # fmt: skip
    yield Collective(kind="all_gather", group=n, bytes=micro * found.backward, calls=micro * found.backward_calls,
                     axis="shard", what="parameters again, but for those still there", rule=rule,
                     within=0.01)  # fmt: skip
    trained = [kind for group in job.groups for kind in group][::-1]
    yield Collective(
        kind="reduce_scatter", group=n,
        bytes=micro * sum(share(k.numel, n) * n * _comm_item(job, k) for k in trained),
        calls=micro * closed_before((k.numel for k in trained), options.reduce_bucket_size), axis="shard",
        what="gradients, bucket by bucket", rule="ZeRO-3: reduce_scatter_coalesced (DeepSpeed runtime/comm)",
    )  # fmt: skip
    kept = [one.bytes for one in gathered if one.persistent]
    yield Collective(
        kind="all_gather", group=n, bytes=sum(kept), calls=len(kept), axis="shard", phase="optimizer",
        what="persistent parameters, after the step", rule="ZeRO-3: _post_step (DeepSpeed runtime/zero/stage3.py)",
    )  # fmt: skip
    replicas = step.plan.layout.replicate * step.plan.layout.context
    yield Collective(
        kind="all_reduce", group=replicas, bytes=micro * sum(share(k.numel, n) * _comm_item(job, k) for k in trained),
        calls=micro, axis="replicate", what="parts of the gradients, between replicas", rule="ZeRO-3: MiCS",
    )  # fmt: skip
