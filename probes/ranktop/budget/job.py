"""What the rules of one rank's budget share: its parameters, plan, states and activations."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from ranktop.budget import rounding
from ranktop.budget.activations.saved import Activations
from ranktop.budget.blocks import Place, place, size
from ranktop.budget.composition import Shares
from ranktop.budget.held import Held, gradient_itemsize
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Plan

if TYPE_CHECKING:
    from ranktop.budget.fsdp.units import Units


@dataclass(frozen=True)
class Job:
    """One rank; not slotted, for what it works out once."""

    inventory: Inventory
    plan: Plan
    held: Held
    activations: Activations | None
    first_step: bool = False

    def with_activations(self, activations: Activations | None) -> Job:
        """Return the same rank with other activations, and with what is known of it by now as far as it stays true."""
        found = copy(self)
        found.__dict__["activations"] = activations
        if found.layers != self.layers:
            for name in ("place", "shares", "units"):
                found.__dict__.pop(name, None)
        return found

    @property
    def layers(self) -> int:
        """Blocks whose parameters this rank holds."""
        alive = self.activations
        chunks = max(1, self.plan.pipeline.virtual) if self.plan.pipeline else 1
        return alive.layers * chunks if alive is not None else 0

    @cached_property
    def place(self) -> Place:
        """Where the parameters lie."""
        return place(self.inventory, self.layers)

    @cached_property
    def shares(self) -> Shares:
        """Whole gradients by where their parameters lie."""
        found = self.place
        last = found.last
        return Shares(
            before=size(found.before, self.gradient),
            block=sum(map(self.gradient, found.block)),
            last=self.gradient(last) if last is not None else 0,
            after=size(found.after, self.gradient),
            blocks=found.repeats,
        )

    @cached_property
    def _over(self) -> tuple[int, int, int]:
        """What the allocator adds to parameters, gradients and optimizer states."""
        inventory, plan = self.inventory, self.plan
        if plan.strategy == "dp" and plan.layout.replicate_rank:
            return 0, 0, 0
        return (
            rounding.of_parameters(inventory, plan),
            rounding.of_gradients(inventory, plan),
            rounding.of_optimizer(self.held, plan),
        )

    def rounding(self, gradients: int, stepped: bool) -> int:
        """Return what the allocator adds when so many bytes of gradients, and optimizer states, exist."""
        over = self._over
        share = over[1] * min(gradients, self.full) // self.full if self.full else 0
        return over[0] + share + (over[2] if stepped else 0)

    def gradient(self, kind: Kind) -> int:
        """Return the bytes of a parameter's whole gradient."""
        return prod(kind.shape) * gradient_itemsize(kind, self.plan) if kind.trainable else 0

    @cached_property
    def units(self) -> Units:
        """Sizes of FSDP's units."""
        from ranktop.budget.fsdp.units import units

        return units(self)

    @property
    def every(self) -> int:
        """Blocks in one checkpointed segment."""
        return max(1, self.plan.checkpoint_every) if self.plan.checkpointing == "full" else 1

    @property
    def waits(self) -> bool:
        """Whether this backward leaves its gradients unreduced, or adds to such of earlier micro-batches."""
        return "backward_start" in self.plan.unsharded_gradients_at

    @property
    def full(self) -> int:
        """Bytes of all gradients of this rank, as the strategy keeps them."""
        return self.held.gradients.bytes or 0

    @property
    def kept(self) -> int:
        """Bytes of the gradients that exist when backward begins."""
        plan = self.plan
        micro = max(plan.batch.accumulation or 1, plan.pipeline.micro_batches if plan.pipeline else 1)
        if self.first_step and micro == 1:
            return 0
        return self.full if "backward_start" in plan.gradients_at else 0

    @property
    def buffers_within(self) -> float | None:
        """Relative error of the buffers at a peak, as the tests measured it."""
        if self.plan.strategy == "dp":
            return 0.1  # read from the source, not measured
        return 0.02 if self.plan.fsdp is not None else 0.0
