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
    return sum([part.bytes for part in parts])  # a list: this is asked thousands of times


def parts(*pairs: tuple[str, int], seen: bool = False) -> tuple[Part, ...]:
    """Return the pieces that are not empty."""
    return tuple([Part(name, size, seen) for name, size in pairs if size])


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
    return [
        Point("last block, forward", last_block(alive), gradients=gradients),
        Point("loss, in forward", forward_loss(alive), gradients=gradients),
    ]


def forward_loss(alive: Activations) -> tuple[Part, ...]:
    """Return what is alive around the loss in forward."""
    return saved_parts(alive) + parts(("temporaries of the loss", alive.loss_forward))


def last_block(alive: Activations) -> tuple[Part, ...]:
    """Return what is alive while the last block runs forward."""
    return parts(
        ("activations of the other micro-batches in flight", _waiting(alive)),
        ("activations of blocks", alive.blocks),
        ("outside of the blocks", outside(alive)),
        ("inputs", alive.inputs),
        ("low-precision copies of the weights (autocast)", alive.casts),
        ("temporaries of the last block", alive.block_forward),
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """A point inside the backward of one checkpointed segment (of one block without checkpointing)."""

    left: int
    """Segments that are not through, this one included."""
    of: int
    """Segments in all."""
    made: int
    """Gradients of this segment's parameters by then, in the dtype that backward computes in."""
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """In words."""
        where = {self.of: "last", 1: "first"}.get(self.left, "second to last" if self.left == self.of - 1 else "inner")
        return f"backward of the {where} block"


def stages(alive: Activations, every: int, last: int, lefts: Iterable[int] = ()) -> list[Stage]:
    """Return the points at which backward may be highest, in the last and the first block (and ``lefts``).

    From block to block activations fall and gradients grow evenly, so that one of the ends is the highest. Inside a
    block the activations speak (``Activations.backward``); without them the gradient of the block's ``last`` matrix
    is made while nothing has been freed. ``every`` = blocks in one checkpointed segment.
    """
    of = max(1, -(-alive.layers // every))
    points = alive.backward or ((alive.blocks // of + alive.recomputed + alive.block_backward, last),)
    found = []
    for left in sorted({of, 1, *(x for x in lefts if 1 <= x <= of)}, reverse=True):
        common = parts(
            ("activations of the other micro-batches in flight", _waiting(alive)),
            (f"{left - 1} blocks not yet reached", alive.blocks * (left - 1) // of),
            ("outside of the blocks", outside(alive)),
            ("inputs", alive.inputs),
            tied(alive),
        )
        before, all_made = 0, max(made for _, made in points)
        for held, made in points:
            # A weight's copy goes with the operation that used it, after its gradient has been made.
            own = 0 if alive.casts_inside else alive.casts // of * (all_made - before) // max(1, all_made)
            before = made
            inside = parts(
                ("low-precision copies of the weights (autocast)", alive.casts * (left - 1) // of + own),
                ("this block's activations and their gradients", held),
            )
            found.append(Stage(left, of, made, common + inside))
    return found


def outside(alive: Activations) -> int:
    """Return the bytes saved before the blocks, or held by the script through backward."""
    return max(0, alive.outside - alive.after)


def tied(alive: Activations) -> tuple[str, int]:
    """Return the gradient of a weight shared by head and embedding: the head's waits until the embedding has made its.

    Their sum is a third tensor. Source: the ``InputBuffer`` of the weight's ``AccumulateGrad``
    (torch/csrc/autograd/input_buffer.cpp), and the profiler's memory events of such a step.
    """
    return "gradient of the tied weight, from the head", alive.tied


def _waiting(alive: Activations) -> int:
    return (alive.in_flight - 1) * (alive.blocks + alive.outside + alive.inputs)


def at_loss(alive: Activations) -> tuple[Part, ...]:
    """Return what is alive when backward goes through the loss."""
    return saved_parts(alive) + parts(("gradients of the logits", alive.loss_backward))


def at_head(alive: Activations) -> tuple[Part, ...]:
    """Return what is alive when the head's weight gets its gradient.

    The gradient of the logits stands in the place of what the loss had saved of them.
    """
    return saved_parts(alive) + parts(("gradient of the head's input", alive.boundary), tied(alive))


def at_end(alive: Activations) -> tuple[Part, ...]:
    """Return what is alive when backward reaches the embedding."""
    return parts(
        ("activations of the other micro-batches in flight", _waiting(alive)),
        ("outside of the blocks", outside(alive)),
        ("inputs", alive.inputs),
        ("gradient of the embedding's output", alive.boundary),
        ("gradients of the tied weight, from head and embedding, that are being added", 2 * alive.tied),
    )


def backward_points(alive: Activations, shares: Shares, full: int, kept: int, every: int = 1) -> list[Point]:
    """Return where backward may be highest: at the loss, in the last block, in the first block, at its end.

    ``full`` are the bytes of all gradients; ``kept`` those that exist before this backward: of earlier
    micro-batches, or views of buckets. Source: torch's engine frees what a node saved once the node has run; a
    gradient is taken over as it is when there is none yet, else added to it at once (AccumulateGrad).
    """
    at_hand = parts(("gradient of the head's weight at hand", shares.after if kept else 0))
    points = [
        Point("loss", at_loss(alive), (), kept),
        Point("head", at_head(alive) + at_hand, (), kept or min(full, shares.after)),
    ]
    for stage in stages(alive, every, shares.last):
        done = (stage.of - stage.left) * every * shares.block
        if kept:
            at_hand = parts(("gradient of the matrix at hand", min(stage.made, shares.last)))
            points.append(Point(stage.name, stage.parts + at_hand, gradients=kept))
        else:
            points.append(Point(stage.name, stage.parts, gradients=min(full, shares.after + done + stage.made)))
    at_hand = parts(("gradient of the embedding at hand", shares.before if kept else 0))
    points.append(Point("end of backward", at_end(alive) + at_hand, gradients=max(full, kept)))
    return points


def amount(found: tuple[Part, ...], rule: str, within: float | None = 0.0) -> Amount:
    """Return the sum of the parts with its rule."""
    return Amount(total(found), rule, within=within if found else 0.0, parts=found)
