"""BERT and ViT as transformers 5.24 runs them: encoders with biases, post-norm and pre-norm."""

from __future__ import annotations

from ranktop.budget.activations.attention import core
from ranktop.budget.activations.family import Tables
from ranktop.budget.activations.gpt2 import feed_forward
from ranktop.budget.activations.layers import activation, embed, embed_indices, gathers, project, reduce
from ranktop.budget.activations.norms import layer_norm
from ranktop.budget.activations.operations import add, copy, dropout, linear, of_output, view
from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import INPUT, Tape, Value
from ranktop.budget.models.section import flag, size, word

POOLED = ("pretraining", "classifier", "none")
"""BERT's heads that read the first token alone."""


def before(tape: Tape, shape: Shape, tokens: Value) -> Value:
    """Word, type and position embeddings, LayerNorm, dropout; positions are a module buffer, types indices of [s]."""
    model = shape.model
    words = embed(tape, shape, tokens)
    kinds = embed_indices(tape, shape, size(model, "type_vocab", 2))
    learned = embed_indices(tape, shape, model.positions, INPUT)
    x = layer_norm(tape, shape, add(tape, add(tape, words, kinds), learned))
    return dropout(tape, x, float(model.options.get("embedding_dropout", shape.dropout)))


def block(tape: Tape, shape: Shape, x: Value, kind: str, tables: Tables) -> Value:
    """LN(x + attention(x)), then LN(x + W2 gelu(W1 x)).

    Kept per token, f = 4h, without dropout, in elements: x, q, k, v, attention's result, two sums and one LN between
    them, W1's result 4, gelu 4 = 16 h.
    """
    out = attention(tape, shape, x, bias=True)
    with tape.part("norms"):
        x = layer_norm(tape, shape, add(tape, dropout(tape, out, shape.dropout), x))
    out = feed_forward(tape, shape, x, word(shape.model, "activation", "gelu"))
    with tape.part("norms"):
        return layer_norm(tape, shape, add(tape, dropout(tape, out, shape.dropout), x))


def attention(tape: Tape, shape: Shape, x: Value, *, bias: bool, full: bool = False) -> Value:
    """Separate q, k and v, attention over the whole sequence without a mask, output projection."""
    with tape.part("attention"):
        reads = gathers(tape, shape, x, 3)
        sizes = (shape.query, shape.key, shape.key)
        q, k, v = (project(tape, shape, reads[i], "qkv"[i], shape.hidden, sizes[i], bias=bias) for i in range(3))
        mixed = core(tape, shape, q, k, v, full=full, mask=False)
        return reduce(tape, shape, project(tape, shape, mixed, "o", shape.query, shape.hidden, bias=True))


def after(tape: Tape, shape: Shape, x: Value) -> Value:
    """What the task's head reads: the masked words' transform, the pooler's first token, or all tokens."""
    model, h, w = shape.model, shape.hidden, shape.width
    head = word(model, "head", "mlm")
    if head in POOLED:
        first = view(tape, x, shape.batch * h)[0]
        return of_output(tape, linear(tape, first, h, h, w, trainable=shape.trainable))
    if head != "mlm":
        return x
    inner = activation(tape, linear(tape, x, h, h, w, trainable=shape.trainable), word(model, "activation", "gelu"))
    return layer_norm(tape, shape, inner)


def before_vit(tape: Tape, shape: Shape, tokens: Value) -> Value:
    """Patches of the picture by a convolution, which keeps the picture; class token and positions; dropout.

    ``tokens`` of [b, s] stand for the pictures; s = patches + 1.
    """
    model, w = shape.model, shape.width
    pixels = shape.batch * size(model, "channels", 3)
    for side in ("height", "width"):
        pixels *= size(model, f"image_{side}") or size(model, "image", 224)
    picture = tape.new(pixels, w, needs_grad=False, kind=INPUT)
    patches = tape.apply((picture,), shape.tokens * shape.hidden, w, (picture,), weight=1 if shape.trainable else 0)
    joined = copy(tape, patches)
    return dropout(tape, add(tape, joined, joined), float(model.options.get("embedding_dropout", shape.dropout)))


def block_vit(tape: Tape, shape: Shape, x: Value, kind: str, tables: Tables) -> Value:
    """x + attention(LN(x)), then x + W2 gelu(W1 LN(x)): 16 h elements per token, f = 4h."""
    with tape.part("norms"):
        normed = layer_norm(tape, shape, x)
    out = attention(tape, shape, normed, bias=flag(shape.model, "qkv_bias", True), full=True)
    with tape.part("residual stream"):
        x = add(tape, dropout(tape, out, shape.dropout), x)
    with tape.part("norms"):
        normed = layer_norm(tape, shape, x)
    out = feed_forward(tape, shape, normed, word(shape.model, "activation", "gelu"))
    with tape.part("residual stream"):
        return add(tape, dropout(tape, out, shape.dropout), x)


def after_vit(tape: Tape, shape: Shape, x: Value) -> Value:
    """The final LayerNorm; the classifier reads the class token of it, a view that keeps all tokens."""
    normed = layer_norm(tape, shape, x)
    return view(tape, normed, shape.batch * shape.hidden)[0]
