"""GPT-2 and GPT-NeoX as transformers 5.24 runs them: LayerNorm, fused qkv, an MLP without a gate."""

from __future__ import annotations

from ranktop.budget.activations.attention import core
from ranktop.budget.activations.family import Tables
from ranktop.budget.activations.layers import activation, embed, embed_indices, gathers, project, reduce
from ranktop.budget.activations.llama import rotate
from ranktop.budget.activations.norms import layer_norm
from ranktop.budget.activations.operations import add, dropout, view
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import Tape, Value
from ranktop.budget.models.section import flag, word


def before(tape: Tape, shape: Shape, tokens: Value) -> Value:
    """GPT-NeoX: the token embedding alone, with its dropout."""
    return dropout(tape, embed(tape, shape, tokens), _embedding_dropout(shape))


def before_gpt2(tape: Tape, shape: Shape, tokens: Value) -> Value:
    """Token and position embeddings with their dropout; positions are indices of [s]."""
    learned = embed_indices(tape, shape, shape.model.positions)
    return dropout(tape, add(tape, embed(tape, shape, tokens), learned), _embedding_dropout(shape))


def _embedding_dropout(shape: Shape) -> float:
    return float(shape.model.options.get("embedding_dropout", shape.dropout))


def block_gpt2(tape: Tape, shape: Shape, x: Value, kind: str, tables: Tables) -> Value:
    """x + attention(LN(x)), then x + W2 gelu(W1 LN(x)), with ``gelu_new`` written out.

    Kept per token, f = 4h, without dropout: 28 h elements (the eager activation keeps three more of 4h than a fused
    one), and with the key/value cache under fused attention 2 h more: q still needs the whole qkv.
    """
    with tape.part("norms"):
        normed = layer_norm(tape, shape, x)
    out = attention(tape, shape, normed, (), full=False)
    with tape.part("residual stream"):
        x = add(tape, x, dropout(tape, out, shape.dropout))
    with tape.part("norms"):
        normed = layer_norm(tape, shape, x)
    out = feed_forward(tape, shape, normed, word(shape.model, "activation", "gelu_new"))
    with tape.part("residual stream"):
        return add(tape, x, dropout(tape, out, shape.dropout))


def block_neox(tape: Tape, shape: Shape, x: Value, kind: str, tables: Tables) -> Value:
    """x + attention(LN(x)) + MLP(LN'(x)) side by side, or one behind the other (``parallel`` False).

    Kept per token, f = 4h, in elements: x, LN, q, k, v (qkv's whole for v as well where no cache copies it), result,
    LN, W1's result 4, gelu 4.
    """
    with tape.part("norms"):
        normed = layer_norm(tape, shape, x)
    out = dropout(tape, attention(tape, shape, normed, tables, bias=flag(shape.model, "bias", True)), shape.dropout)
    beside = flag(shape.model, "parallel", True)
    stream = x
    if not beside:
        with tape.part("residual stream"):
            stream = add(tape, out, x)
    with tape.part("norms"):
        normed = layer_norm(tape, shape, stream)
    inner = feed_forward(tape, shape, normed, word(shape.model, "activation", "gelu"))
    inner = dropout(tape, inner, shape.dropout)
    with tape.part("residual stream"):
        return add(tape, add(tape, inner, out), x) if beside else add(tape, inner, stream)


def attention(tape: Tape, shape: Shape, x: Value, tables: Tables, *, bias: bool = True, full: bool = True) -> Value:
    """Fused qkv, rotary positions where there are tables, attention, output projection."""
    with tape.part("attention"):
        (read,) = gathers(tape, shape, x, 1)
        qkv = project(tape, shape, read, "qkv", shape.hidden, shape.query + 2 * shape.key, bias=bias)
        rows = shape.tokens
        q, k, v = view(tape, qkv, rows * shape.query, rows * shape.key, rows * shape.key)
        if tables:
            part = float(shape.model.options.get("rotary", 0.25))
            q, k = rotate(tape, q, tables, part, joined=True), rotate(tape, k, tables, part, joined=True)
        mixed = core(tape, shape, q, k, v, full=full, packed=bool(tables))
        return reduce(tape, shape, project(tape, shape, mixed, "o", shape.query, shape.hidden, bias=bias))


def feed_forward(tape: Tape, shape: Shape, x: Value, act: str) -> Value:
    """``W2 act(W1 x)`` with biases."""
    with tape.part("feed-forward"):
        (read,) = gathers(tape, shape, x, 1)
        inner = activation(tape, project(tape, shape, read, "up", shape.hidden, shape.ffn, bias=True), act)
        return reduce(tape, shape, project(tape, shape, inner, "down", shape.ffn, shape.hidden, bias=True))


def after(tape: Tape, shape: Shape, x: Value) -> Value:
    """The final LayerNorm."""
    return layer_norm(tape, shape, x)
