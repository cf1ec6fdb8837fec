"""The core of attention on a tape: from queries, keys and values to their mix."""

from __future__ import annotations

from ranktop.budget.activations.operations import FULL, cast, copy, dropout, lowered, matmul, of_output, scale, softmax
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import Node, Tape, Value
from ranktop.budget.models.section import size, word


def fused(tape: Tape, shape: Shape, q: Value, k: Value, v: Value, *, packed: bool = False) -> Value:
    """``scaled_dot_product_attention`` as flash kernels run it: keeps q, k, v, its result and the logsumexp.

    q and result of [b, s, a d], k and v of [b, s, k d] (grouped queries stay unexpanded: transformers passes
    ``enable_gqa`` where there is no mask and d <= 256), logsumexp of [b, a, s] in float32; nothing of s x s. The CPU's
    kernel has no dropout: there the operation is written out. The result is laid out as the queries are: where
    those lie ``packed``, head by head, the projection reads a copy, and both are kept.
    """
    if tape.host and shape.attention_dropout:
        return written_out(tape, shape, q, k, v)
    q, k, v = lowered(tape, q), lowered(tape, k), lowered(tape, v)
    logsumexp = tape.new(shape.batch * shape.heads * shape.sequence, FULL, needs_grad=False)
    out = tape.new(q.numel, q.width)
    tape.record(Node((q, k, v), (out,), (q, k, v, out, logsumexp), product=True, extra=(logsumexp,)))
    return copy(tape, out) if packed else out


def core(
    tape: Tape,
    shape: Shape,
    q: Value,
    k: Value,
    v: Value,
    *,
    full: bool = True,
    mask: bool = True,
    packed: bool = False,
) -> Value:
    """Attention as transformers runs it: eager, or fused; with the key/value cache where the model fills one.

    ``use_cache`` (the config's default; Trainer and checkpointing switch it off) joins keys and values into copies,
    which attention reads; they live as long as the output object. ``full``: eager softmax in float32; ``mask``: eager
    attention adds one; ``packed``: queries lie head by head, not token by token.
    """
    if shape.cache:
        k, v = copy(tape, k), copy(tape, v)
        tape.hold(k, v)
    if shape.attention == "eager":
        return added(tape, shape, q, k, v, full=full, mask=mask)
    if windowed(shape):
        return _windowed(tape, shape, q, k, v)
    return fused(tape, shape, q, k, v, packed=packed)


def windowed(shape: Shape) -> bool:
    """Whether fused attention needs a mask because the sequence exceeds a sliding window (FlashAttention does not).

    Models that mix windowed and full attention are taken to be windowed in every block.
    """
    window = size(shape.model, "window")
    return bool(window) and shape.sequence >= window and shape.attention == "sdpa"


def _windowed(tape: Tape, shape: Shape, q: Value, k: Value, v: Value) -> Value:
    """Fused attention over a sliding window that the sequence exceeds: it needs a mask.

    With one, transformers expands keys and values to all query heads, and torch turns the boolean mask of
    [b, 1, s, s] into one of q's dtype in every block, which is kept.
    """
    out = fused(tape, shape, q, _expanded(tape, shape, k), _expanded(tape, shape, v))
    mask = tape.new(shape.batch * shape.sequence**2, out.width, needs_grad=False)
    tape.nodes[-1].saved = (*tape.nodes[-1].saved, mask)
    return out


def written_out(tape: Tape, shape: Shape, q: Value, k: Value, v: Value) -> Value:
    """``_scaled_dot_product_attention_math``, in float32: q and k scaled into copies, softmax and dropout of s x s."""
    own = lowered(tape, q).width
    q, k, v = (cast(tape, lowered(tape, x), FULL) for x in (q, k, v))
    scores = shape.batch * shape.heads * shape.sequence**2
    weights = matmul(tape, scale(tape, q), scale(tape, k), scores, inside=True)
    weights = dropout(tape, softmax(tape, weights), shape.attention_dropout)
    # Values that a cache has joined lie as the product reads them.
    v = v if shape.cache else copy(tape, v)
    return cast(tape, copy(tape, matmul(tape, weights, v, q.numel, inside=True)), own)


def masked(tape: Tape, shape: Shape, q: Value, k: Value, v: Value) -> Value:
    """``softmax(q k^T / sqrt(d) + mask) v`` in single operations, mask rebuilt in every block (nanoGPT).

    Keeps copies of q, k, v for the batched products, the softmax of [b, a, s, s], a mask of [s, s] bytes, with
    dropout its mask and its result, and the result made contiguous.
    """
    scores = shape.batch * shape.heads * shape.sequence**2
    q, k, v = copy(tape, q), copy(tape, k), copy(tape, v)
    weights = scale(tape, matmul(tape, q, k, scores))
    mask = tape.new(shape.sequence**2, 1, needs_grad=False)
    weights = tape.apply((weights,), scores, weights.width, (mask,))
    weights = dropout(tape, softmax(tape, weights), shape.dropout)
    return copy(tape, matmul(tape, weights, v, q.numel))


def added(
    tape: Tape, shape: Shape, q: Value, k: Value, v: Value, *, full: bool = True, mask: bool = True, back: bool = True
) -> Value:
    """Eager attention of transformers: an additive mask made once, softmax in float32 and cast back.

    Keeps copies of q, k and v (k and v expanded to all query heads), the softmax of [b, a, s, s] in float32
    (``full``), its cast in q's dtype (``back``), and the result made contiguous: 6 as/h in bf16, 4 as/h in
    fp32, per sbh.
    Source: transformers 5.24 modeling_llama.py ``eager_attention_forward``.
    """
    scores = shape.batch * shape.heads * shape.sequence**2
    own = q.width
    q, k, v = copy(tape, q), _expanded(tape, shape, k), _expanded(tape, shape, v)
    weights = scale(tape, matmul(tape, q, k, scores))
    if word(shape.model, "model_type") == "gemma2":
        weights = scale(tape, of_output(tape, scale(tape, weights)))
    if mask:
        # The mask is in the stream's dtype: under autocast the sum is in float32.
        weights = tape.apply((weights,), scores, max(weights.width, shape.width))
    weights = softmax(tape, cast(tape, weights, FULL) if full else weights)
    if back:
        weights = cast(tape, weights, own if full else v.width)
    weights = dropout(tape, weights, shape.attention_dropout)
    return copy(tape, matmul(tape, weights, v, q.numel))


def _expanded(tape: Tape, shape: Shape, x: Value) -> Value:
    times = shape.heads // shape.kv_heads
    if times == 1:
        return x if shape.cache else copy(tape, x)
    return tape.apply((x,), x.numel * times, x.width)
