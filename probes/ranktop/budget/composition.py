"""What is alive on top of the states at each point of a step, and which point is the highest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ranktop.budget.activations.saved import Activations
from ranktop.budget.terms import Amount, Part

NO_ACTIVATIONS = "the activations of this model are not known"
"""Reason for an unknown category when nobody could tell the activations."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a step at which memory may be highest."""

    name: str
    """In words, e.g. ``last block's backward``."""
    activations: tuple[Part, ...] = ()
    buffers: tuple[Part, ...] = ()
    gradients: int = 0
    """Bytes of the gradients that exist by then."""

    @property
    def bytes(self) -> int:
        """Bytes beyond parameters and optimizer."""
        return total(self.activations) + total(self.buffers) + self.gradients


@dataclass(frozen=True, slots=True)
class Shares:
    """Gradients by where their parameters lie in the order of the model, bytes of one rank."""

    before: int = 0
    """Embeddings: the last that backward reaches."""
    block: int = 0
    """One block's."""
    last: int = 0
    """Of the block's last matrix, the first that its backward makes."""
    after: int = 0
    """Final norm and head: there before backward enters the blocks."""
    blocks: int = 1


def total(parts: Iterable[Part]) -> int:
    """Return the bytes of all parts."""
    return sum(part.bytes for part in parts)


def parts(*pairs: tuple[str, int], seen: bool = False) -> tuple[Part, ...]:
    """Return the pieces that are not empty."""
    return tuple(Part(name, size, seen) for name, size in pairs if size)


def highest(points: Sequence[Point]) -> Point:
    """Return the point that needs the most, the earliest of equals."""
    return max(points, key=lambda point: point.bytes)


def saved_parts(alive: Activations) -> tuple[Part, ...]:
    """Return what forward leaves for backward, in names that add up to ``saved``."""
    if alive.parts and total(alive.parts) == alive.saved:
        return alive.parts
    times = f" of {alive.in_flight} micro-batches in flight" if alive.in_flight > 1 else ""
    return parts(
        (f"{alive.layers} blocks{times}", alive.in_flight * alive.blocks),
        (f"outside of the blocks{times}", alive.in_flight * alive.outside),
        ("logits and loss", alive.logits),
        (f"inputs{times}", alive.in_flight * alive.inputs),
        ("low-precision copies of the weights (autocast)", alive.casts),
    )


def forward_points(alive: Activations, gradients: int) -> list[Point]:
    """Return where forward may be highest: in the last block, and around the loss."""
    at_loss = saved_parts(alive) + parts(("temporaries of the loss", alive.loss_forward))
    return [Point("loss, in forward", at_loss, gradients=gradients)]


def backward_points(alive: Activations, shares: Shares, full: int, kept: int) -> list[Point]:
    """Return where backward may be highest: at the loss, in the last block, in the first block, at its end.

    ``full`` are the bytes of all gradients; ``kept`` those that exist before this backward: of earlier
    micro-batches, or views of buckets. In the blocks activations fall and gradients grow evenly, so that the
    highest point is at one of the ends. Source: torch's engine frees what a node saved once the node has run, and
    a gradient is taken over as it is when there is none yet (AccumulateGrad).
    """
    points = [Point("loss", saved_parts(alive) + parts(("gradients of the logits", alive.loss_backward)), (), kept)]
    others = alive.in_flight - 1
    waiting = others * (alive.blocks + alive.outside + alive.inputs)
    after = max(0, min(alive.after, alive.outside))
    for name, left in (("last block", alive.layers), ("first block", 1)):
        held = alive.blocks * left // max(1, alive.layers)
        made = shares.after + (shares.blocks - min(left, shares.blocks)) * shares.block + shares.last
        points.append(
            Point(
                name,
                parts(
                    ("activations of the other micro-batches in flight", waiting),
                    (f"{left} block{'s' if left > 1 else ''}, not yet through backward", held),
                    ("outside of the blocks", alive.outside - after),
                    ("inputs", alive.inputs),
                    ("low-precision copies of the weights (autocast)", alive.casts * left // max(1, alive.layers)),
                    ("recomputed activations", alive.recomputed),
                    ("gradients of activations", alive.block_backward),
                ),
                gradients=kept or min(full, made),
            )
        )
    end = parts(
        ("activations of the other micro-batches in flight", waiting),
        ("inputs", alive.inputs),
        ("gradient of the embedding's output", alive.boundary),
    )
    points.append(Point("end of backward", end, gradients=max(full, kept)))
    return points


def amount(found: tuple[Part, ...], rule: str, within: float | None = 0.0) -> Amount:
    """Return the sum of the parts with its rule."""
    return Amount(total(found), rule, within=within if found else 0.0, parts=found)
