"""What ranks send that hold whole parameters: DataParallel, a parameter server, DDP, sharded optimizers beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ranktop.budget.collective import Collective
from ranktop.budget.communication.step import Step, closed_at, closed_before
from ranktop.budget.plan import Ddp

MIB: Final = 1 << 20
_COALESCED: Final = 10 * MIB
"""Bytes that DataParallel copies at once (``comm_broadcast_coalesced``, ``reduce_add_coalesced``)."""
_DEFAULT_CAP_MB: Final = 25.0


def data_parallel(step: Step) -> Iterator[Collective]:
    """DataParallel: one process copies the model to every GPU in each forward and sums the gradients on GPU 0.

    As the first GPU sees it. Source: torch/nn/parallel/{replicate,_functions,comm}.py.
    """
    n, micro = step.plan.layout.replicate, step.micro_steps
    rule = "DataParallel, torch/nn/parallel"
    sizes = [step.inventory.kinds[i].numel * step.inventory.kinds[i].itemsize for i in step.inventory.order]
    calls = closed_before(sizes, _COALESCED)
    yield Collective(
        kind="broadcast", group=n, bytes=micro * (step.parameter_bytes() + step.inventory.buffer_bytes),
        calls=micro * calls, axis="replicate", phase="forward", what="parameters, to every GPU in every forward",
        rule=rule,
    )  # fmt: skip
    outputs = _outputs(step)
    if outputs:
        yield Collective(
            kind="p2p", group=n, bytes=micro * (n - 1) * outputs, calls=micro * (n - 1), axis="replicate",
            phase="forward", what="outputs, gathered on GPU 0", rule=rule,
        )  # fmt: skip
        yield Collective(
            kind="p2p", group=n, bytes=micro * (n - 1) * outputs, calls=micro * (n - 1), axis="replicate",
            what="gradients of the outputs, from GPU 0", rule=rule,
        )  # fmt: skip
    yield Collective(
        kind="reduce", group=n, bytes=micro * step.gradient_bytes(), calls=micro * calls, axis="replicate",
        what="gradients, summed on GPU 0", rule=rule,
    )  # fmt: skip


def _outputs(step: Step) -> int:
    """Bytes of one GPU's logits: with DataParallel the loss is computed from all of them on GPU 0."""
    if step.model is None or not step.model.vocab or step.tokens is None:
        return 0
    return step.tokens * step.model.vocab * (4 if step.plan.loss in ("upcast", "hf") else step.compute_item)


def parameter_server(step: Step) -> Iterator[Collective]:
    """A parameter server: gradients are summed on it, new parameters come back, once per step."""
    n, rule = step.plan.layout.replicate, "parameter server: Reduce, then Broadcast"
    yield Collective(kind="reduce", group=n, bytes=step.gradient_bytes(), axis="replicate",
                     what="gradients, to the server", rule=rule)  # fmt: skip
    yield Collective(kind="broadcast", group=n, bytes=step.parameter_bytes(), axis="replicate", phase="optimizer",
                     what="parameters, from the server", rule=rule)  # fmt: skip


def ddp(step: Step) -> Iterator[Collective]:
    """DDP: gradients bucket by bucket, once per step (``no_sync`` before the last micro-batch); buffers once.

    With gradient accumulation a script is taken to use ``no_sync``. Buckets are those of the second step on, in the
    order in which backward fills them: from the last parameter to the first. Source:
    torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp ``compute_bucket_assignment_by_size``.
    """
    options = step.plan.ddp or Ddp()
    if step.inventory.buffer_bytes:
        yield Collective(
            kind="broadcast", group=step.plan.layout.replicate, bytes=step.inventory.buffer_bytes, axis="replicate",
            phase="forward", what="module buffers, from rank 0",
            rule="DDP: broadcast_buffers, torch/nn/parallel/distributed.py",
        )  # fmt: skip
    rule = "DDP: buckets, torch/csrc/distributed/c10d/reducer.cpp"
    calls = len(options.bucket_bytes) or _buckets(step, options.bucket_cap_mb)
    yield from all_reduced(step, calls, "gradients, bucket by bucket", rule)


