"""Closed forms of what forward leaves for backward: the fallback where a model was neither traced nor measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ranktop.budget.activations import families, loss
from ranktop.budget.activations.checkpointing import Block, block
from ranktop.budget.activations.family import Family, Tables
from ranktop.budget.activations.liveness import Point, backward, frontier
from ranktop.budget.activations.saved import Activations
from ranktop.budget.activations.shape import Shape, local
from ranktop.budget.activations.tape import ACTIVATION, CAST, INPUT, SHARED, Storage, Tape, Value, total
from ranktop.budget.model import Model
from ranktop.budget.models.stages import stage_layers
from ranktop.budget.pipeline import alive, ends
from ranktop.budget.plan import Plan
from ranktop.budget.terms import DTYPE_BYTES, Part


def activations(model: Model, plan: Plan) -> Activations:
    """Return the activations of one micro-batch on the rank that ``plan.layout`` names; NoRule without a rule.

    Every operation of a block is written on a tape with what its backward formula keeps; tensors are counted once,
    in blocks of 512 bytes. Equal to MemTracker's reading to the byte for the families gpt and llama.
    """
    if plan.stack == "megatron":
        from ranktop.budget.activations import megatron  # type: ignore[attr-defined,unused-ignore]

        return megatron.activations(model, plan)  # type: ignore[no-any-return,unused-ignore]
    family = families.find(model.family)
    return _Rank(family, local(model, plan), plan).activations()


@dataclass(frozen=True, slots=True)
class _Front:
    """Embedding: what it keeps, its output, and the tables that all blocks read."""

    saved: dict[Storage, None]
    x: Value
    tokens: Value
    tables: Tables


@dataclass(frozen=True, slots=True)
class _End:
    """Final norm, head and loss."""

    after: dict[Storage, None]
    head: dict[Storage, None]
    held: dict[Storage, None]
    """What only the script's own objects keep."""
    temporaries: int
    points: tuple[Point, ...]


