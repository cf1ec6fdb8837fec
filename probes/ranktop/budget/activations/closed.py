"""Closed forms of what forward leaves for backward: the fallback where a model was neither traced nor measured."""

from __future__ import annotations

from ranktop.budget.activations import checkpointing, gpt, loss
from ranktop.budget.activations.operations import add, dropout, embedding, layer_norm, linear
from ranktop.budget.activations.saved import Activations
from ranktop.budget.activations.shape import Shape, local
from ranktop.budget.activations.tape import ACTIVATION, CAST, INPUT, Storage, Tape, Value, rounded, total
from ranktop.budget.model import Model, NoRule
from ranktop.budget.plan import Plan
from ranktop.budget.terms import DTYPE_BYTES, Part


def activations(model: Model, plan: Plan) -> Activations:
    """Return the activations of one micro-batch on the rank that ``plan.layout`` names; NoRule without a rule."""
    if plan.stack == "megatron":
        from ranktop.budget.activations import megatron  # type: ignore[attr-defined,unused-ignore]

        return megatron.activations(model, plan)  # type: ignore[no-any-return,unused-ignore]
    if model.family != "gpt":
        raise NoRule(f"no closed form for the activations of the family '{model.family}'")
    return _gpt(model, plan)


def _tape(plan: Plan) -> Tape:
    low = plan.precision.autocast
    return Tape(autocast=DTYPE_BYTES[low] if low else None, host=plan.host)


def _gpt(model: Model, plan: Plan) -> Activations:
    shape = local(model, plan)
    bias = bool(model.options.get("bias", True))
    before, tokens, x0 = _embedding(model, shape, plan)
    tape = _tape(plan)
    x = tape.new(x0.numel, x0.width)
    y = gpt.block(tape, shape, x, attention=plan.attention, bias=bias)
    after = _tape(plan)
    last = Value(Storage(y.numel * y.width, part="residual stream"), y.numel, y.width)
    with after.part("norms"):
        normed = layer_norm(after, last, shape.hidden, shape.width)
    head = _tape(plan)
    with head.part("logits"):
        logits = linear(head, normed, shape.hidden, shape.vocab, shape.width, bias=False)
        peak, held = loss.cross_entropy(head, logits, plan.loss)
    mode = plan.checkpointing or "none"
    stay = checkpointing.kept(tape, x, mode)
    layer = total(tape.saved(), ACTIVATION)
    blocks = model.layers * total(stay, ACTIVATION)
    casts = model.layers * (total(stay, CAST)) + total(head.saved(), CAST)
    head_saved = {**head.saved(), **{v.storage: None for v in held}}
    outside = total({**before.saved(), **after.saved()}, ACTIVATION)
    if normed.storage in head_saved:
        outside += normed.storage.size
        del head_saved[normed.storage]
    logits_bytes = total(head_saved, ACTIVATION)
    inputs = 2 * tokens.storage.size
    return Activations(
        layers=model.layers,
        layer=layer,
        blocks=blocks,
        recomputed=0 if mode == "none" else checkpointing.recomputed(tape, stay),
        outside=outside,
        logits=logits_bytes,
        inputs=inputs,
        casts=casts,
        loss_forward=peak.forward,
        loss_backward=peak.backward,
        block_backward=2 * rounded(shape.tokens * shape.ffn * shape.width),
        boundary=y.size,
        within=0.01,
        rule="autograd's saved tensors, operation by operation (derivatives.yaml), reference GPT",
        parts=(
            Part("blocks", blocks),
            Part("outside", outside),
            Part("logits and loss", logits_bytes),
            Part("tokens and labels", inputs),
            Part("cached casts of weights", casts),
        ),
    )


def _embedding(model: Model, shape: Shape, plan: Plan) -> tuple[Tape, Value, Value]:
    tape = _tape(plan)
    with tape.part("embedding"):
        tokens = tape.new(shape.tokens, 8, needs_grad=False, kind=INPUT)
        x = embedding(tape, tokens, shape.vocab, shape.hidden, shape.width)
        places = tape.new(shape.sequence, 8, needs_grad=False)
        x = add(tape, x, embedding(tape, places, model.positions, shape.hidden, shape.width))
        x = dropout(tape, x, shape.dropout)
    return tape, tokens, x
