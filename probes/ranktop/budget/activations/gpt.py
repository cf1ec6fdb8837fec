"""The GPT shape as people write it by hand (nanoGPT's layout)."""

from __future__ import annotations

from ranktop.budget.activations.attention import fused, masked
from ranktop.budget.activations.family import Tables
from ranktop.budget.activations.layers import embed, embed_indices, gathers, project, reduce
from ranktop.budget.activations.norms import layer_norm
from ranktop.budget.activations.operations import add, dropout, of_input, view
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import Tape, Value
from ranktop.budget.models.section import flag


def before(tape: Tape, shape: Shape, tokens: Value) -> Value:
    """Token and position embeddings: the sum is the first block's input; positions are indices of [s]."""
    learned = embed_indices(tape, shape, shape.model.positions)
    return dropout(tape, add(tape, embed(tape, shape, tokens), learned), shape.dropout)


def block(tape: Tape, shape: Shape, x: Value, kind: str, tables: Tables) -> Value:
    """A block of a GPT like nanoGPT: x + attention(LN(x)), then x + W2 gelu(W1 LN(x)).

    Kept per token, in elements of the compute dtype, f = 4h and a d = h, without dropout: x, LN, qkv 3, attention's
    result, the sum, LN, W1's result 4, gelu 4 = 16 h; plus statistics and logsumexp (counted with 512-byte blocks,
    equal to MemTracker's reading to the byte). Split over t: (4 + 12/t) h; with sequence parallel (2 + 14/t) h.
    """
    bias = flag(shape.model, "bias", True)
    with tape.part("norms"):
        normed = layer_norm(tape, shape, x, bias=flag(shape.model, "norm_bias", True))
    with tape.part("attention"):
        mixed = (masked if shape.attention == "eager" else fused)(tape, shape, *_qkv(tape, shape, normed, bias))
        out = reduce(tape, shape, project(tape, shape, mixed, "o", shape.query, shape.hidden, bias=bias))
        out = dropout(tape, out, shape.dropout)
    with tape.part("residual stream"):
        x = add(tape, x, out)
    with tape.part("norms"):
        normed = layer_norm(tape, shape, x, bias=flag(shape.model, "norm_bias", True))
    with tape.part("feed-forward"):
        (read,) = gathers(tape, shape, normed, 1)
        inner = of_input(tape, project(tape, shape, read, "up", shape.hidden, shape.ffn, bias=bias))
        out = reduce(tape, shape, project(tape, shape, inner, "down", shape.ffn, shape.hidden, bias=bias))
        out = dropout(tape, out, shape.dropout)
    with tape.part("residual stream"):
        return add(tape, x, out)


def _qkv(tape: Tape, shape: Shape, x: Value, bias: bool) -> tuple[Value, Value, Value]:
    """Queries, keys and values from one matrix, or from three (``separate_qkv``; each gathers and casts anew)."""
    h, sizes = shape.hidden, (shape.query, shape.key, shape.key)
    if flag(shape.model, "separate_qkv"):
        reads = gathers(tape, shape, x, 3)
        q, k, v = (
            project(tape, shape, read, role, h, size, bias=bias)
            for read, role, size in zip(reads, "qkv", sizes, strict=True)
        )
        return q, k, v
    (read,) = gathers(tape, shape, x, 1)
    qkv = project(tape, shape, read, "qkv", h, sum(sizes), bias=bias)
    q, k, v = view(tape, qkv, *(shape.tokens * size for size in sizes))
    return q, k, v


def after(tape: Tape, shape: Shape, x: Value) -> Value:
    """The final LayerNorm."""
    return layer_norm(tape, shape, x, bias=flag(shape.model, "norm_bias", True))
