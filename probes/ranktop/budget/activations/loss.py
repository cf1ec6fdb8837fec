"""The output head and the loss on a tape, with what they need for a moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget.activations.family import Family
from ranktop.budget.activations.operations import FULL, cast, linear, of_output, raised, scale
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import Tape, Value
from ranktop.budget.model import NoRule
from ranktop.budget.models.section import word

KINDS: Final = ("upcast", "plain", "hf", "chunked", "none")


@dataclass(frozen=True, slots=True)
class Loss:
    """The end of forward."""

    value: Value
    held: tuple[Value, ...] = ()
    """Tensors that live until backward although autograd does not need them."""
    forward: int = 0
    """Temporaries in forward on top of everything kept."""


def columns(shape: Shape, kind: str, whole: int) -> int:
    """Columns of the logits on this rank, of ``whole``.

    Tensor parallel splits them over the vocabulary (torchtitan's loss parallel); transformers gathers them whole
    before the loss (``_tp_plan``: ``colwise_gather_output``).
    """
    return whole if kind == "hf" else -(-whole // shape.tensor)


def head(tape: Tape, shape: Shape, x: Value, kind: str, family: Family) -> Loss:
    """The output head on [rows, h] and the named loss; NoRule for a loss that this stack does not have."""
    whole = family.columns(shape.model)
    if kind not in KINDS:
        raise NoRule(f"no rule for the loss '{kind}' with this stack")
    if kind == "none" or not whole:
        return Loss(x)
    if kind == "chunked":
        return _chunked(tape, shape, x, columns(shape, kind, whole))
    with tape.part("logits and loss"):
        logits = linear(
            tape, x, shape.hidden, columns(shape, kind, whole), shape.width, bias=False, trainable=shape.trainable
        )
        if word(shape.model, "model_type") == "gemma2":
            # Soft caps: logits pass through a tanh.
            logits = scale(tape, of_output(tape, scale(tape, logits)))
        return cross_entropy(tape, logits, x.numel // shape.hidden, kind, family.upcasts)


def cross_entropy(tape: Tape, logits: Value, rows: int, kind: str, upcasts: bool = True) -> Loss:
    """``F.cross_entropy`` on logits of [rows, V]: keeps the log-softmax, the labels and the sum of weights.

    ``upcast``: fp32 logits live until the loss returns (4 B per logit in forward); backward makes two gradients of
    4 B beside the kept 4: the well-known 12 B. ``plain`` in bf16: 2 + 2 + 2. ``hf``: the output object keeps the
    logits in their own dtype as well, and labels are shifted into a copy: 14 B in bf16, 16 B in fp32. Autocast runs
    the loss in float32 whatever the logits are.
    Source: derivatives.yaml (``_log_softmax``, ``nll_loss_forward``), transformers 5.24 loss_utils.py
    ``ForCausalLMLoss``, and MemTracker's runs.
    """
    own = kind == "plain" or (kind == "hf" and not upcasts)
    full = logits if own else cast(tape, logits, FULL)
    operand = raised(tape, full)
    result = of_output(tape, operand)
    labels = (tape.new(rows, 8, needs_grad=False),) if kind == "hf" and upcasts else ()
    weights = tape.new(1, FULL, needs_grad=False)
    value = tape.apply((result,), 1, FULL, (result, weights, *labels))
    held = (logits, value) if kind == "hf" else (value,)
    passing = {v.storage for v in (full, operand)} - {v.storage for v in held}
    return Loss(value, held, sum(storage.size for storage in passing))


def _chunked(tape: Tape, shape: Shape, x: Value, vocab: int) -> Loss:
    """Fused linear cross entropy: gradients of input and head are made in forward, chunk by chunk.

    Keeps [tokens, h] and the head's gradient of [V, h]; about tokens x h logits are alive at once, because the chunk
    is tokens / ceil(V / h) long. Source: liger_kernel/ops/fused_linear_cross_entropy.py. Not measured here.
    """
    with tape.part("logits and loss"):
        gradient = tape.new(x.numel, x.width, needs_grad=False)
        weights = shape.hidden * vocab * shape.width if shape.trainable else 0
        made = tape.new(weights, 1, needs_grad=False)
        value = tape.apply((x,), 1, FULL, (gradient, made))
        rows = max(1, -(-shape.tokens // -(-vocab // shape.hidden)))
        return Loss(value, (value,), rows * vocab * (x.width + FULL))
