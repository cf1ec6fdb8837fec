"""FSDP1: what is gathered, flattened and reduced at each point of a step.

Source: torch/distributed/fsdp/_flat_param.py, _runtime_utils.py (2.13), checked against the live storages of real
steps. A unit is gathered straight into its flat parameter. When its backward ends, the gradients of its parameters
are concatenated to a flat one, both alive for that moment, with the unit and the one gathered ahead; a reduction in
another dtype makes one more flat copy. No buffer outlives its unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget.composition import Point, at_end, forward_loss, last_block, parts, stages
from ranktop.budget.fsdp.step import NEXT, REDUCE, ROOT, WHOLE, Step
from ranktop.budget.fsdp.units import Unit

FLAT: Final = "flat gradient of the unit"
EARLIER: Final = "sharded gradients, kept until the next forward"
LOW: Final = "shard in the dtype that is computed in"


@dataclass(frozen=True, slots=True)
class Fsdp1(Step):
    """One rank's step under ``FullyShardedDataParallel``."""

    @property
    def whole(self) -> bool:
        """Whether nothing is sharded (NO_SHARD): gradients are all-reduced in their flat form."""
        return self.options.sharding == "none"

    @property
    def earlier(self) -> int:
        """Bytes of the gradients of the step before, which ``zero_grad`` does not reach (``use_orig_params``)."""
        job = self.job
        kept = job.held.gradients.bytes if job.kept else 0
        there = self.options.use_orig_params and not job.first_step
        return max(0, job.full - (kept or 0)) if there else 0

    def forward(self) -> list[Point]:
        """Return the points of forward at which memory may be highest."""
        alive, units, kept = self.alive, self.units, self.gradients(0)
        root = parts((ROOT, units.root.gathered), (LOW, units.root.low_shard))
        before = parts((EARLIER, self.earlier))
        points = [
            Point("forward begins", self.inputs(), before, kept),
            Point("root, gathered", self.inputs(), root, kept),
        ]
        if units.blocks:
            rest = self.resting(units.blocks if self.keeps else units.blocks - 1)
            gathering = parts(*rest, *self.own(), (LOW, units.block.low_shard))
            points.append(Point("last unit, gathered", self.behind(units.blocks - 1), gathering, kept))
            running = parts(*rest, *self.own())
            points.append(Point("last unit, forward", last_block(alive) if alive else (), running, kept))
        if alive is not None:
            points.append(Point("loss, in forward", forward_loss(alive), self.between(), kept))
        return points

    def backward(self) -> list[Point]:
        """Return the points of backward at which memory may be highest."""
        points = self.around_loss()
        if self.units.blocks:
            points += self._inside()
            for left in self.lefts():
                points += self._reducing(left)
        return points + self._end()

    def _inside(self) -> list[Point]:
        """Backward inside of a unit."""
        alive, units, job = self.alive, self.units, self.job
        if alive is None:
            return []
        points = []
        for stage in stages(alive, job.every, job.shares.last):
            left = min(units.blocks, stage.left * job.every)
            buffers = parts(
                *self.resting(left if self.keeps else left - 1),
                *self.own(),
                (NEXT, self.ahead if left > 1 else 0),
                (WHOLE, units.after + min(stage.made, units.block.gradients * job.every)),
            )
            points.append(Point(stage.name, stage.parts, buffers, self.gradients(units.blocks - left)))
        return points

    def _reducing(self, left: int) -> list[Point]:
        """A unit's backward has ended: its gradients become one flat gradient, which is cast and reduced."""
        units = self.units
        held, kept = self.reached(left - 1, "gradient of the block's input"), self.gradients(units.blocks - left)
        ahead, root = (NEXT, self.ahead if left > 1 else 0), (WHOLE, units.after)
        rest = self.resting(left if self.keeps else left - 1)
        own = () if self.keeps else self.own()
        flat = (FLAT, units.block.gradients)
        joining = parts(*rest, *own, ahead, (WHOLE, units.after + units.block.gradients), flat)
        reducing = parts(*self.resting(left - 1), ahead, root, flat, *self._reduction(units.block))
        return [
            Point("gradients of a unit, concatenated", held, joining, kept),
            Point("gradients of a unit, reduced", held, reducing, kept),
        ]

    def _reduction(self, unit: Unit) -> tuple[tuple[str, int], ...]:
        """Return the flat gradient in the dtype of the reduction where that is another one, and the shard."""
        cast = unit.reduced if unit.reduced != unit.gradients else 0
        shard = 0 if self.whole else unit.reduced // max(1, self.job.plan.layout.shard)
        return (REDUCE, cast), ("reduced shard", shard)

    def _end(self) -> list[Point]:
        """Embedding's backward, then the root's own reduction."""
        units, alive = self.units, self.alive
        kept = self.gradients(units.blocks)
        held = at_end(alive) if alive is not None else ()
        root = units.root
        gathered = (ROOT, root.gathered)
        made = (WHOLE, units.before + units.after)
        return [
            Point("embedding's backward", held, parts(gathered, made), kept),
            Point(
                "root's gradients, concatenated", self.behind(0), parts(gathered, made, (FLAT, root.gradients)), kept
            ),
            Point(
                "root's gradients, reduced",
                self.behind(0),
                parts((FLAT, root.gradients), *self._reduction(root)),
                kept,
            ),
            Point("end of backward", self.inputs(), (), kept if self.offloaded else max(kept, self.job.full)),
        ]
