"""What FSDP1 and FSDP2 share: units that are gathered and let go, gradients that are reduced unit by unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget.activations.saved import Activations
from ranktop.budget.composition import Point, at_head, at_loss, parts, tied
from ranktop.budget.fsdp.units import Units
from ranktop.budget.job import Job
from ranktop.budget.plan import Fsdp
from ranktop.budget.terms import Part

Sizes = tuple[tuple[str, int], ...]

ROOT: Final = "root's parameters, gathered"
UNIT: Final = "this unit's parameters, gathered"
ALL: Final = "all units' parameters, gathered"
NEXT: Final = "next unit's parameters, gathered ahead"
REDUCE: Final = "reduce-scatter input"
WHOLE: Final = "gradients not yet reduced"


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's step; a subclass for each version."""

    job: Job
    units: Units

    @property
    def options(self) -> Fsdp:
        """FSDP's options."""
        return self.job.plan.fsdp or Fsdp(version=1 if self.job.plan.strategy == "fsdp1" else 2)

    @property
    def alive(self) -> Activations | None:
        """The activations, when they are known."""
        return self.job.activations

    @property
    def keeps(self) -> bool:
        """Whether units stay gathered from forward to backward."""
        return self.options.sharding.endswith("grad-op")

    @property
    def offloaded(self) -> bool:
        """Whether shards and their gradients lie on the host."""
        return self.options.cpu_offload and not self.job.plan.host

    @property
    def ahead(self) -> int:
        """Bytes that backward gathers for the next unit while one is at work."""
        shared = self.job.plan.layout.shard > 1
        return self.units.block.gathered if shared and self.options.prefetch and not self.keeps else 0

    def share(self, whole: int, units: int) -> int:
        """Return the part of a sum over all units but the root's that belongs to some of them."""
        return whole * units // max(1, self.units.blocks)

    def resting(self, left: int) -> Sizes:
        """Return what is gathered beside the unit at work when ``left`` units have their backward before them."""
        root = (ROOT, self.units.root.gathered)
        if self.keeps:
            return (root, (ALL, self.share(self.units.others.gathered, left)))
        ranks = self.options.reshard_after_forward or 0
        smaller = self.units.others.gathered // ranks if ranks > 1 else 0
        return (root, ("units re-sharded to a smaller group", self.share(smaller, left)))

    def own(self) -> Sizes:
        """Return the unit at work, where it is not among those that stay gathered."""
        return ((UNIT, 0 if self.keeps else self.units.block.gathered),)

    def between(self) -> tuple[Part, ...]:
        """Return what stays between forward and backward."""
        root, *others = self.resting(self.units.blocks)
        return parts(*others) if self.options.root_resharded else parts(root, *others)

    def gradients(self, reduced: int) -> int:
        """Return the bytes of the gradients that this rank keeps when ``reduced`` units are through."""
        job = self.job
        if job.waits and job.held.unsharded is not None:
            return job.held.unsharded.bytes or 0
        made = self.share(self.units.others.shard_gradients, reduced)
        return 0 if self.offloaded else max(job.kept, min(job.full, made))

    def inputs(self) -> tuple[Part, ...]:
        """Return the tokens and labels."""
        return parts(("inputs", self.alive.inputs if self.alive is not None else 0))

    def behind(self, blocks: int, *more: tuple[str, int]) -> tuple[Part, ...]:
        """Return what ``blocks`` blocks have saved, with what stands before them and ``more``."""
        alive = self.alive
        if alive is None:
            return ()
        of = max(1, self.units.blocks)
        return parts(
            ("activations of blocks", alive.blocks * blocks // of),
            ("outside of the blocks", alive.outside - alive.after),
            ("inputs", alive.inputs),
            ("low-precision copies of the weights (autocast)", alive.casts * blocks // of),
            *more,
        )

    def reached(self, blocks: int, what: str) -> tuple[Part, ...]:
        """Return what is alive when backward is between two blocks, ``blocks`` of them still before it."""
        alive = self.alive
        if alive is None:
            return ()
        return self.behind(blocks, (what, alive.boundary), tied(alive))

    def around_loss(self) -> list[Point]:
        """Return the points at which backward begins: at the loss, and in the head."""
        alive, units, kept = self.alive, self.units, self.gradients(0)
        if alive is None:
            return []
        gathered = parts(*self.resting(units.blocks), (NEXT, self.ahead if units.blocks else 0))
        head = gathered + parts((WHOLE, units.after))
        return [Point("loss", at_loss(alive), gathered, kept), Point("head", at_head(alive), head, kept)]

    def lefts(self) -> tuple[int, ...]:
        """Return the numbers of units left at which the reduction of one may be the highest point."""
        blocks = self.units.blocks
        return tuple(dict.fromkeys(n for n in (blocks, blocks - 1, 2, 1) if 1 <= n <= blocks))

    def forward(self) -> list[Point]:
        """Return the points of forward at which memory may be highest."""
        raise NotImplementedError

    def backward(self) -> list[Point]:
        """Return the points of backward at which memory may be highest."""
        raise NotImplementedError
