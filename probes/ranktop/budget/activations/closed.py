"""Closed forms of what forward leaves for backward: the fallback where a model was neither traced nor measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ranktop.budget import context
from ranktop.budget.activations import families, loss
from ranktop.budget.activations.checkpointing import Block, block
from ranktop.budget.activations.family import Family, Tables
from ranktop.budget.activations.liveness import Point, backward, frontier
from ranktop.budget.activations.saved import Activations
from ranktop.budget.activations.shape import Shape, local
from ranktop.budget.activations.tape import ACTIVATION, CAST, INPUT, SHARED, Storage, Tape, Value, rounded, total
from ranktop.budget.model import Model
from ranktop.budget.models.stages import stage_layers
from ranktop.budget.pipeline import alive, ends
from ranktop.budget.plan import Plan
from ranktop.budget.terms import DTYPE_BYTES, Part

Found = TypeVar("Found")

_CACHE: Final = "key/value cache of the output object"
_HELD: Final = "logits of the output object"
_INPUTS: Final = "tokens and labels"
_LOSS: Final = "logits and loss"
_CASTS: Final = "low-precision copies of weights (autocast)"

_COMPILED: Final = 0.25
"""torch.compile fuses and recomputes pointwise operations: 5 to 25 % less than the modules keep (torchtitan's runs)."""

_ROUTED: Final = 0.2
"""Routers do not spread evenly, and stacks differ in how they run experts (transformers' own: within 0.2 %)."""


def activations(model: Model, plan: Plan, known: dict[Hashable, Any] | None = None) -> Activations:
    """Return the activations of one micro-batch on the rank that ``plan.layout`` names; NoRule without a rule.

    Every operation of a block is written on a tape with what its backward formula keeps; tensors are counted once,
    in blocks of 512 bytes. Equal to MemTracker's reading to the byte for the families gpt and llama. ``known``: what
    other stages of the same pipeline have worked out, and left for this one.
    """
    if plan.stack == "megatron":
        from ranktop.budget.activations import megatron  # type: ignore[attr-defined,unused-ignore]

        return megatron.activations(model, plan)  # type: ignore[no-any-return,unused-ignore]
    family = families.find(model.family)
    return _Rank(family, local(model, plan), plan, {} if known is None else known).activations()


@dataclass(frozen=True, slots=True)
class _Front:
    """Embedding: what it keeps, its output, and the tables that all blocks read."""

    saved: dict[Storage, None]
    shared: dict[Storage, None]
    """Of these the tables."""
    x: Value
    tokens: Value
    tables: Tables


@dataclass(frozen=True, slots=True)
class _End:
    """Final norm, head and loss."""

    after: dict[Storage, None] = field(default_factory=dict)
    head: dict[Storage, None] = field(default_factory=dict)
    held: dict[Storage, None] = field(default_factory=dict)
    """What only the script's own objects keep."""
    temporaries: int = 0
    points: tuple[Point, ...] = ()


class _Rank:
    """Puts the pieces of a rank together: embedding, blocks, head with the loss."""

    def __init__(self, family: Family, shape: Shape, plan: Plan, known: dict[Hashable, Any]) -> None:
        self.family = family
        self.known = known
        self.shape = shape
        self.plan = plan
        self.mode = plan.checkpointing or "none"
        self.kinds = family.kinds(shape.model)
        low = plan.precision.autocast
        self.autocast = DTYPE_BYTES[low] if low else None

    def tape(self) -> Tape:
        return Tape(autocast=self.autocast, host=self.plan.host)

    def activations(self) -> Activations:
        """Return the sum over the rank's chunk of the model."""
        shape, plan = self.shape, self.plan
        layers = stage_layers(len(self.kinds), plan)[0]
        first, last = ends(plan)
        whole = self.once("front", self.front)
        front = whole if first else _Front(whole.shared, whole.shared, whole.x, whole.tokens, whole.tables)
        pieces = self.pieces(front, layers)
        end = self.once("end", lambda: self.end(front.x)) if last else _End()
        largest = max((one for one, _ in pieces), key=lambda one: one.layer)
        every = min(max(1, plan.checkpoint_every), len(layers)) if self.mode == "full" else 1
        kept = sum(one.kept * count for one, count in pieces)
        if every > 1:
            kept = -(-len(layers) // every) * largest.kept
        cache = sum(one.held * count for one, count in pieces)
        cached = sum(one.cached * count for one, count in pieces)
        casts = sum(one.casts * count for one, count in pieces) + total(end.head, CAST)
        after, logits, held = (total(some, ACTIVATION) for some in (end.after, end.head, end.held))
        outside = total(front.saved, ACTIVATION, SHARED) + after + cache + held
        flight, inputs = alive(plan), 2 * front.tokens.storage.size
        points = _with_buffers(_segment(largest, every), shape, plan)
        names = self.names(pieces, front, end, kept) + Counter({_CACHE: cache, _HELD: held, _INPUTS: inputs})
        parts = Counter({name: flight * size for name, size in names.items()}) + Counter({_LOSS: logits, _CASTS: casts})
        return Activations(
            layers=len(layers),
            layer=largest.layer,
            blocks=kept,
            recomputed=0 if self.mode == "none" else largest.recomputed + (every - 1) * largest.layer,
            outside=outside,
            logits=logits,
            inputs=inputs,
            casts=casts,
            loss_forward=end.temporaries + cached,
            loss_backward=_above(end.points, after + logits),
            block_backward=_above(points, (largest.layer + largest.casts) * every),
            boundary=front.x.size,
            in_flight=flight,
            within=self.within(),
            rule=f"autograd's saved tensors, operation by operation: {self.family.rule}",
            parts=tuple(Part(name, size) for name, size in parts.items()),
            after=after,
            backward=points,
            block_forward=largest.forward + cached,
            cached=cached,
            casts_inside=True,
            tied=self.tied() if first and last else 0,
        )

    def tied(self) -> int:
        """Return the bytes of the gradient of a weight that embedding and head share on this rank."""
        shape = self.shape
        if not (shape.model.tied and shape.trainable and self.family.columns(shape.model)):
            return 0
        return rounded(-(-self.family.columns(shape.model) // shape.tensor) * shape.hidden * shape.width)

    def within(self) -> float:
        """Return the family's error, or a larger one for what the tests cannot measure."""
        unsure = [self.family.within]
        if self.plan.compiled:
            unsure.append(_COMPILED)
        if self.shape.model.experts:
            unsure.append(_ROUTED)
        return max(unsure)

    def pieces(self, front: _Front, layers: range) -> list[tuple[Block, int]]:
        """Return the blocks of the chunk with how often each comes.

        Behind a frozen embedding the first block keeps less: nothing before its first adapter needs a gradient.
        """
        own = self.kinds[layers.start : layers.stop]
        frozen = layers.start == 0 and not front.x.needs_grad

        def block(kind: str, needs_grad: bool) -> Block:
            return self.once((kind, needs_grad), lambda: self.block(kind, front, needs_grad=needs_grad))

        found = [(block(own[0], False), 1)] if frozen else []
        return found + [(block(kind, True), count) for kind, count in Counter(own[len(found) :]).items()]

    def once(self, name: Hashable, work: Callable[[], Found]) -> Found:
        """Return what is the same on every stage, worked out by the first that asks."""
        known = self.known
        if name not in known:
            known[name] = work()
        found: Found = known[name]
        return found

    def front(self) -> _Front:
        """Run the embedding on a tape of its own; its output is the first block's to count.

        Every stage makes the tables; what the embedding itself keeps lies on the first alone.
        """
        tape = self.tape()
        with tape.part("embedding"):
            tokens = tape.new(self.shape.tokens, 8, needs_grad=False, kind=INPUT)
            x = self.family.before(tape, self.shape, tokens)
            tables = self.family.tables(tape, self.shape, x)
        saved = {storage: None for storage in tape.saved() if storage is not x.storage}
        shared: dict[Storage, None] = dict.fromkeys(value.storage for value in tables)
        return _Front({**saved, **shared}, shared, x, tokens, tables)

    def block(self, kind: str, front: _Front, *, needs_grad: bool) -> Block:
        """Run one block on a tape of its own."""
        tape = self.tape()
        with tape.part("residual stream"):
            x = tape.new(front.x.numel, front.x.width, needs_grad=needs_grad)
        y = self.family.block(tape, self.shape, x, kind, front.tables)
        return block(tape, x, y, self.mode)

    def end(self, like: Value) -> _End:
        """Run final norm, head and loss on a tape of their own, from the last block's output."""
        tape = self.tape()
        with tape.part("residual stream"):
            x = tape.new(like.numel, like.width)
        with tape.part("norms"):
            read = self.family.after(tape, self.shape, x)
        behind = tape.saved()
        found = loss.head(tape, self.shape, read, self.plan.loss, self.family)
        saved = {**tape.saved(), found.value.storage: None}
        if read.storage in saved:
            behind[read.storage] = None
        head = {storage: None for storage in saved if storage not in behind}
        held = {value.storage: None for value in found.held if value.storage not in saved}
        # transformers' forward holds the final norm's output while it computes the loss.
        passing = read.storage.size if self.plan.loss == "hf" and read.storage not in saved else 0
        return _End(behind, head, held, found.forward + passing, backward(tape, found.value, (ACTIVATION,), (), held))

    def names(self, pieces: list[tuple[Block, int]], front: _Front, end: _End, kept: int) -> Counter[str]:
        """Return bytes of one micro-batch by what people call them: blocks, embedding, final norm."""
        sizes: Counter[str] = Counter()
        if self.mode == "none":
            for one, count in pieces:
                for storage in one.stay:
                    if storage.kind == ACTIVATION:
                        sizes[storage.part] += count * storage.size
        else:
            full = self.mode == "full"
            sizes["inputs of checkpointed blocks" if full else "inputs and matrix products of blocks"] = kept
        for storage in (*front.saved, *end.after):
            if storage.kind in (ACTIVATION, SHARED):
                sizes[storage.part] += storage.size
        return sizes


def _segment(one: Block, every: int) -> tuple[Point, ...]:
    """Points of a checkpointed segment of ``every`` blocks, in its first and in its last block's backward."""
    if every == 1:
        return one.points
    waiting, made = (every - 1) * one.layer, (every - 1) * max((made for _, made in one.points), default=0)
    early = [(alive + waiting, gradients) for alive, gradients in one.points]
    late = [(alive, gradients + made) for alive, gradients in one.points]
    return frontier((*early, *late))


def _with_buffers(points: tuple[Point, ...], shape: Shape, plan: Plan) -> tuple[Point, ...]:
    """Add what is alive for a moment beside a block's own tensors.

    Context parallel: the ring's chunks and accumulators. Quantized frozen weights: the widest matrix in the compute
    dtype (bitsandbytes/autograd/_functions.py ``MatMul4Bit.backward``).
    """
    c = plan.layout.context
    extra = context.ring_bytes(shape.tokens, shape.key, shape.width, c)
    extra += context.accumulation_bytes(shape.tokens, shape.query, shape.heads, c)
    if plan.lora is not None and plan.lora.quantized:
        extra += rounded(shape.hidden * max(shape.ffn, shape.query) * shape.width)
    return tuple((alive + extra, made) for alive, made in points)


def _above(points: Iterable[Point], base: int) -> int:
    return max((alive for alive, _ in points), default=base) - base
