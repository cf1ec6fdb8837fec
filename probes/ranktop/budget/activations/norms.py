"""Normalisations on a tape: fused LayerNorm, and RMSNorm as transformers writes it out."""

from __future__ import annotations

from ranktop.budget.activations.operations import FULL, cast, multiply, of_input, of_output, raised
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import PARAMETER, Tape, Value
from ranktop.budget.models.section import flag, word


def layer_norm(tape: Tape, shape: Shape, x: Value, *, bias: bool = True) -> Value:
    """``F.layer_norm`` over h: keeps its input and mean and 1/std per row.

    CUDA keeps the statistics in float32 and runs in float32 under autocast; CPU kernels keep them in the input's dtype
    and take it as it comes (measured).
    """
    x = x if tape.host else raised(tape, x)
    rows = x.numel // shape.hidden
    stats = [tape.new(rows, x.width if tape.host else FULL, needs_grad=False) for _ in range(2)]
    grads = (2 if bias else 1) * shape.hidden * shape.width if shape.trainable else 0
    return tape.apply((x,), x.numel, x.width, (x, *stats), weight=grads)


def plain_norm(tape: Tape, shape: Shape, x: Value) -> Value:
    """OLMo's LayerNorm without weights, in float32: keeps the fp32 input and its statistics."""
    full = cast(tape, x, FULL)
    stats = [tape.new(x.numel // shape.hidden, FULL, needs_grad=False) for _ in range(2)]
    return cast(tape, tape.apply((full,), x.numel, FULL, (full, *stats)), x.width)


def rms_norm(tape: Tape, shape: Shape, x: Value, size: int) -> Value:
    """RMSNorm in single operations over the last ``size`` elements.

    Llama and most others: ``w * (x32 * rsqrt(mean(x32^2))).to(dtype)`` keeps x in fp32, the normalized x in x's
    dtype, 1/rms per row; its result is kept by whoever reads it. In bf16 that is 4 + 2 + 2 B per element, in fp32
    4 (shared with the residual stream) + 4 + 4. Gemma multiplies by 1 + w in fp32 before it casts, OLMo 2 by w:
    4 + 4 + 2.
    Source: transformers 5.24 modeling_llama.py ``LlamaRMSNorm``, modeling_gemma.py ``GemmaRMSNorm``,
    modeling_olmo2.py ``Olmo2RMSNorm``.
    """
    own = x.width
    full = cast(tape, x, FULL)
    squares = of_input(tape, full)
    mean = tape.apply((squares,), x.numel // size, FULL)
    normalized = multiply(tape, full, of_output(tape, mean))
    if flag(shape.model, "unit_offset_norm"):
        weight = tape.new(size, FULL, needs_grad=shape.trainable)
        return cast(tape, _times(tape, shape, normalized, weight), own)
    weight = tape.new(size, shape.width, kind=PARAMETER, needs_grad=shape.trainable)
    if word(shape.model, "model_type") == "olmo2":
        return cast(tape, _times(tape, shape, normalized, weight), own)
    return _times(tape, shape, cast(tape, normalized, own), weight)


def _times(tape: Tape, shape: Shape, x: Value, weight: Value) -> Value:
    saves = ((x,) if shape.trainable else ()) + ((weight,) if x.needs_grad else ())
    grads = weight.numel * shape.width if shape.trainable else 0
    return tape.apply((x,), x.numel, max(x.width, weight.width), saves, weight=grads)