class _Rank:
    """Puts the pieces of a rank together: embedding, blocks, head with the loss."""

    def __init__(self, family: Family, shape: Shape, plan: Plan) -> None:
        self.family = family
        self.shape = shape
        self.plan = plan
        self.mode = plan.checkpointing or "none"
        low = plan.precision.autocast
        self.autocast = DTYPE_BYTES[low] if low else None

    def tape(self) -> Tape:
        return Tape(autocast=self.autocast, host=self.plan.host)

    def activations(self) -> Activations:
        """Return the sum over the rank's chunk of the model."""
        shape, plan = self.shape, self.plan
        every_kind = self.family.kinds(shape.model)
        layers = stage_layers(len(every_kind), plan)[0]
        first, last = ends(plan)
        front = self.front()
        kinds = Counter(every_kind[layers.start : layers.stop])
        blocks = {kind: self.block(kind, front, needs_grad=True) for kind in kinds}
        pieces = [(blocks[kind], count) for kind, count in kinds.items()]
        if first and not front.x.needs_grad:
            pieces = self.with_frozen_input(pieces, front)
        end = self.end(front.x) if last else _End({}, {}, {}, 0, ())
        every = min(max(1, plan.checkpoint_every), len(layers)) if self.mode == "full" else 1
        largest = max(blocks.values(), key=lambda one: one.layer)
        kept = sum(one.kept * count for one, count in pieces)
        if every > 1:
            kept = -(-kept // every)
        outside = total(
            {**(front.saved if first else {}), **dict.fromkeys(v.storage for v in front.tables)}, ACTIVATION, SHARED
        )
        after = total(end.after, ACTIVATION)
        held = {
            "key/value cache of the output object": sum(one.held * count for one, count in pieces),
            "logits of the output object": total(end.held, ACTIVATION),
        }
        saved = {kind: total(end.head, kind) for kind in (ACTIVATION, CAST)}
        casts = sum(one.casts * count for one, count in pieces) + saved[CAST]
        cached = sum(one.cached * count for one, count in pieces)
        flight = alive(plan)
        inputs = 2 * front.tokens.storage.size
        sizes = {**self.parts(pieces, front, first, end, kept), **held}
        sizes = {name: flight * size for name, size in sizes.items()}
        sizes["logits and loss"] = saved[ACTIVATION]
        sizes["tokens and labels"] = flight * inputs
        sizes["low-precision copies of weights (autocast)"] = casts
        points = _segment(largest, every)
        return Activations(
            layers=len(layers),
            layer=largest.layer,
            blocks=kept,
            recomputed=0 if self.mode == "none" else largest.recomputed + (every - 1) * largest.layer,
            outside=outside + after + sum(held.values()),
            logits=saved[ACTIVATION],
            inputs=inputs,
            casts=casts,
            loss_forward=end.temporaries + cached,
            loss_backward=_above(end.points, after + saved[ACTIVATION]),
            block_backward=_above(points, largest.layer * every),
            boundary=front.x.size,
            in_flight=flight,
            within=self.family.within,
            rule=f"autograd's saved tensors, operation by operation: {self.family.rule}",
            parts=tuple(Part(name, size) for name, size in sizes.items() if size),
            after=after,
            backward=points,
            block_forward=largest.forward + cached,
        )

    def front(self) -> _Front:
        """Run the embedding on a tape of its own; its output is the first block's to count."""
        tape = self.tape()
        with tape.part("embedding"):
            tokens = tape.new(self.shape.tokens, 8, needs_grad=False, kind=INPUT)
            x = self.family.before(tape, self.shape, tokens)
            tables = self.family.tables(tape, self.shape, x)
        saved = {storage: None for storage in tape.saved() if storage is not x.storage}
        return _Front(saved, x, tokens, tables)

    def block(self, kind: str, front: _Front, *, needs_grad: bool) -> Block:
        """Run one block on a tape of its own."""
        tape = self.tape()
        with tape.part("residual stream"):
            x = tape.new(front.x.numel, front.x.width, needs_grad=needs_grad)
        y = self.family.block(tape, self.shape, x, kind, front.tables)
        return block(tape, x, y, self.mode)

    def with_frozen_input(self, pieces: list[tuple[Block, int]], front: _Front) -> list[tuple[Block, int]]:
        """Behind a frozen embedding the first block keeps less: nothing before its first adapter needs a gradient."""
        (one, count), *rest = pieces
        kind = self.family.kinds(self.shape.model)[0]
        return [(self.block(kind, front, needs_grad=False), 1), (one, count - 1), *rest]

    def end(self, like: Value) -> _End:
        """Run final norm, head and loss on a tape of their own, from the last block's output."""
        tape = self.tape()
        with tape.part("residual stream"):
            x = tape.new(like.numel, like.width)
        with tape.part("norms"):
            read = self.family.after(tape, self.shape, x)
        behind = tape.saved()
        found = loss.head(tape, self.shape, read, self.plan.loss, self.family)
        saved = tape.saved()
        if read.storage in saved:
            behind[read.storage] = None
        head = {storage: None for storage in saved if storage not in behind}
        held = {value.storage: None for value in found.held if value.storage not in saved}
        # transformers' forward holds the final norm's output while it computes the loss.
        passing = read.storage.size if self.plan.loss == "hf" and read.storage not in saved else 0
        return _End(behind, head, held, found.forward + passing, backward(tape, found.value, (ACTIVATION,), (), held))

    def parts(self, pieces: list[tuple[Block, int]], front: _Front, first: bool, end: _End, kept: int) -> Counter[str]:
        """Return bytes of one micro-batch by what people call them, without logits, inputs and casts."""
        sizes: Counter[str] = Counter()
        if self.mode == "none":
            for one, count in pieces:
                for storage in one.stay:
                    if storage.kind == ACTIVATION:
                        sizes[storage.part] += count * storage.size
        else:
            full = self.mode == "full"
            sizes["inputs of checkpointed blocks" if full else "inputs and matrix products of blocks"] = kept
        for storage in (*(front.saved if first else ()), *(value.storage for value in front.tables), *end.after):
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


def _above(points: Iterable[Point], base: int) -> int:
    return max((alive for alive, _ in points), default=base) - base
