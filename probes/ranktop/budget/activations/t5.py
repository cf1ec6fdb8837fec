"""T5 as transformers 5.24 runs it: an encoder and a decoder with learned biases on attention's scores."""

from __future__ import annotations

from ranktop.budget.activations.attention import added, fused, written_out
from ranktop.budget.activations.family import Tables
from ranktop.budget.activations.layers import activation, embed, project
from ranktop.budget.activations.llama import arguments
from ranktop.budget.activations.operations import (
    FULL,
    add,
    cast,
    dropout,
    multiply,
    of_input,
    of_output,
    scale,
)
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import PARAMETER, SHARED, Tape, Value
from ranktop.budget.model import Model
from ranktop.budget.models.section import flag, word
from ranktop.budget.models.t5 import decoder_layers


def before(tape: Tape, shape: Shape, tokens: Value) -> Value:
    """The encoder's token embedding with its dropout; the decoder's of as many tokens is counted with the tables."""
    return dropout(tape, embed(tape, shape, tokens), shape.dropout)


def tables(tape: Tape, shape: Shape, x: Value) -> Tables:
    """What stands between the stacks and belongs to no block.

    The encoder's result, which every decoder block reads; its final norm (8 B per element in any precision, and 1/rms)
    and both stacks' dropout; the decoder's tokens; bucket indices of [s, s] for each stack; for fused attention the
    decoder's causal masks and a bias of zeros of [1, a, s, s] between the stacks. Checkpointed blocks keep their
    arguments: the learned biases of [1, a, s, s], eager attention's mask.
    """
    with tape.part("encoder's result"):
        states = tape.new(x.numel, x.width, kind=SHARED)
        found = [_shared(tape, 8 * x.numel), _shared(tape, FULL * shape.tokens), _shared(tape, 8 * shape.tokens)]
        if shape.dropout:
            found += [_shared(tape, x.numel * (x.width if tape.host else 1)) for _ in range(2)]
    with tape.part("attention biases"):
        found += [_shared(tape, 8 * shape.sequence**2) for _ in range(2)]
        if shape.attention != "eager":
            found.append(_shared(tape, shape.sequence**2 * (0 if shape.checkpointed else decoder_layers(shape.model))))
            found.append(_shared(tape, shape.heads * shape.sequence**2 * (tape.autocast or shape.width)))
        if shape.checkpointed:
            biases = 2 if shape.attention == "eager" else 1
            found += [_shared(tape, shape.heads * shape.sequence**2 * shape.width) for _ in range(biases)]
    return (states, *found, *arguments(tape, shape, x, positions=False))


def _shared(tape: Tape, size: int) -> Value:
    return tape.new(size, 1, needs_grad=False, kind=SHARED)


def kinds(model: Model) -> tuple[str, ...]:
    """Encoder blocks, then decoder blocks."""
    return ("encoder",) * model.layers + ("decoder",) * decoder_layers(model)


def block(tape: Tape, shape: Shape, x: Value, kind: str, tables: Tables) -> Value:
    """Self-attention, in the decoder attention to the encoder's result, feed-forward; each behind a norm.

    Sequences of encoder and decoder are taken to be of the same length.
    """
    decoder = kind == "decoder"
    normed = norm(tape, shape, x)
    x = _onto(tape, shape, x, _attention(tape, shape, normed, normed, causal=decoder))
    if decoder:
        normed = norm(tape, shape, x)
        x = _onto(tape, shape, x, _attention(tape, shape, normed, tables[0], causal=False, learned=False))
    return _onto(tape, shape, x, _feed_forward(tape, shape, norm(tape, shape, x)))


def _onto(tape: Tape, shape: Shape, x: Value, out: Value) -> Value:
    with tape.part("residual stream"):
        return add(tape, x, dropout(tape, out, shape.dropout))


def norm(tape: Tape, shape: Shape, x: Value) -> Value:
    """``T5LayerNorm``: like Llama's, but the 16-bit x is kept beside its fp32 copy."""
    with tape.part("norms"):
        squares = of_input(tape, cast(tape, x, FULL))
        inverse = of_output(tape, tape.apply((squares,), x.numel // shape.hidden, FULL))
        normalized = cast(tape, multiply(tape, x, inverse), shape.width)
        weight = tape.new(shape.hidden, shape.width, kind=PARAMETER, needs_grad=shape.trainable)
        saves = (normalized, weight) if shape.trainable else (weight,)
        return tape.apply((normalized,), x.numel, normalized.width, saves, weight=shape.hidden * shape.width)


def _attention(tape: Tape, shape: Shape, x: Value, source: Value, *, causal: bool, learned: bool = True) -> Value:
    with tape.part("attention"):
        h = shape.hidden
        q = project(tape, shape, x, "q", h, shape.query)
        k = project(tape, shape, source, "k", h, shape.key)
        v = project(tape, shape, source, "v", h, shape.key)
        if shape.attention == "eager":
            mixed = added(tape, shape, q, k, v, full=False, mask=learned or causal, back=False)
        elif tape.host and learned:
            mixed = written_out(tape, shape, q, k, v)
        else:
            mixed = fused(tape, shape, q, k, v)
            if learned and not tape.host:
                _bias(tape, shape, mixed)
        return project(tape, shape, mixed, "o", shape.query, h)


def _bias(tape: Tape, shape: Shape, mixed: Value) -> None:
    """CUDA's memory-efficient kernel keeps the bias of [1, a, s, s], copied in every block."""
    bias = tape.new(shape.heads * shape.sequence**2, shape.width, needs_grad=False)
    tape.nodes[-1].saved = (*tape.nodes[-1].saved, bias)


def _feed_forward(tape: Tape, shape: Shape, x: Value) -> Value:
    """Two matrices around ReLU, or the gated form with three; dropout between them; the last in its weight's dtype."""
    with tape.part("feed-forward"):
        h, model = shape.hidden, shape.model
        act = word(model, "activation", "relu")
        act = "gelu_new" if act == "gelu" and flag(model, "gated") else act
        if flag(model, "gated"):
            gate = activation(tape, project(tape, shape, x, "gate", h, shape.ffn), act)
            inner = multiply(tape, gate, project(tape, shape, x, "up", h, shape.ffn))
        else:
            inner = activation(tape, project(tape, shape, x, "up", h, shape.ffn), act)
        inner = cast(tape, dropout(tape, inner, shape.dropout), shape.width)
        return project(tape, shape, inner, "down", shape.ffn, h)


def after(tape: Tape, shape: Shape, x: Value) -> Value:
    """The final norms of both stacks with their dropout; a tied head reads the decoder's divided by sqrt(h)."""
    out = dropout(tape, norm(tape, shape, x), shape.dropout)
    return scale(tape, out) if shape.model.tied else out
