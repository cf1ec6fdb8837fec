"""Linear layers as a rank runs them: split between tensor-parallel ranks, with or without an adapter beside them."""

from __future__ import annotations

from ranktop.budget.activations.operations import (
    add,
    cast,
    dropout,
    embedding,
    linear,
    multiply,
    of_input,
    of_output,
    scale,
)
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import ACTIVATION, Node, Tape, Value
from ranktop.budget.models.adapters import LINEAR
from ranktop.budget.terms import DTYPE_BYTES


def project(tape: Tape, shape: Shape, x: Value, role: str, inner: int, outer: int, *, bias: bool = False) -> Value:
    """A linear layer of [.., inner] -> [.., outer] on this rank, frozen with an adapter under LoRA.

    PEFT: ``base(x) + B(A(x.to(adapter dtype))) scaling``, cast back. The frozen base keeps no input; A keeps its own
    (in fp32 where the adapters are), B keeps A's result of [.., r]. Source: peft/tuners/lora/layer.py
    ``Linear.forward``.
    """
    lora = shape.lora
    if lora is None:
        return linear(tape, x, inner, outer, shape.width, bias=bias)
    out = linear(tape, x, inner, outer, shape.width, bias=bias, trainable=False)
    if role not in (lora.targets or LINEAR):
        return out
    width = DTYPE_BYTES[lora.dtype]
    low = linear(tape, dropout(tape, cast(tape, x, width), lora.dropout), inner, lora.rank, width, bias=False)
    high = linear(tape, low, lora.rank, outer, width, bias=False)
    return cast(tape, add(tape, out, scale(tape, high)), out.width)


def gather(tape: Tape, shape: Shape, x: Value) -> Value:
    """What a column-parallel layer reads: with sequence parallel, the sequence gathered from all ranks.

    DTensor keeps the gathered tensor of [b, s, h] for the weight's gradient; Megatron keeps its own slice and gathers
    again in backward (core/tensor_parallel/layers.py ``LinearWithGradAccumulationAndAsyncCommunication``).
    """
    if not shape.gathered:
        return x
    numel = x.numel * shape.tensor
    whole = Value(x.storage, numel, x.width) if shape.gathered == "megatron" else tape.new(numel, x.width)
    tape.record(Node((x,), (whole,)))
    return whole


def gathers(tape: Tape, shape: Shape, x: Value, count: int) -> tuple[Value, ...]:
    """What ``count`` column-parallel layers read: one gathered tensor for all, or each its own (``dtensor-each``).

    torchtitan's PrepareModuleInput gathers once for q, k and v: (2 + 14/t) sbh elements per GPT block; layers that
    each gather for themselves keep (4 + 14/t) sbh (both counted with MemTracker).
    """
    if shape.gathered == "dtensor-each":
        return tuple(gather(tape, shape, x) for _ in range(count))
    return (gather(tape, shape, x),) * count


def reduce(tape: Tape, shape: Shape, partial: Value) -> Value:
    """What leaves a row-parallel layer: summed over the ranks, or summed and scattered along the sequence."""
    if shape.tensor == 1:
        return partial
    numel = partial.numel // shape.tensor if shape.gathered else partial.numel
    out = tape.new(numel, partial.width)
    tape.record(Node((partial,), (out,), passes=not shape.gathered))
    return out


def embed(tape: Tape, shape: Shape, tokens: Value) -> Value:
    """Token embedding, its rows split over tensor-parallel ranks: [b, s, h], sliced with sequence parallel."""
    rows = -(-shape.model.vocab // shape.tensor)
    return reduce(tape, shape, embedding(tape, tokens, rows, shape.hidden, shape.width, trainable=shape.trainable))


def embed_indices(tape: Tape, shape: Shape, rows: int, kind: str = ACTIVATION) -> Value:
    """An embedding of [s] indices that the model makes itself (positions, types): keeps the indices."""
    own = shape.sequence // (shape.tensor if shape.gathered else 1)
    indices = tape.new(own, 8, needs_grad=False, kind=kind)
    return embedding(tape, indices, rows, shape.hidden, shape.width, trainable=shape.trainable)


def activation(tape: Tape, x: Value, name: str) -> Value:
    """A feed-forward activation by transformers' name.

    Fused ones keep their input (``relu`` its result); ``gelu_new`` is written out, 0.5 x (1 + tanh(c (x + d x^3))),
    and keeps x, the tanh, 0.5 x and 1 + tanh; ``quick_gelu`` is x sigmoid(1.702 x).
    Source: transformers 5.24 activations.py.
    """
    if name == "relu":
        return of_output(tape, x)
    if name in ("gelu_new", "gelu_fast"):
        cubed = scale(tape, add(tape, x, scale(tape, of_input(tape, x))))
        return multiply(tape, scale(tape, x), scale(tape, of_output(tape, cubed)))
    if name == "quick_gelu":
        return multiply(tape, x, of_output(tape, scale(tape, x)))
    return of_input(tape, x)
