"""Blocks of the GPT shape: LayerNorm before fused or separate projections, one GELU."""

from __future__ import annotations

from ranktop.budget.activations.attention import eager, fused
from ranktop.budget.activations.operations import add, dropout, layer_norm, linear, of_input, view
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import Tape, Value


def block(tape: Tape, shape: Shape, x: Value, *, attention: str, bias: bool) -> Value:
    """A block of the reference GPT (nanoGPT's layout): x + attention(LN(x)), then x + W2 gelu(W1 LN(x)).

    Kept per token, in elements of the compute dtype, f = 4h and a d = h, without dropout: x, LN, qkv 3, attention's
    result, the sum, LN, W1's result 4, gelu 4 = 16 h; plus statistics and logsumexp (counted with 512-byte blocks,
    equal to MemTracker's reading to the byte).
    """
    h, w = shape.hidden, shape.width
    with tape.part("norms"):
        normed = layer_norm(tape, x, h, w, bias=True)
    with tape.part("attention"):
        qkv = linear(tape, normed, h, shape.query + 2 * shape.key, w, bias=bias)
        rows = shape.tokens
        q, k, v = view(tape, qkv, rows * shape.query, rows * shape.key, rows * shape.key)
        mixed = (eager if attention == "eager" else fused)(tape, shape, q, k, v)
        out = dropout(tape, linear(tape, mixed, shape.query, h, w, bias=bias), shape.dropout)
    with tape.part("residual stream"):
        x = add(tape, x, out)
    with tape.part("norms"):
        normed = layer_norm(tape, x, h, w, bias=True)
    with tape.part("feed-forward"):
        inner = of_input(tape, linear(tape, normed, h, shape.ffn, w, bias=bias))
        out = dropout(tape, linear(tape, inner, shape.ffn, h, w, bias=bias), shape.dropout)
    with tape.part("residual stream"):
        return add(tape, x, out)
