"""Normalisations on a tape: fused LayerNorm, and RMSNorm as transformers writes it out."""

from __future__ import annotations

from ranktop.budget.activations.operations import FULL, cast, multiply, of_input, of_output, raised
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import PARAMETER, Node, Tape, Value


def layer_norm(tape: Tape, shape: Shape, x: Value, *, bias: bool = True) -> Value:
    """``F.layer_norm`` over h: keeps its input and mean and 1/std per row.

    CUDA keeps the statistics in float32; CPU kernels keep them in the input's dtype (measured).
    """
    x = raised(tape, x)
    rows = x.numel // shape.hidden
    stats = [tape.new(rows, x.width if tape.host else FULL, needs_grad=False) for _ in range(2)]
    grads = (2 if bias else 1) * shape.hidden * shape.width if shape.trainable else 0
    return tape.apply((x,), x.numel, x.width, (x, *stats), weight=grads)


def rms_norm(tape: Tape, shape: Shape, x: Value, size: int, kind: str = "llama") -> Value:
    """RMSNorm in single operations over the last ``size`` elements.

    Llama and most others: ``w * (x32 * rsqrt(mean(x32^2))).to(dtype)`` keeps x in fp32, the normalized x in x's
    dtype, 1/rms per row; its result is kept by whoever reads it. In bf16 that is 4 + 2 + 2 B per element, in fp32
    4 (shared with the residual stream) + 4 + 4. Gemma multiplies by 1 + w in fp32 before the cast: 4 + 4 + 2.
    Source: transformers 5.24 modeling_llama.py ``LlamaRMSNorm``, modeling_gemma.py ``GemmaRMSNorm``.
    """
    own = x.width
    full = cast(tape, x, FULL)
    squares = of_input(tape, full)
    rows = x.numel // size
    mean = tape.apply((squares,), rows, FULL)
    inverse = of_output(tape, mean)
    normalized = multiply(tape, full, inverse)
    if kind != "gemma":
        normalized = cast(tape, normalized, own)
    weighted = _times_weight(tape, shape, normalized, size)
    return cast(tape, weighted, own)


def _times_weight(tape: Tape, shape: Shape, x: Value, size: int) -> Value:
    weight = tape.new(size, shape.width, kind=PARAMETER, needs_grad=shape.trainable)
    saves = ((x,) if shape.trainable else ()) + ((weight,) if x.needs_grad else ())
    out = tape.new(x.numel, max(x.width, shape.width))
    grads = size * shape.width if shape.trainable else 0
    tape.record(Node((x,), (out,), saves, weight=grads))
    return out
