"""What activation checkpointing keeps of a block, and what it brings back to life."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ranktop.budget.activations.liveness import Point, backward
from ranktop.budget.activations.tape import ACTIVATION, CAST, Storage, Tape, Value, total
from ranktop.budget.model import NoRule

MODES: Final = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Block:
    """One block's bytes."""

    saved: dict[Storage, None]
    """What autograd keeps when nothing is checkpointed."""
    stay: dict[Storage, None]
    """What stays until backward, checkpointing considered."""
    points: tuple[Point, ...]
    """Where its backward may be highest."""

    @property
    def layer(self) -> int:
        """Bytes saved without checkpointing."""
        return total(self.saved, ACTIVATION)

    @property
    def kept(self) -> int:
        """Bytes that stay."""
        return total(self.stay, ACTIVATION)

    @property
    def casts(self) -> int:
        """Bytes of low-precision weights that stay."""
        return total(self.stay, CAST)

    @property
    def recomputed(self) -> int:
        """Bytes that recomputing makes: what backward needs and was not kept, low-precision weights included."""
        return total((storage for storage in self.saved if storage not in self.stay), ACTIVATION, CAST)


def block(tape: Tape, x: Value, y: Value, mode: str) -> Block:
    """Return what a block with input ``x`` and output ``y`` keeps; NoRule for an unknown mode.

    ``none``: everything that autograd saves. ``full``: the input. ``selective`` (torch's
    ``create_selective_checkpoint_contexts`` with matrix products and fused attention on the list): the input and every
    result of such an operation, needed by backward or not. Low-precision copies of weights are made again. The output
    belongs to who reads it next.
    """
    if mode not in MODES:
        raise NoRule(f"no rule for the activation checkpointing '{mode}'")
    saved = {storage: None for storage in tape.saved() if storage is not y.storage}
    stay = saved if mode == "none" else {x.storage: None, **({} if mode == "full" else dict.fromkeys(_products(tape)))}
    kinds = (ACTIVATION,) if mode == "none" else (ACTIVATION, CAST)
    return Block(saved, stay, backward(tape, y, kinds, stay))


def _products(tape: Tape) -> Iterator[Storage]:
    for node in tape.nodes:
        if node.product:
            yield from (value.storage for value in (*node.outputs, *node.extra))
