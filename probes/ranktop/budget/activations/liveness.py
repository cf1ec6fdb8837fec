"""Backward on a tape: what is alive at each operation, as torch's engine frees and makes tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable

from ranktop.budget.activations.tape import ACTIVATION, Node, Storage, Tape, Value

Point = tuple[int, int]
"""(bytes alive: saved and not yet freed, with gradients of activations; bytes of parameters' gradients made)."""


class _Gradient:
    """A gradient of an activation on its way back; branches may share it."""

    __slots__ = ("holders", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.holders = 0


class _Run:
    def __init__(
        self, tape: Tape, kinds: tuple[str, ...], kept: Iterable[Storage], elsewhere: Container[Storage]
    ) -> None:
        self.kinds = kinds
        self.uses: Counter[Storage] = Counter()
        for node in tape.nodes:
            for value in node.saved:
                if value.storage.kind in kinds and value.storage not in elsewhere:
                    self.uses[value.storage] += 1
        # What checkpointing keeps beyond autograd's needs goes when the block is through.
        extra = [storage for storage in kept if storage.kind in kinds and storage not in self.uses]
        self.alive = sum(storage.size for storage in (*self.uses, *extra))
        self.made = 0
        self.waiting: dict[int, _Gradient] = {}
        self.points: list[Point] = []

    def take(self, gradient: _Gradient) -> _Gradient:
        if not gradient.holders:
            self.alive += gradient.size
        gradient.holders += 1
        return gradient

    def drop(self, gradient: _Gradient) -> None:
        gradient.holders -= 1
        if not gradient.holders:
            self.alive -= gradient.size

    def mark(self, scratch: int = 0) -> None:
        self.points.append((self.alive + scratch, self.made))

    def arrive(self, value: Value, gradient: _Gradient) -> None:
        """A further gradient of a tensor is added to the first in place, unless another branch still holds that."""
        first = self.waiting.get(id(value))
        if first is None:
            self.waiting[id(value)] = gradient
        elif first.holders == 1:
            self.drop(gradient)
        else:
            both = self.take(_Gradient(value.size))
            self.mark()
            self.drop(first)
            self.drop(gradient)
            self.waiting[id(value)] = both

    def through(self, node: Node) -> None:
        incoming = [g for out in node.outputs if (g := self.waiting.pop(id(out), None)) is not None]
        if not incoming:
            return
        outgoing = []
        for value in node.inputs:
            if not value.needs_grad:
                continue
            same = node.passes and value.size == node.outputs[0].size
            outgoing.append((value, self.take(incoming[0] if same else _Gradient(value.size))))
        if node.low:
            self.mark(node.low)
        else:
            self.made += node.weight
            self.mark()
        for value in node.saved:
            self.release(value.storage)
        for gradient in incoming:
            self.drop(gradient)
        if node.low:
            self.made += node.weight
            self.mark(node.low)
        for value, gradient in outgoing:
            self.arrive(value, gradient)

    def release(self, storage: Storage) -> None:
        if storage in self.uses:
            self.uses[storage] -= 1
            if not self.uses[storage]:
                del self.uses[storage]
                self.alive -= storage.size


def backward(
    tape: Tape,
    result: Value,
    kinds: tuple[str, ...],
    kept: Iterable[Storage] = (),
    elsewhere: Container[Storage] = (),
) -> tuple[Point, ...]:
    """Return the points at which backward through a tape may be highest, in their order.

    A node's saved tensors are freed once it has run; a gradient is handed on as it is through views and sums; a
    second gradient is added to the first in place where nobody else holds it (``InputBuffer::accumulate``). Points
    that another one exceeds in both numbers are left out. ``kinds`` = kinds of storages that count; ``kept`` stays
    until the end although no node saved it; ``elsewhere`` is counted by others.
    """
    run = _Run(tape, kinds, kept, elsewhere)
    run.waiting[id(result)] = run.take(_Gradient(result.size))
    run.mark()
    for node in reversed(tape.nodes):
        run.through(node)
    return frontier(run.points)


def forward(tape: Tape, x: Value, y: Value, stay: Container[Storage]) -> int:
    """Return the most that is alive while forward runs from ``x`` to ``y``, beyond what of it stays until backward.

    A tensor that does not stay goes after the last operation that reads it; the caller holds ``x`` and gets ``y``.
    """
    last = {value.storage: i for i, node in enumerate(tape.nodes) for value in (*node.inputs, *node.outputs)}
    last[x.storage] = last[y.storage] = len(tape.nodes)
    ends: dict[int, list[Storage]] = {}
    for storage, i in last.items():
        if storage not in stay:
            ends.setdefault(i, []).append(storage)
    seen: set[Storage] = set()
    alive = most = 0
    for i, node in enumerate(tape.nodes):
        for value in (*node.inputs, *node.outputs, *(v for v in node.saved if v.storage in stay)):
            if value.storage.kind == ACTIVATION and value.storage not in seen:
                seen.add(value.storage)
                alive += value.storage.size
        most = max(most, alive)
        alive -= sum(storage.size for storage in ends.get(i, ()) if storage.kind == ACTIVATION)
    return most - sum(storage.size for storage in seen if storage in stay)


def frontier(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the points of which none other is at least as large in both numbers."""
    best: list[Point] = []
    for point in sorted(set(points), key=lambda p: (-p[1], -p[0])):
        if not best or point[0] > best[-1][0]:
            best.append(point)
    return tuple(reversed(best))
