"""FSDP2: what is gathered, reduced and waiting at each point of a step.

Source: torch/distributed/fsdp/_fully_shard (2.13), checked against the live storages of real steps. In words: the
root stays gathered from its forward to the end of backward. A unit's all-gather output lives until the next unit has
copied its own out (forward), and in backward until the unit itself has copied it out; backward asks for the next
unit's as soon as a unit begins. A unit's whole gradients live until they are copied into the input of its
reduce-scatter, which lives until the next unit's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget.composition import Point, at_end, at_loss, parts, saved_parts, stages
from ranktop.budget.fsdp_units import Unit, Units
from ranktop.budget.job import Job
from ranktop.budget.plan import Fsdp
from ranktop.budget.terms import Part

ROOT: Final = "root's parameters, gathered"
UNIT: Final = "this unit's parameters, gathered"
ALL: Final = "all units' parameters, gathered"
GATHER: Final = "all-gather output"
NEXT: Final = "all-gather output of the next unit"
REDUCE: Final = "reduce-scatter input"
WHOLE: Final = "gradients not yet reduced"


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's step under FSDP2."""

    job: Job
    units: Units

    @property
    def options(self) -> Fsdp:
        """FSDP's options."""
        return self.job.plan.fsdp or Fsdp()

    @property
    def keeps(self) -> bool:
        """Whether units stay gathered from forward to backward."""
        return self.options.sharding.endswith("grad-op")

    @property
    def shared(self) -> bool:
        """Whether there is anything to gather: a single rank copies its shards without a collective."""
        return self.job.plan.layout.shard > 1

    @property
    def smaller(self) -> int:
        """Bytes of all units on a smaller group, between forward and backward."""
        ranks = self.options.reshard_after_forward
        return self.units.others.gathered // ranks if ranks and ranks > 1 and not self.keeps else 0

    def resting(self, left: int) -> tuple[tuple[str, int], ...]:
        """Return what is gathered beside the unit at work when ``left`` units have their backward before them."""
        units = self.units
        share = units.others.gathered * left // max(1, units.blocks)
        if self.keeps:
            return ((ROOT, units.root.gathered), (ALL, share))
        part = self.smaller * left // max(1, units.blocks)
        return ((ROOT, units.root.gathered), ("units re-sharded to a smaller group", part))

    def between(self) -> tuple[Part, ...]:
        """Return what stays between forward and backward."""
        return parts(*self.resting(self.units.blocks))

    def forward(self) -> list[Point]:
        """Return the points of forward at which memory may be highest."""
        job, units = self.job, self.units
        alive, unit, root = job.activations, units.block, units.root
        gather = unit.gathered if self.shared else 0
        kept = self.gradients(0)
        inputs = parts(("inputs", alive.inputs if alive else 0))
        points = [
            Point("root, gathered", inputs, parts((ROOT, root.gathered), (GATHER, root.gathered * self.shared)), kept)
        ]
        blocks = units.blocks
        before = self.resting(blocks if self.keeps else blocks - 1)
        own = (UNIT, 0 if self.keeps else unit.gathered)
        if blocks:
            copying = parts(*before, own, (GATHER, gather), ("all-gather output of the unit before", gather))
            running = parts(*before, own, (GATHER, gather))
            early = inputs
            late = inputs
            if alive is not None:
                early = parts(
                    ("blocks before", alive.blocks * (alive.layers - 1) // max(1, alive.layers)),
                    ("outside of the blocks", alive.outside - alive.after),
                    ("inputs", alive.inputs),
                )
                late = parts(
                    ("all blocks", alive.blocks + alive.boundary),
                    ("outside of the blocks", alive.outside - alive.after),
                    ("inputs", alive.inputs),
                )
            points.append(Point("last unit, copied out", early, copying, kept))
            points.append(Point("last unit, forward", late, running, kept))
        if alive is not None:
            loss = saved_parts(alive) + parts(("temporaries of the loss", alive.loss_forward))
            points.append(Point("loss, in forward", loss, parts(*self.resting(blocks), (GATHER, gather)), kept))
        return points

    def gradients(self, reduced: int) -> int:
        """Return the bytes of the gradients that this rank keeps when ``reduced`` units are through."""
        job = self.job
        kept = job.kept
        if job.waits and job.held.unsharded is not None:
            return job.held.unsharded.bytes or 0
        made = self.units.others.shard_gradients * reduced // max(1, self.units.blocks)
        return 0 if self.offloaded else max(kept, min(job.full, made))

    @property
    def offloaded(self) -> bool:
        """Whether shards and their gradients lie on the host."""
        return self.options.cpu_offload and not self.job.plan.host

    def backward(self) -> list[Point]:
        """Return the points of backward at which memory may be highest."""
        job, units = self.job, self.units
        alive, blocks = job.activations, units.blocks
        ahead = units.block.gathered if self.shared and self.options.prefetch and not self.keeps and blocks else 0
        points = []
        if alive is not None:
            gathered = parts(*self.resting(blocks), (NEXT, ahead))
            points.append(Point("loss", at_loss(alive), gathered, self.gradients(0)))
            points += self._blocks(ahead)
        return points + self._end()

    def _blocks(self, ahead: int) -> list[Point]:
        job, units = self.job, self.units
        alive = job.activations
        if alive is None or not units.blocks:
            return []
        unit, every = units.block, job.every
        points = []
        segments = max(1, -(-alive.layers // every))
        for stage in stages(alive, every, job.shares.last, (segments - 1, 2)):
            left = min(units.blocks, stage.left * every)
            done = units.blocks - left
            waiting = unit.reduced if done and not job.waits else 0
            common = (
                *self.resting(left if self.keeps else left - 1),
                (NEXT, ahead if left > 1 else 0),
                ("all-reduce buffers (hybrid)", self._all_reduced(done)),
            )
            inside = parts(
                *common,
                (UNIT, 0 if self.keeps else unit.gathered),
                (WHOLE, min(units.after + stage.made, units.after + unit.gradients * every)),
                (REDUCE, waiting),
            )
            points.append(Point(stage.name, stage.parts, inside, self.gradients(done)))
        for left in {units.blocks, max(1, units.blocks - 1), 1}:
            points.append(self._reducing(left, ahead))
        return points

    def _reducing(self, left: int, ahead: int) -> Point:
        """A unit's backward has ended: its gradients are copied into the reduce-scatter's input."""
        units = self.units
        alive = self.job.activations
        assert alive is not None
        of = max(1, alive.layers)
        done = units.blocks - left
        held = parts(
            ("blocks not yet reached", alive.blocks * (left - 1) // max(1, units.blocks)),
            ("outside of the blocks", alive.outside - alive.after),
            ("inputs", alive.inputs),
            ("low-precision copies of the weights (autocast)", alive.casts * (left - 1) // of),
            ("gradient of the block's input", alive.boundary),
        )
        buffers = parts(
            *self.resting(left - 1),
            (NEXT, ahead if left > 1 else 0),
            (WHOLE, units.after + units.block.gradients),
            (REDUCE, 0 if self.job.waits else units.block.reduced),
            ("all-reduce buffers (hybrid)", self._all_reduced(done)),
        )
        return Point("gradients of a unit, being reduced", held, buffers, self.gradients(done))

    def _end(self) -> list[Point]:
        """Embedding's backward, then the root's own reduction."""
        job, units = self.job, self.units
        alive, blocks = job.activations, units.blocks
        last = units.block.reduced if blocks else units.root.reduced
        held = at_end(alive) if alive is not None else ()
        reduced = self.gradients(blocks)
        waits = job.waits
        hybrid = ("all-reduce buffers (hybrid)", self._all_reduced(blocks))
        return [
            Point(
                "embedding's backward",
                held,
                parts(
                    (ROOT, units.root.gathered),
                    (WHOLE, units.before + units.after),
                    (REDUCE, 0 if waits else last),
                    hybrid,
                ),
                reduced,
            ),
            Point(
                "root's gradients, being reduced",
                parts(("inputs", alive.inputs if alive is not None else 0)),
                parts((WHOLE, units.root.gradients), (REDUCE, 0 if waits else units.root.reduced), hybrid),
                reduced,
            ),
        ]

    def _all_reduced(self, done: int) -> int:
        """Hybrid sharding holds every unit's reduced shard until backward ends when it is cast afterwards."""
        layout, units = self.job.plan.layout, self.units
        if layout.replicate < 2 or self.job.plan.precision.reduce in (None, self.job.plan.precision.parameters):
            return 0
        return units.others.reduced // max(1, layout.shard) * done // max(1, units.blocks)


def whole(unit: Unit) -> int:
    """Return the bytes of a unit while it is being sharded: all of it on the device."""
    return unit.gathered
