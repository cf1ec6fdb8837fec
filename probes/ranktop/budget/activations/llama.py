"""Decoders with rotary positions, RMSNorm and a gated MLP, as transformers 5.24 runs them eagerly."""

from __future__ import annotations

from ranktop.budget.activations.attention import core, windowed
from ranktop.budget.activations.experts import experts
from ranktop.budget.activations.family import Tables
from ranktop.budget.activations.layers import activation, embed, gathers, project, reduce
from ranktop.budget.activations.norms import plain_norm, rms_norm
from ranktop.budget.activations.operations import FULL, add, cast, multiply, scale, view
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import SHARED, Tape, Value
from ranktop.budget.model import Model
from ranktop.budget.models.section import dense_layers, flag, size, word


def before(tape: Tape, shape: Shape, tokens: Value) -> Value:
    """The token embedding; Gemma multiplies it by a buffer of one element."""
    x = embed(tape, shape, tokens)
    return scale(tape, x) if flag(shape.model, "embedding_scale") else x


def tables(tape: Tape, shape: Shape, x: Value, share: float = 1.0) -> Tables:
    """cos and sin of [1, s, d], shared by all blocks (Gemma 3 has two pairs).

    In the residual stream's dtype; OLMo's stay in float32, and what they turn is cast back.

    Checkpointed blocks keep their other arguments too: position indices, and for eager attention its additive mask of
    [b, 1, s, s] in the stream's dtype (fused attention gets none).
    """
    width = int(shape.head_dim * float(shape.model.options.get("rotary", share)))
    pairs = size(shape.model, "rotary_tables", 1)
    with tape.part("rotary tables"):
        own = FULL if word(shape.model, "model_type") in ("olmo", "olmo2") else x.width
        found = [tape.new(shape.sequence * width, own, needs_grad=False, kind=SHARED) for _ in range(2 * pairs)]
    return (*found, *arguments(tape, shape, x))


def arguments(tape: Tape, shape: Shape, x: Value, *, positions: bool = True) -> Tables:
    """What checkpointed blocks of transformers keep besides their input: positions of [s], eager attention's mask."""
    if not shape.checkpointed:
        return ()
    found = []
    with tape.part("positions and mask"):
        if positions:
            found.append(tape.new(shape.sequence, 8, needs_grad=False, kind=SHARED))
        if shape.attention == "eager":
            found.append(tape.new(shape.batch * shape.sequence**2, x.width, needs_grad=False, kind=SHARED))
        elif windowed(shape):
            found.append(tape.new(shape.sequence**2, 1, needs_grad=False, kind=SHARED))
    return tuple(found)


def kinds(model: Model) -> tuple[str, ...]:
    """``dense`` or ``experts`` for every block."""
    dense = dense_layers(model)
    return tuple("experts" if model.experts and i not in dense else "dense" for i in range(model.layers))


def block(tape: Tape, shape: Shape, x: Value, kind: str, tables: Tables) -> Value:
    """A Llama block: x + attention(norm(x)), then x + W3(silu(W1 norm(x)) * W2 norm(x)).

    Kept per token in bf16: 16 h (two RMSNorms: fp32 copy 4, normalized 2, result 2 each) + 4 a d (q, attention's
    result) + 4 k d (k, v) + 8 f (gate, silu, up, product) bytes; in fp32: 24 h + 8 a d + 8 k d + 16 f; plus 1/rms and
    logsumexp. Under autocast the stream is fp32 and every projection keeps a bf16 copy of its input of its own.
    """
    model = shape.model
    norms = word(model, "norms", "pre")
    read = x if norms == "post" else norm(tape, shape, x)
    with tape.part("attention"):
        out = _attention(tape, shape, read, tables)
    x = _onto(tape, shape, x, out, norms)
    read = x if norms == "post" else norm(tape, shape, x)
    with tape.part("feed-forward"):
        out = experts(tape, shape, read) if kind == "experts" else gated(tape, shape, read, shape.ffn)
    return _onto(tape, shape, x, out, norms)


