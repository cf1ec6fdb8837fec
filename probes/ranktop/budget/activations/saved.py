"""The one form that every source of activation numbers is brought into."""

from __future__ import annotations

from dataclasses import dataclass

from ranktop.budget.terms import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes on one rank for one micro-batch at one sequence length, after tensor, sequence and context splitting.

    ``blocks``, ``outside``, ``logits``, ``inputs`` and ``casts`` live from forward to backward; the others are
    temporaries on top.
    """

    layers: int
    """Blocks that this rank runs for one micro-batch (one pipeline chunk)."""
    layer: int
    """Saved by one block when nothing is checkpointed."""
    blocks: int
    """What all blocks of the rank keep until backward, checkpointing considered."""
    recomputed: int = 0
    """What recomputing one checkpointed segment brings to life; 0 without checkpointing."""
    outside: int = 0
    """Saved outside of the blocks and before the loss: embedding's output, final norm, rotary tables."""
    logits: int = 0
    """Saved by the output head and the loss."""
    inputs: int = 0
    """Tokens and labels."""
    casts: int = 0
    """Low-precision copies of weights that autocast keeps for backward."""
    loss_forward: int = 0
    """Temporaries at forward's worst point, around the loss, on top of everything saved."""
    loss_backward: int = 0
    """Temporaries when backward goes through the loss, on top of everything saved."""
    block_backward: int = 0
    """Temporaries while one block runs backward: gradients of activations."""
    boundary: int = 0
    """One block's output: what a pipeline sends, what a checkpoint keeps."""
    in_flight: int = 1
    """Micro-batches whose activations are alive at once (pipeline), in units of this rank's ``layers``."""
    within: float | None = None
    """Relative error of ``saved``, as ``Amount.within``."""
    rule: str = ""
    """Where the numbers come from, with the source."""
    parts: tuple[Part, ...] = ()
    """What ``saved`` is made of."""
    after: int = 0
    """Part of ``outside`` that follows the blocks (final norm): freed before backward reaches them."""
    backward: tuple[tuple[int, int], ...] = ()
    """Points of one block's backward at which memory may be highest, as (bytes of the block alive: what is saved or
    recomputed and not yet freed, and gradients of activations; bytes of its parameters' gradients made by then).
    Empty when only ``block_backward`` is known."""
    workspace: int = 0
    """Buffers of the stack's own that grow with the batch and stay between steps."""
    block_forward: int = 0
    """Temporaries while the last block runs forward, on top of what blocks and embedding keep: a checkpointed block
    makes everything and frees most of it, autocast's cache holds all low-precision weights until forward has ended."""

    cached: int = 0
    """Part of ``block_forward`` and ``loss_forward``: copies of weights that autocast's cache holds beyond ``casts``,
    until the script leaves autocast."""

    casts_inside: bool = False
    """Whether the points of ``backward`` count the block's own low-precision weights."""
    tied: int = 0
    """Gradient that the head has made of a weight it shares with the embedding: it waits for the embedding's until
    backward has ended, because a parameter's gradient is set once."""

    @property
    def saved(self) -> int:
        """Bytes alive for backward when forward has ended, all micro-batches in flight counted."""
        return self.in_flight * (self.blocks + self.outside + self.inputs) + self.logits + self.casts
