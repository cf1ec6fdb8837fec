"""How far backward has come when a parameter's gradient appears: which activations are still alive by then."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING

from ranktop.budget.activations.saved import Activations
from ranktop.budget.composition import parts
from ranktop.budget.inventory import Kind
from ranktop.budget.terms import Part

if TYPE_CHECKING:
    from ranktop.budget.zero.job import Job

NOTHING = Activations(layers=1, layer=0, blocks=0)
"""Stands in for activations that nobody knows."""

Shapes = tuple[tuple[int, ...], ...]


def blocks(shapes: Shapes, layers: int) -> tuple[int, int]:
    """Return where the repeated blocks begin among a model's parameters, and how many parameters one has.

    ``(0, 0)`` when nothing repeats ``layers`` times.
    """
    count = len(shapes)
    for period in range(count // max(1, layers), 0, -1):
        for start in range(count - period * layers + 1):
            end = start + period * (layers - 1)
            if shapes[start:end] == shapes[start + period : end + period]:
                return start, period
    return 0, 0


class Progress:
    """Activations alive at each parameter of backward, which meets them from last to first.

    Within a block they are taken to fall evenly with the parameters' elements.
    """

    def __init__(self, job: Job, alive: Activations) -> None:
        kinds, numels = job.kinds, job.numels
        self.alive = alive
        self.shapes: Shapes = job.once("shapes", lambda: tuple(kind.shape for kind in kinds))
        start, period = job.once(("blocks", alive.layers), partial(blocks, self.shapes, alive.layers))
        self.start, self.end = (start, start + period * alive.layers) if period else (0, len(kinds))
        self._ends: list[int] = job.once("ends", lambda: list(accumulate(numels)))
        self.period = period
        self._inside_block = _by_parameter(kinds[start : start + period], alive) if period else ()
        held = alive.in_flight * (alive.blocks + alive.outside + alive.inputs) - alive.blocks
        self._after = max(0, held) + alive.tied
        self._around = max(0, held - min(alive.after, alive.outside)) + alive.tied
        self._before = max(0, held - alive.outside) + alive.boundary

    def left(self, index: int) -> float:
        """Share of the blocks' activations that is alive when a parameter's gradient has just been made."""
        before, whole = self._span
        return min(1.0, max(0.0, (self._ends[index] - before) / whole)) if whole and index >= self.start else 0.0

    @cached_property
    def _span(self) -> tuple[int, int]:
        """Elements before the blocks, and of the blocks."""
        before = self._ends[self.start - 1] if self.start else 0
        return before, (self._ends[self.end - 1] if self.end else 0) - before

    def sizes(self) -> list[int]:
        """Bytes of activations when each parameter's gradient has just been made, in the order of the model."""
        if not self._inside_block:
            return [sum(size for _, size in self._pieces(index)) for index in range(len(self.shapes))]
        alive, block = self.alive, self._inside_block
        step, around = (alive.blocks + alive.casts), self._around
        found = [alive.boundary + self._before + self._tied(index) for index in range(self.start)]
        for number in range(alive.layers):
            saved = step * number // alive.layers + around
            found.extend([saved + inside for inside in block])
        behind = step + self._after
        found.extend(behind + self._logits(index) for index in range(self.end, len(self.shapes)))
        return found

    def parts(self, index: int) -> tuple[Part, ...]:
        """Return what one of ``sizes`` is made of."""
        return parts(*self._pieces(index))

    def _pieces(self, index: int) -> tuple[tuple[str, int], ...]:
        alive = self.alive
        if index >= self.end:
            return (
                ("blocks that are not yet through backward", alive.blocks + alive.casts),
                ("gradients of activations", self._logits(index)),
                ("other activations", self._after),
            )
        if index < self.start:
            others = self._before + self._tied(index)
            return ("gradients of activations", alive.boundary), ("other activations", others)
        if self._inside_block:
            number, place = divmod(index - self.start, self.period)
            saved = (alive.blocks + alive.casts) * number // max(1, alive.layers)
            block = self._inside_block[place]
        else:
            saved = int(self.left(index) * (alive.blocks + alive.casts))
            block = alive.recomputed + alive.block_backward
        return (
            ("blocks that are not yet through backward", saved),
            ("the block in backward: what is left of it, gradients of activations", block),
            ("other activations", self._around),
        )

    def adding(self, index: int) -> tuple[str, int]:
        """Return what is alive beside ``sizes`` while a tied weight's gradient is made, before any hook runs."""
        size = 2 * self.alive.tied if index == 0 else 0
        return "gradients of the tied weight, from head and embedding, that are being added", size

    def _tied(self, index: int) -> int:
        """Bytes of the head's gradient that waits for the embedding's, which is the first parameter's."""
        return self.alive.tied if index else 0

    def ended(self) -> int:
        """Bytes of activations after the last parameter: what other micro-batches in flight keep, and the inputs."""
        alive = self.alive
        waiting = (alive.in_flight - 1) * (alive.blocks + alive.outside + alive.inputs)
        return waiting + alive.inputs

    def _logits(self, index: int) -> int:
        """Gradient of an output head's result, in the compute dtype, while its weight's gradient is made."""
        shape = self.shapes[index]
        if len(shape) != 2 or shape[0] <= shape[1]:
            return self.alive.boundary
        return self.alive.boundary * shape[0] // shape[1]


def _by_parameter(block: Sequence[Kind], alive: Activations) -> tuple[int, ...]:
    """Bytes of one block when each of its parameters' gradients has just been made.

    From the points of its backward where they are known, else falling evenly from its whole.
    """
    total = sum(kind.numel * kind.itemsize for kind in block if kind.trainable)
    found: list[int] = []
    made = 0
    for kind in reversed(block):
        made += kind.numel * kind.itemsize if kind.trainable else 0
        if alive.backward:
            reached = [bytes_ for bytes_, by_then in alive.backward if by_then <= made]
            found.append(reached[-1] if reached else alive.backward[0][0])
            continue
        whole = alive.blocks // max(1, alive.layers) + alive.recomputed
        found.append(whole - whole * (made - kind.numel * kind.itemsize) // max(1, total) + alive.block_backward)
    return tuple(reversed(found))
