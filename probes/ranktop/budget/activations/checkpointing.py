"""What activation checkpointing keeps of a block, and what it brings back to life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget.activations.liveness import Point, backward, forward
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
    held: int
    """Bytes that the script's own objects keep: a key/value cache."""
    points: tuple[Point, ...]
    """Where its backward may be highest."""
    forward: int
    """Temporaries of forward on top of what stays."""
    cached: int
    """Low-precision weights and biases that autocast's cache holds until forward has ended, and nobody after."""

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
    belongs to who reads it next. Recomputing stops before the last product, whose kept result nobody reads.
    """
    if mode not in MODES:
        raise NoRule(f"no rule for the activation checkpointing '{mode}'")
    held = dict.fromkeys(tape.held)
    saved = {storage: None for storage in tape.saved() if storage is not y.storage and storage not in held}
    stay = saved
    unread: tuple[Storage, ...] = ()  # kept by the checkpoint although no node saved it
    if mode != "none":
        products = _products(tape) if mode == "selective" else []
        stay = {x.storage: None, **dict.fromkeys(products)}
        unread = (x.storage, *products[-1:])
    cached = sum(storage.size for storage in saved if storage.kind == CAST and storage not in stay)
    return Block(
        saved=saved,
        stay=stay,
        held=total(held, ACTIVATION),
        points=backward(tape, y, (ACTIVATION, CAST), unread, held),
        forward=forward(tape, x, y, stay),
        cached=cached + sum(node.bias_cast for node in tape.nodes),
    )


def _products(tape: Tape) -> list[Storage]:
    return [value.storage for node in tape.nodes if node.product for value in (*node.extra, *node.outputs)]
