"""What activation checkpointing keeps of a block, and what it brings back to life."""

from __future__ import annotations

from ranktop.budget.activations.tape import ACTIVATION, Storage, Tape, Value, total


def kept(tape: Tape, x: Value, mode: str) -> dict[Storage, None]:
    """Return the storages of a block that stay until backward.

    ``none``: everything that autograd saves. ``full``: the block's input. ``selective`` (torch's
    ``create_selective_checkpoint_contexts`` with matrix products and fused attention on the list): the block's input
    and every result of such an operation, needed by backward or not.
    """
    if mode == "none":
        return tape.saved()
    stay: dict[Storage, None] = {x.storage: None}
    if mode == "selective":
        for node in tape.nodes:
            if node.product:
                stay.update({value.storage: None for value in (*node.outputs, *node.extra)})
    return stay


def recomputed(tape: Tape, stay: dict[Storage, None]) -> int:
    """Return the bytes that recomputing a block makes: what its backward needs and was not kept, casts included."""
    return total((s for s in tape.saved() if s not in stay), ACTIVATION, "cast")