def _buckets(step: Step, cap_mb: float) -> int:
    cap = int(cap_mb * MIB)
    first = MIB if cap_mb == _DEFAULT_CAP_MB else cap
    by_dtype: dict[str, list[int]] = {}
    kinds = step.inventory.kinds
    sizes = [(k.dtype, k.numel * step.gradient_item(k)) if k.trainable else None for k in kinds]
    for index in reversed(step.inventory.order):
        entry = sizes[index]
        if entry is not None:
            by_dtype.setdefault(entry[0], []).append(entry[1])
    return sum(closed_at(each, cap, first) for each in by_dtype.values())


def all_reduced(step: Step, calls: int, what: str, rule: str) -> Iterator[Collective]:
    """Yield the all-reduce of whole gradients, experts by themselves where they have fewer replicas."""
    total, experts, fewer = step.gradient_bytes(), step.expert_gradient_bytes(), _expert_replicas(step)
    if experts and fewer != step.replicas:
        yield Collective(kind="all_reduce", group=step.replicas, bytes=total - experts, calls=calls,
                         axis="replicate", what=what, rule=rule)  # fmt: skip
        yield Collective(kind="all_reduce", group=fewer, bytes=experts, axis="replicate",
                         what="gradients of the experts", rule=rule)  # fmt: skip
        return
    yield Collective(kind="all_reduce", group=step.replicas, bytes=total, calls=calls, axis="replicate", what=what,
                     rule=rule)  # fmt: skip


def _expert_replicas(step: Step) -> int:
    """Ranks that hold the same experts."""
    layout = step.plan.layout
    held_by = layout.replicate * layout.context
    return max(1, held_by // layout.expert) if step.experts_inside else held_by


def zero_redundancy(step: Step) -> Iterator[Collective]:
    """ZeroRedundancyOptimizer: DDP, and after its step every rank broadcasts the parameters that it has updated.

    One call a parameter. Source: torch/distributed/optim/zero_redundancy_optimizer.py ``_sync_params``.
    """
    yield from ddp(step)
    given = [(k, count) for k, count in step.kinds if k.group >= 0]
    yield Collective(
        kind="broadcast", group=step.plan.layout.data, bytes=sum(k.numel * k.itemsize * count for k, count in given),
        calls=sum(count for _, count in given), axis="replicate", phase="optimizer",
        what="updated parameters, each from the rank that owns it",
        rule="ZeroRedundancyOptimizer: _sync_params, torch/distributed/optim",
    )  # fmt: skip


def distributed_optimizer(step: Step) -> Iterator[Collective]:
    """Megatron's distributed optimizer: gradients are reduce-scattered once per step, parameters gathered again.

    Buffers are padded to a multiple of the ranks, which is left out. Source: Megatron-LM
    core/distributed/param_and_grad_buffer.py.
    """
    layout, rule = step.plan.layout, "Megatron distributed optimizer, core/distributed/param_and_grad_buffer.py"
    ranks = layout.shard * layout.context
    total, experts = step.gradient_bytes(), step.expert_gradient_bytes()
    trained = sum(k.numel * k.itemsize * count for k, count in step.kinds if k.trainable)
    weights = trained * experts // total if experts else 0
    for group, gradients, parameters, of in (
        (ranks, total - experts, trained - weights, ""),
        (max(1, ranks // layout.expert), experts, weights, " of the experts"),
    ):
        yield Collective(kind="reduce_scatter", group=group, bytes=gradients, axis="shard",
                         what=f"gradients{of}, once per step", rule=rule, within=0.001)  # fmt: skip
        yield Collective(kind="all_reduce", group=layout.replicate, bytes=gradients // group, axis="replicate",
                         what=f"this rank's part of the gradients{of}, between instances", rule=rule,
                         within=0.001)  # fmt: skip
        yield Collective(kind="all_gather", group=group, bytes=parameters, axis="shard", phase="optimizer",
                         what=f"updated parameters{of}", rule=rule, within=0.001)  # fmt: skip
