"""The model states of one rank, as every strategy's rule returns them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.optimizers.states import Piece, optimizer_amount
from ranktop.budget.plan import Plan
from ranktop.budget.terms import DTYPE_BYTES, Amount


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of the states while they exist; when they exist is the business of the moments."""

    parameters: Amount
    gradients: Amount
    optimizer: Amount
    optimizer_before: Amount
    """Optimizer state before the first step has ended."""
    unsharded: Amount | None = None
    """Gradients that wait for their reduction, where the strategy can hold such."""
    pieces: tuple[Piece, ...] = ()
    """What the optimizers update on this rank; master copies in the place of the parameters they stand for."""
    copied: int = 0
    """Bytes of the gradients that the master copies have while the optimizer steps."""


def counted(inventory: Inventory) -> list[tuple[Kind, int]]:
    """Return the distinct parameters with their numbers; which unit one belongs to makes no difference but for -1."""
    return inventory.once("counted", _counted)


def _counted(inventory: Inventory) -> list[tuple[Kind, int]]:
    same = inventory.once("alike", _alike)
    times = Counter([same[index] for index in inventory.order])
    return [(inventory.kinds[index], times[index]) for index in dict.fromkeys(same) if times[index]]


def _alike(inventory: Inventory) -> list[int]:
    """Return for every kind the index of the first that equals it in all but its unit."""
    first: dict[tuple[object, ...], int] = {}
    return [
        first.setdefault(
            (kind.shape, kind.dtype, kind.trainable, kind.group, kind.shard_dim, kind.tensor_parallel,
             kind.split_size, kind.shards, kind.shard_rank, kind.unit < 0), index,
        )
        for index, kind in enumerate(inventory.kinds)
    ]  # fmt: skip


def turns(inventory: Inventory, pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces in the order in which a loop over the parameters meets them; empty where it is not known.

    ``pieces`` are one for each of ``counted`` in its order, or already one for each parameter.
    """
    found = counted(inventory)
    if [piece.count for piece in pieces] == [count for _, count in found]:
        same = inventory.once("alike", _alike)
        used = {same[index] for index in inventory.order}
        place = {index: i for i, index in enumerate(index for index in dict.fromkeys(same) if index in used)}
        return [pieces[place[same[index]]] for index in inventory.order]
    return list(pieces) if all(piece.count == 1 for piece in pieces) else []


def gradient_itemsize(kind: Kind, plan: Plan) -> int:
    """Return the bytes per element of a gradient: as the parameter's unless the plan says otherwise."""
    dtype = plan.precision.gradients
    return DTYPE_BYTES[dtype] if dtype else kind.itemsize


def whole_piece(kind: Kind, count: int = 1) -> Piece:
    """Return the optimizer's part of ``count`` equal parameters that this rank updates as a whole."""
    return Piece(kind.shape, kind.itemsize, kind.group, kind.trainable, count=count)


def held(parameters: Amount, gradients: Amount, pieces: Iterable[Piece], plan: Plan) -> Held:
    """Add what the optimizers keep for ``pieces`` to the bytes of parameters and gradients."""
    pieces = list(pieces)
    if plan.precision.master:
        return _with_masters(parameters, gradients, pieces, plan)
    return Held(
        parameters,
        gradients,
        optimizer_amount(pieces, plan),
        optimizer_amount(pieces, plan, before_first_step=True),
        pieces=tuple(pieces),
    )


def _with_masters(parameters: Amount, gradients: Amount, pieces: list[Piece], plan: Plan) -> Held:
    """Count a master copy of every trainable low-precision parameter that no optimizer updates by itself.

    The copies and their states belong to the optimizer. Their gradients exist only while the script lets them.
    """
    item = DTYPE_BYTES[plan.precision.master or "float32"]
    copied = [piece for piece in pieces if piece.trainable and piece.group < 0 and piece.itemsize < item]
    masters = sum(item * prod(piece.shape) * piece.count for piece in copied)
    updated = [
        replace(piece, itemsize=item, group=-1 - piece.group) if piece.trainable and piece.group < 0 else piece
        for piece in pieces
    ]
    after = optimizer_amount(updated, plan)
    before = optimizer_amount(updated, plan, before_first_step=True)
    rule = f"{plan.precision.master} master copies"
    return Held(
        parameters,
        replace(gradients, rule=f"{gradients.rule}; up to {masters} bytes more for the master copies", slack=masters),
        _more(after, masters, rule),
        _more(before, masters, rule),
        pieces=tuple(updated),
        copied=masters,
    )


def _more(amount: Amount, extra: int, rule: str) -> Amount:
    known = None if amount.bytes is None else amount.bytes + extra
    return replace(amount, bytes=known, rule=f"{rule}; {amount.rule}")
