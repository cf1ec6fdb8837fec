"""How far backward has come when a parameter's gradient appears: which activations are still alive by then."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from ranktop.budget.activations.saved import Activations
from ranktop.budget.composition import parts
from ranktop.budget.inventory import Kind
from ranktop.budget.terms import Part

NOTHING = Activations(layers=1, layer=0, blocks=0)
"""Stands in for activations that nobody knows."""

Shapes = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=64)
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

    def __init__(self, kinds: Sequence[Kind], alive: Activations) -> None:
        self.alive = alive
        numels = [kind.numel for kind in kinds]
        self.shapes = tuple(kind.shape for kind in kinds)
        start, period = blocks(self.shapes, alive.layers)
        self.start, self.end = (start, start + period * alive.layers) if period else (0, len(kinds))
        ends = list(accumulate(numels))
        before = ends[self.start - 1] if self.start else 0
        whole = (ends[self.end - 1] if self.end else 0) - before
        self.left = [
            min(1.0, max(0.0, (end - before) / whole)) if whole and i >= self.start else 0.0
            for i, end in enumerate(ends)
        ]
        """Share of the blocks' activations that is alive when a parameter's gradient has just been made."""
        held = alive.in_flight * (alive.blocks + alive.outside + alive.inputs) - alive.blocks
        self._after = max(0, held)
        self._inside = max(0, held - min(alive.after, alive.outside)) + alive.recomputed + alive.block_backward
        self._before = max(0, held - alive.outside) + alive.boundary

    def bytes(self, index: int) -> int:
        """Bytes of activations when the gradient of parameter ``index`` has just been made."""
        alive = self.alive
        if index >= self.end:
            return self._after + alive.blocks + alive.casts + self._logits(index)
        fixed = self._inside if index >= self.start else self._before
        return int(self.left[index] * (alive.blocks + alive.casts)) + fixed

    def parts(self, index: int) -> tuple[Part, ...]:
        """Return what ``bytes`` is made of."""
        alive, left = self.alive, self.left[index]
        saved = int(left * (alive.blocks + alive.casts))
        if index >= self.end:
            saved = alive.blocks + alive.casts
            gradient = self._logits(index)
            others = self._after
        else:
            gradient = alive.block_backward if index >= self.start else alive.boundary
            others = (self._inside if index >= self.start else self._before) - gradient
        recomputed = alive.recomputed if self.start <= index < self.end else 0
        return parts(
            ("blocks that are not yet through backward", saved),
            ("recomputed activations", recomputed),
            ("gradients of activations", gradient),
            ("other activations", others - recomputed),
        )

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
