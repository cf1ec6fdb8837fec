"""The output head and the loss on a tape, with what they need for a moment."""

from __future__ import annotations

from dataclasses import dataclass

from ranktop.budget.activations.operations import FULL, cast, softmax
from ranktop.budget.activations.tape import Tape, Value, rounded
from ranktop.budget.model import NoRule

CHUNK = 1024
"""Tokens whose logits are alive at once in a chunked loss (Liger's fused linear cross entropy and torchtitan's
chunked loss use pieces of this order)."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes around the loss on top of what is kept until backward."""

    forward: int
    backward: int


def cross_entropy(tape: Tape, logits: Value, kind: str) -> tuple[Peak, tuple[Value, ...]]:
    """``F.cross_entropy`` on logits of [tokens, V]: keeps the log-softmax; returns peaks and what stays beside it.

    ``upcast``: fp32 logits live until the loss returns (4 B per logit in forward), backward makes two gradients of
    4 B (the kept 4 make the well-known 12 B). ``plain`` in bf16: 2 + 2 + 2. ``hf``: the output object keeps the
    logits in their own dtype as well. Autocast runs the loss in float32 whatever the logits are.
    Source: derivatives.yaml (``_log_softmax``, ``nll_loss_forward``), transformers' ForCausalLMLoss, MemTracker runs.
    """
    kept: tuple[Value, ...] = ()
    if kind == "hf":
        kept = (logits,)
    elif kind not in ("upcast", "plain"):
        raise NoRule(f"no rule for the loss '{kind}' with this stack")
    own = logits.size
    full = logits if kind == "plain" else cast(tape, logits, FULL)
    result = softmax(tape, full)
    weights = tape.new(1, FULL)
    value = tape.apply((result,), 1, FULL, (result, weights))
    copied = full is not logits or result.width != logits.width
    forward = rounded(logits.numel * result.width) if copied else (0 if kind == "hf" else own)
    return Peak(forward, 2 * result.size), (*kept, value)
