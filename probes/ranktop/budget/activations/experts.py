"""Mixture of experts on a tape: router, tokens sorted by expert, grouped matrix products."""

from __future__ import annotations

from ranktop.budget.activations.layers import activation, project
from ranktop.budget.activations.operations import (
    FULL,
    add,
    cast,
    linear,
    lowered,
    multiply,
    of_output,
    view,
)
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import PARAMETER, Node, Tape, Value
from ranktop.budget.models.section import size, word

INDEX = 8
"""Bytes of an index (int64)."""


def experts(tape: Tape, shape: Shape, x: Value) -> Value:
    """Routed experts, and the shared one where there is one.

    Kept for k experts per token, S = k tokens: the chosen rows of [S, h], gate and up of [S, 2f], the activation and
    the product of [S, f] each, the result of [S, h]; router probabilities in fp32 and indices. Every choice is
    computed (nothing is dropped), so the sum does not depend on how evenly the router spreads; with expert parallel
    it does (an even spread is assumed). Source: transformers 5.24 integrations/moe.py ``grouped_mm_experts_forward``.
    """
    model = shape.model
    out = _routed(tape, shape, x)
    shared = size(model, "shared_ffn")
    if shared:
        out = add(tape, out, _shared(tape, shape, x, -(-shared // shape.tensor)))
    return out


def _routed(tape: Tape, shape: Shape, x: Value) -> Value:
    model, width = shape.model, shape.width
    tokens, chosen = shape.tokens, shape.tokens * model.experts_per_token
    ffn = -(-(size(model, "expert_ffn") or model.ffn) // shape.tensor)
    weights = _router(tape, shape, x)
    index = tape.new(chosen, INDEX, needs_grad=False)
    order = tape.new(chosen, INDEX, needs_grad=False)
    rows = tape.apply((x,), chosen * shape.hidden, x.width, (index,))
    both = _grouped(tape, shape, rows, shape.hidden, 2 * ffn, width)
    gate, up = view(tape, both, chosen * ffn, chosen * ffn)
    inner = multiply(tape, activation(tape, gate, word(model, "activation", "silu")), up)
    out = _grouped(tape, shape, inner, ffn, shape.hidden, width)
    sorted_weights = tape.apply((weights,), chosen, weights.width, (order,))
    weighted = multiply(tape, out, sorted_weights)
    inverse = tape.new(chosen, INDEX, needs_grad=False)
    restored = tape.apply((weighted,), weighted.numel, weighted.width, (inverse,))
    return cast(tape, tape.apply((restored,), tokens * shape.hidden, restored.width), x.width)


def _router(tape: Tape, shape: Shape, x: Value) -> Value:
    """Probabilities over the experts in fp32; the chosen ones divided by their sum."""
    model, tokens = shape.model, shape.tokens
    logits = linear(tape, x, shape.hidden, model.experts, shape.width, bias=False, trainable=shape.trainable)
    probabilities = of_output(tape, cast(tape, logits, FULL))
    index = tape.new(tokens * model.experts_per_token, INDEX, needs_grad=False)
    chosen = tape.apply((probabilities,), tokens * model.experts_per_token, FULL, (index,))
    total = tape.apply((chosen,), tokens, FULL)
    return tape.apply((chosen, total), chosen.numel, FULL, (chosen, total))


def _grouped(tape: Tape, shape: Shape, x: Value, inner: int, outer: int, width: int) -> Value:
    """One matrix product per expert over rows sorted by expert: keeps its input.

    Lists of selective checkpointing name ``mm`` and ``addmm``, not the grouped product: it is recomputed.
    """
    x = lowered(tape, x)
    own = shape.model.experts // shape.experts * inner * outer
    weight = tape.new(own, width, kind=PARAMETER, needs_grad=shape.trainable)
    saves = ((x,) if shape.trainable else ()) + ((weight,) if x.needs_grad else ())
    out = tape.new(x.numel // inner * outer, x.width)
    tape.record(Node((x,), (out,), saves, weight=own * width if shape.trainable else 0))
    return out


def _shared(tape: Tape, shape: Shape, x: Value, ffn: int) -> Value:
    """Qwen2-MoE's shared expert behind a sigmoid gate of [tokens, 1]."""
    model, h = shape.model, shape.hidden
    gate = project(tape, shape, x, "gate", h, ffn)
    up = project(tape, shape, x, "up", h, ffn)
    inner = multiply(tape, activation(tape, gate, word(model, "activation", "silu")), up)
    out = project(tape, shape, inner, "down", ffn, h)
    switch = of_output(tape, project(tape, shape, x, "shared_gate", h, 1))
    return multiply(tape, switch, out)