def _onto(tape: Tape, shape: Shape, x: Value, out: Value, norms: str) -> Value:
    if norms in ("post", "both"):
        out = norm(tape, shape, out)
    with tape.part("residual stream"):
        return add(tape, x, out)


def norm(tape: Tape, shape: Shape, x: Value) -> Value:
    """The model's normalisation of the residual stream."""
    with tape.part("norms"):
        if word(shape.model, "norms", "pre") == "none":
            return plain_norm(tape, shape, x)
        return rms_norm(tape, shape, x, shape.hidden)


def after(tape: Tape, shape: Shape, x: Value) -> Value:
    """The final norm."""
    return norm(tape, shape, x)


def _attention(tape: Tape, shape: Shape, x: Value, tables: Tables) -> Value:
    model = shape.model
    q, k, v = _qkv(tape, shape, x)
    kind = word(model, "qk_norm")
    if kind:
        q = rms_norm(tape, shape, q, shape.head_dim if kind == "head" else shape.query)
        k = rms_norm(tape, shape, k, shape.head_dim if kind == "head" else shape.key)
    part, packed = float(model.options.get("rotary", 1.0)), word(model, "model_type") == "phi3"
    q, k = (rotate(tape, x, tables, part, joined=packed) for x in (q, k))
    mixed = core(tape, shape, q, k, v, packed=packed)
    return reduce(tape, shape, project(tape, shape, mixed, "o", shape.query, shape.hidden, bias=flag(model, "o_bias")))


def _qkv(tape: Tape, shape: Shape, x: Value) -> tuple[Value, Value, Value]:
    h, bias, sizes = shape.hidden, flag(shape.model, "qkv_bias"), (shape.query, shape.key, shape.key)
    if flag(shape.model, "fused"):
        (read,) = gathers(tape, shape, x, 1)
        fused = project(tape, shape, read, "qkv", h, sum(sizes), bias=bias)
        q, k, v = view(tape, fused, *(shape.tokens * one for one in sizes))
        return q, k, v
    reads = gathers(tape, shape, x, 3)
    q, k, v = (project(tape, shape, reads[i], "qkv"[i], h, sizes[i], bias=bias) for i in range(3))
    return q, k, v


def rotate(tape: Tape, x: Value, tables: Tables, part: float = 1.0, *, joined: bool = False) -> Value:
    """``x * cos + rotate_half(x) * sin``: keeps only the tables; the wider dtype wins (fp32 under autocast).

    Where only a part of each head turns, the rest is joined to it again by a copy (``joined``: always so).
    """
    cos, sin = tables[0], tables[1]
    turned = x
    if part < 1:
        turned = view(tape, x, int(x.numel * part))[0]
    half = scale(tape, turned)
    out = add(tape, multiply(tape, turned, cos), multiply(tape, half, sin))
    if part == 1 and not joined:
        return cast(tape, out, x.width) if cos.width > x.width and tape.autocast is None else out
    return tape.apply((x, out), x.numel, out.width)


def gated(tape: Tape, shape: Shape, x: Value, ffn: int) -> Value:
    """``W3(act(W1 x) * W2 x)``: keeps gate, activation, up and product, 4 f elements."""
    model = shape.model
    h, bias = shape.hidden, flag(model, "mlp_bias")
    if flag(model, "fused"):
        (read,) = gathers(tape, shape, x, 1)
        both = project(tape, shape, read, "gate_up", h, 2 * ffn, bias=bias)
        gate, up = view(tape, both, both.numel // 2, both.numel // 2)
    else:
        first, second = gathers(tape, shape, x, 2)
        gate = project(tape, shape, first, "gate", h, ffn, bias=bias)
        up = project(tape, shape, second, "up", h, ffn, bias=bias)
    inner = multiply(tape, activation(tape, gate, word(model, "activation", "silu")), up)
    return reduce(tape, shape, project(tape, shape, inner, "down", ffn, h, bias=bias))
