"""The buckets of DistributedDataParallel's reducer."""

from __future__ import annotations

from ranktop.budget.held import counted, gradient_itemsize
from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Ddp, Plan
from ranktop.budget.terms import DTYPE_BYTES, Part


def has_reducer(plan: Plan) -> bool:
    """Whether the plan's strategy wraps the model with DDP (also a single rank has buckets then)."""
    return plan.strategy in ("ddp", "zero-redundancy") or plan.ddp is not None


def bucket_bytes(inventory: Inventory, plan: Plan) -> int:
    """Return the bytes of all buckets: one flat gradient of every trainable parameter, without padding.

    The cap changes their number, not their sum. Source: torch/csrc/distributed/c10d/reducer.cpp
    ``initialize_buckets``.
    """
    if plan.ddp is not None and plan.ddp.bucket_bytes:
        return sum(plan.ddp.bucket_bytes)
    return inventory.once(
        f"gradients in {plan.precision.gradients}",
        lambda held: sum(
            kind.numel * gradient_itemsize(kind, plan) * times for kind, times in counted(held) if kind.trainable
        ),
    )


def compressed(inventory: Inventory, plan: Plan) -> tuple[Part, ...]:
    """Return the copy of a bucket that a communication hook makes in a smaller dtype while it is reduced.

    One is counted, of a full bucket; on a slow link more are on their way at once. Source:
    torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py ``_compress_hook``.
    """
    dtype = plan.ddp.hook_dtype if plan.ddp is not None else None
    if dtype is None or plan.ddp is None:
        return ()
    kinds = [kind for kind in inventory.kinds if kind.trainable]
    largest = max((kind.numel * gradient_itemsize(kind, plan) for kind in kinds), default=0)
    size = min(max(int(plan.ddp.bucket_cap_mb * 2**20), largest), bucket_bytes(inventory, plan))
    item = max((gradient_itemsize(kind, plan) for kind in kinds), default=4)
    copied = size * DTYPE_BYTES[dtype] // item
    return (Part("bucket, compressed by the hook", copied, seen=False),) if copied else ()


def buckets(inventory: Inventory, plan: Plan, gradients: int, waiting: bool = False) -> tuple[Part, ...]:
    """Return the buckets as a part of the buffers at a moment with so many bytes of gradients.

    With ``gradient_as_bucket_view`` the gradients of that moment lie in the buckets and count once, as gradients.
    Those of micro-batches under ``no_sync`` are ``waiting`` beside them: the reducer does not run, and what it finds
    outside of a bucket it copies into it with the last micro-batch (reducer.cpp ``mark_variable_ready_dense``).
    """
    if not has_reducer(plan):
        return ()
    ddp = plan.ddp or Ddp()
    size = bucket_bytes(inventory, plan)
    left = max(0, size - gradients) if ddp.gradient_as_bucket_view and not waiting else size
    return (Part("DDP's buckets", left),) if left else ()
