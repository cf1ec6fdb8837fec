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

from ranktop.budget.composition import Point, at_end, forward_loss, last_block, parts, stages
from ranktop.budget.fsdp.step import NEXT, REDUCE, ROOT, WHOLE, Step

GATHER: Final = "all-gather output"
BEFORE: Final = "all-gather output of the unit before"
HYBRID: Final = "all-reduce buffers (hybrid)"


@dataclass(frozen=True, slots=True)
class Fsdp2(Step):
    """One rank's step under ``fully_shard``."""

    @property
    def gather(self) -> int:
        """Bytes of a unit's all-gather output; a single rank copies its shards without one."""
        return self.units.block.gathered if self.job.plan.layout.shard > 1 else 0

    def forward(self) -> list[Point]:
        """Return the points of forward at which memory may be highest."""
        alive, units, kept = self.alive, self.units, self.gradients(0)
        root = units.root.gathered
        shared = root if self.job.plan.layout.shard > 1 else 0
        points = [Point("root, gathered", self.inputs(), parts((ROOT, root), (GATHER, shared)), kept)]
        if units.blocks:
            rest = self.resting(units.blocks if self.keeps else units.blocks - 1)
            copying = parts(*rest, *self.own(), (GATHER, self.gather), (BEFORE, self.gather))
            running = parts(*rest, *self.own(), (GATHER, self.gather))
            first = parts((ROOT, root), *self.own(), (GATHER, self.gather), (BEFORE, shared))
            points.append(Point("first unit, copied out", self.behind(0), first, kept))
            points.append(Point("last unit, copied out", self.behind(units.blocks - 1), copying, kept))
            points.append(Point("last unit, forward", last_block(alive) if alive else (), running, kept))
        if alive is not None:
            gathered = parts(*self.resting(units.blocks), (GATHER, self.gather))
            points.append(Point("loss, in forward", forward_loss(alive), gathered, kept))
        return points

    def backward(self) -> list[Point]:
        """Return the points of backward at which memory may be highest."""
        points = self.around_loss()
        if self.units.blocks:
            points += self._inside()
            points += [self._copying(left) for left in self.lefts()]
            points += [self._reducing(left) for left in self.lefts()]
        return points + self._end()

    def _inside(self) -> list[Point]:
        """Backward inside of a unit."""
        alive, units, job = self.alive, self.units, self.job
        if alive is None:
            return []
        every, points = job.every, []
        of = max(1, -(-alive.layers // every))
        for stage in stages(alive, every, job.shares.last, (of - 1, 2)):
            left = min(units.blocks, stage.left * every)
            done = units.blocks - left
            buffers = parts(
                *self.resting(left if self.keeps else left - 1),
                *self.own(),
                (NEXT, self.ahead if left > 1 else 0),
                (WHOLE, units.after + min(stage.made, units.block.gradients * every)),
                (REDUCE, units.block.reduced if done and not job.waits else 0),
                (HYBRID, self._all_reduced(done)),
            )
            points.append(Point(stage.name, stage.parts, buffers, self.gradients(done)))
        return points

    def _copying(self, left: int) -> Point:
        """A unit's backward begins: its parameters are copied out of the all-gather's output."""
        units = self.units
        done = units.blocks - left
        buffers = parts(
            *self.resting(left if self.keeps else left - 1),
            *self.own(),
            (GATHER, 0 if self.keeps else self.gather),
            (WHOLE, units.after),
            (REDUCE, units.block.reduced if done and not self.job.waits else 0),
            (HYBRID, self._all_reduced(done)),
        )
        return Point(
            "unit, copied out again",
            self.reached(left, "gradient of the block's output"),
            buffers,
            self.gradients(done),
        )

    def _reducing(self, left: int) -> Point:
        """A unit's backward has ended: its gradients are copied into the reduce-scatter's input."""
        units = self.units
        done = units.blocks - left
        buffers = parts(
            *self.resting(left - 1),
            (NEXT, self.ahead if left > 1 else 0),
            (WHOLE, units.after + units.block.gradients),
            (REDUCE, 0 if self.job.waits else units.block.reduced),
            (HYBRID, self._all_reduced(done)),
        )
        return Point(
            "gradients of a unit, being reduced",
            self.reached(left - 1, "gradient of the block's input"),
            buffers,
            self.gradients(done),
        )

    def _end(self) -> list[Point]:
        """Embedding's backward, then the root's own reduction."""
        units, alive, blocks = self.units, self.alive, self.units.blocks
        waits = self.job.waits
        last = units.block.reduced if blocks else 0
        hybrid = (HYBRID, self._all_reduced(blocks))
        embedding = parts(
            (ROOT, units.root.gathered), (WHOLE, units.before + units.after), (REDUCE, 0 if waits else last), hybrid
        )
        reducing = parts((WHOLE, units.root.gradients), (REDUCE, 0 if waits else units.root.reduced), hybrid)
        held = at_end(alive) if alive is not None else ()
        kept = self.gradients(blocks)
        return [
            Point("embedding's backward", held, embedding, kept),
            Point("root's gradients, being reduced", self.behind(0), reducing, kept),
            Point("end of backward", self.inputs(), (), kept if waits or self.offloaded else max(kept, self.job.full)),
        ]

    def _all_reduced(self, done: int) -> int:
        """Hybrid sharding holds every unit's reduced shard until backward ends when it is cast afterwards.

        Source: ``FSDPParamGroup._all_reduce_state``.
        """
        layout, precision = self.job.plan.layout, self.job.plan.precision
        if layout.replicate < 2 or precision.reduce in (None, precision.parameters):
            return 0
        return self.share(self.units.others.reduced // max(1, layout.shard), done)
