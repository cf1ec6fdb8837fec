"""Bytes that the allocator adds to tensors: each lies in blocks of 512.

They belong to no tensor, so that the measured side counts them with the activations. They matter where a model's
shards are small. Source: c10/cuda/CUDACachingAllocator.cpp ``round_size``, kMinBlockSize.
"""

from __future__ import annotations

from math import prod
from typing import Final

from ranktop.budget.fsdp.states import shard_shapes
from ranktop.budget.held import Held, counted, gradient_itemsize
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.optimizers.blocks import blockwise
from ranktop.budget.optimizers.states import Piece, per_group, state_bytes, states_of
from ranktop.budget.plan import Plan
from ranktop.budget.tensor import stored_numel
from ranktop.budget.terms import DTYPE_BYTES

BLOCK: Final = 512


def over(size: int) -> int:
    """Return the bytes that a tensor of this size takes beyond its own."""
    return -size % BLOCK


def of_parameters(inventory: Inventory, plan: Plan) -> int:
    """Return what rounding adds to the parameters of a rank; FSDP1's flat ones are too few to count."""
    if _flat(plan):
        return 0
    return sum(over(_stored(kind, plan) * kind.itemsize) * times for kind, times in counted(inventory))


def of_gradients(inventory: Inventory, plan: Plan) -> int:
    """Return what rounding adds to the gradients; those that are views of a bucket or a unit's buffer add none."""
    views = plan.ddp is not None and plan.ddp.gradient_as_bucket_view
    if views or plan.strategy.startswith("fsdp"):
        return 0
    return sum(
        over(kind.numel * gradient_itemsize(kind, plan)) * times for kind, times in counted(inventory) if kind.trainable
    )


def of_optimizer(held: Held, plan: Plan) -> int:
    """Return what rounding adds to the optimizers' states and to the master copies."""
    of_group = per_group(plan)
    master = plan.precision.master
    total = 0
    for piece in held.pieces:
        optimizer = of_group(piece.group)
        if piece.group < 0 or not piece.trainable or 0 in piece.shape:
            continue
        if blockwise(optimizer.name, str(optimizer.options.get("package", "torch"))) is not None:
            continue
        if held.copied and master and piece.itemsize == DTYPE_BYTES[master]:
            total += over(prod(piece.shape) * piece.itemsize) * piece.count
        for state in states_of(optimizer)[0] or ():
            if state.on_device or plan.host:
                total += _over_state(state_bytes(state, piece), piece)
    return total


def _over_state(size: int | None, piece: Piece) -> int:
    return over(size) * piece.count if size else 0


def _flat(plan: Plan) -> bool:
    return plan.strategy == "fsdp1" or (plan.fsdp is not None and plan.fsdp.version == 1)


def _stored(kind: Kind, plan: Plan) -> int:
    """Return the elements of a parameter's own storage on this rank."""
    if plan.fsdp is not None and kind.unit >= 0:
        return prod(shard_shapes(kind, plan)[0])
    return stored_numel(kind, plan.layout.tensor)
