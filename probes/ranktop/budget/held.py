"""The model states of one rank, as every strategy's rule returns them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ranktop.budget.inventory import Kind
from ranktop.budget.optimizers import Piece, optimizer_amount
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


def gradient_itemsize(kind: Kind, plan: Plan) -> int:
    """Return the bytes per element of a gradient: as the parameter's unless the plan says otherwise."""
    dtype = plan.precision.gradients
    return DTYPE_BYTES[dtype] if dtype else kind.itemsize


def whole_piece(kind: Kind) -> Piece:
    """Return the optimizer's part of a parameter that this rank updates as a whole."""
    return Piece(kind.shape, kind.itemsize, kind.group, kind.trainable)


def held(parameters: Amount, gradients: Amount, pieces: Iterable[Piece], plan: Plan) -> Held:
    """Add what the optimizers keep for ``pieces`` to the bytes of parameters and gradients."""
    pieces = list(pieces)
    return Held(
        parameters,
        gradients,
        optimizer_amount(pieces, plan),
        optimizer_amount(pieces, plan, before_first_step=True),
    )
