"""Operations of PyTorch on a tape, each with what its backward formula keeps (``derivatives.yaml``, torch 2.13)."""

from __future__ import annotations

from ranktop.budget.activations.tape import CAST, PARAMETER, Node, Tape, Value, rounded

FULL = 4
"""Bytes per element of float32."""


def cast(tape: Tape, x: Value, width: int) -> Value:
    """``x.to(dtype)``: a copy when the dtype differs, keeps nothing."""
    return x if x.width == width else tape.apply((x,), x.numel, width)


def lowered(tape: Tape, x: Value) -> Value:
    """Autocast's cast of an operand of a matrix product: a new copy at every use (only weights are cached)."""
    return x if tape.autocast is None else cast(tape, x, tape.autocast)


def raised(tape: Tape, x: Value) -> Value:
    """Autocast's cast to float32 for the operations of its fp32 list."""
    return x if tape.autocast is None else cast(tape, x, FULL)


def view(tape: Tape, x: Value, *numels: int) -> tuple[Value, ...]:
    """Views of one tensor (``split``, ``view``, ``transpose``); a split's backward makes one gradient of the whole."""
    parts = tuple(Value(x.storage, numel, x.width) for numel in numels)
    tape.record(Node((x,), parts, passes=len(parts) == 1))
    return parts


def copy(tape: Tape, x: Value) -> Value:
    """``contiguous()`` or a ``reshape`` that cannot be a view: keeps nothing; its gradient is a view."""
    out = tape.new(x.numel, x.width)
    tape.record(Node((x,), (out,), passes=True))
    return out


def linear(
    tape: Tape, x: Value, inner: int, outer: int, width: int, *, bias: bool = True, trainable: bool = True
) -> Value:
    """``F.linear``: keeps its input (for the weight's gradient) and its weight (for the input's).

    ``x`` of [.., inner], result [.., outer]; ``width`` = bytes per element of the stored weight. Under autocast both
    are low-precision copies: the input's is made anew, the weight's is cached and kept for backward.
    """
    x = lowered(tape, x)
    weight = _weight(tape, inner * outer, width, trainable)
    saves = [x] if trainable else []
    if x.needs_grad:
        saves.append(weight)
    numel = inner * outer + (outer if bias else 0)
    cast_down = weight.storage.kind == CAST
    return tape.apply(
        (x,),
        x.numel // inner * outer,
        x.width,
        saves,
        weight=numel * width if trainable else 0,
        low=numel * weight.width if trainable and cast_down else 0,
        bias_cast=rounded(outer * weight.width) if bias and cast_down else 0,
        product=True,
    )


def _weight(tape: Tape, numel: int, width: int, trainable: bool) -> Value:
    if tape.autocast is None or tape.autocast == width:
        return tape.new(numel, width, kind=PARAMETER, needs_grad=trainable)
    return tape.new(numel, tape.autocast, kind=CAST, needs_grad=trainable)


def embedding(tape: Tape, tokens: Value, rows: int, hidden: int, width: int, *, trainable: bool = True) -> Value:
    """``F.embedding``: keeps the indices; result [.., hidden] in the weight's dtype, also under autocast."""
    grads = rows * hidden * width if trainable else 0
    return tape.apply((tokens,), tokens.numel * hidden, width, (tokens,), weight=grads)


def add(tape: Tape, x: Value, y: Value) -> Value:
    """``x + y``: keeps nothing; the wider dtype wins (autocast's residual stream stays float32)."""
    out = tape.new(max(x.numel, y.numel), max(x.width, y.width))
    tape.record(Node((x, y), (out,), passes=True))
    return out


def multiply(tape: Tape, x: Value, y: Value) -> Value:
    """``x * y``: keeps each operand that the other's gradient needs."""
    saves = ([x] if y.needs_grad else []) + ([y] if x.needs_grad else [])
    return tape.apply((x, y), max(x.numel, y.numel), max(x.width, y.width), saves)


def scale(tape: Tape, x: Value) -> Value:
    """``x * number``: keeps nothing, makes a new tensor."""
    return tape.apply((x,), x.numel, x.width)


def of_input(tape: Tape, x: Value) -> Value:
    """``gelu``, ``silu``, ``pow``: keeps its input."""
    return tape.apply((x,), x.numel, x.width, (x,))


def of_output(tape: Tape, x: Value) -> Value:
    """``tanh``, ``relu``, ``rsqrt``, ``sigmoid``: keeps its result."""
    return tape.apply((x,), x.numel, x.width, saves_output=True)


def softmax(tape: Tape, x: Value) -> Value:
    """``softmax``: keeps its result; CUDA's autocast runs it in float32, the CPU's in the dtype that comes."""
    return of_output(tape, x if tape.host else raised(tape, x))


def dropout(tape: Tape, x: Value, p: float) -> Value:
    """``F.dropout``: CUDA's ``native_dropout`` keeps a mask of one byte; the CPU multiplies by noise in x's dtype."""
    if not p:
        return x
    mask = tape.new(x.numel, x.width if tape.host else 1, needs_grad=False)
    return tape.apply((x,), x.numel, x.width, (mask,))


def matmul(tape: Tape, x: Value, y: Value, numel: int, *, inside: bool = False) -> Value:
    """Batched ``x @ y`` of two activations: keeps both; ``inside`` of a composite, autocast casts nothing."""
    if not inside:
        x, y = lowered(tape, x), lowered(tape, y)
    saves = ([x] if y.needs_grad else []) + ([y] if x.needs_grad else [])
    return tape.apply((x, y), numel, x.width, saves)
