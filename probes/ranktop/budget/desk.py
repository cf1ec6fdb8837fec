"""What one comparison has worked out and needs again: parameters, activations, ranks ready for another micro-batch.

A desk lives as long as the comparison that it was laid for and goes with it; nothing of it stays in a process.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ranktop.budget.activations.saved import Activations
from ranktop.budget.held import counted
from ranktop.budget.inventory import Inventory
from ranktop.budget.model import Model, NoRule
from ranktop.budget.plan import Plan
from ranktop.budget.run import Run
from ranktop.budget.terms import Budget

if TYPE_CHECKING:
    from ranktop.budget.expected import Rank

MOST: Final = 512
"""Entries of each sort after which a desk is cleared."""


@dataclass(slots=True)
class _Ready:
    """A rank, and what it was made for."""

    plan: Plan
    """Without its place in the sharding group and without its micro-batch."""
    place: int
    """In the sharding group."""
    rank: Rank
    last: tuple[Activations | None, Budget | None, object] = (None, None, None)
    """Activations, budget and measured runtime of the last answer."""


class Desk:
    """Remembers for one comparison; ``most`` bounds how much."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._inventories: dict[Hashable, tuple[object, Inventory]] = {}
        self._activations: dict[Hashable, tuple[object, Activations | None, str]] = {}
        self._blocks: dict[Hashable, dict[Hashable, Any]] = {}
        self._ready: dict[int, list[_Ready]] = {}
        self._ranks = 0

    def inventory(self, run: Run, plan: Plan) -> Inventory:
        """Return the parameters of the rank that the plan names. Raises NoRule when they cannot be split so."""
        from ranktop.budget.project import inventory

        source: object = run.model if run.inventory is None or run.model.family else run.inventory
        key = (id(source), *_held_by(run.model, plan))
        known = self._inventories.get(key)
        if known is None or known[0] is not source:
            if len(self._inventories) >= self.most:
                self.clear()  # ranks are known by their inventory
            known = self._inventories[key] = (source, inventory(run, plan))
        return known[1]

    def activations(self, run: Run, plan: Plan) -> tuple[Activations | None, str]:
        """Return the activations of a plan; None with the reason when there is no rule."""
        if plan.batch.micro_batch is None:
            return None, "the micro-batch is not known"
        source: object = run.activations if run.activations is not None else run.model
        shape = _shape(run, plan)
        key = (id(source), id(run.model), *shape, plan.pipeline, plan.layout.pipeline, plan.layout.pipeline_rank)
        known = self._activations.get(key)
        if known is None or known[0] is not source:
            if len(self._activations) >= self.most:
                self._activations.clear()
                self._blocks.clear()
            blocks = self._blocks.setdefault((id(run.model), *shape), {})
            known = self._activations[key] = (source, *_activations(run, plan, blocks))
        return known[1:]

    def budget(self, run: Run, plan: Plan, activations: Activations | None) -> Budget:
        """Return the budget of the rank that the plan names, as ``expected`` does."""
        from ranktop.budget.runtime import runtime

        ready = self._rank(self.inventory(run, plan), plan)
        if ready.last[1] is not None and ready.last[0] is activations and ready.last[2] is run.runtime:
            return ready.last[1]
        found = ready.rank.budget(activations, run.runtime or runtime(plan))
        ready.last = (activations, found, run.runtime)
        return found

    def _rank(self, inventory: Inventory, plan: Plan) -> _Ready:
        """Return the rank, ready for any micro-batch; shards that are equal are one rank."""
        from ranktop.budget.expected import Rank

        place = 0 if _equal_shards(inventory, plan) else plan.layout.shard_rank
        common = replace(plan, batch=replace(plan.batch, micro_batch=None), layout=replace(plan.layout, shard_rank=0))
        here = self._ready.setdefault(id(inventory), [])
        like: _Ready | None = None
        for one in here:
            if one.plan == common:
                if one.place == place:
                    return one
                like = one
        if self._ranks >= self.most:
            self._ready.clear()
            self._ranks = 0
            here = self._ready.setdefault(id(inventory), [])
        self._ranks += 1
        own = replace(common, layout=replace(plan.layout, shard_rank=place))
        here.append(_Ready(common, place, Rank(inventory, own, like=like.rank if like is not None else None)))
        return here[-1]


def _held_by(model: Model, plan: Plan) -> tuple[Hashable, ...]:
    """Return what of a plan makes a difference to a rank's parameters (``models.place``, ``project.inventory``)."""
    axes, precision = plan.layout, plan.precision
    sharded = plan.strategy.startswith("fsdp") or not model.family
    return (
        axes if axes.expert > 1 else (axes.tensor, axes.tensor_rank, axes.pipeline, axes.pipeline_rank),
        axes.shard if sharded else 0, plan.strategy.startswith("fsdp"), plan.fsdp is None or plan.fsdp.version,
        plan.zero is None, precision.parameters, bool(precision.master), plan.lora, plan.stack,
        plan.sequence_parallel, plan.pipeline,
    )  # fmt: skip


def _shape(run: Run, plan: Plan) -> tuple[Hashable, ...]:
    """Return what makes a difference to the activations of a block: many strategies leave them as they are."""
    found: tuple[Hashable, ...] = (
        plan.batch, plan.precision, plan.checkpointing, plan.checkpoint_every, plan.attention, plan.loss,
        plan.sequence_parallel, plan.lora, plan.stack, plan.host, plan.compiled, plan.fsdp is None, plan.zero is None,
        plan.layout.tensor, plan.layout.tensor_rank, plan.layout.context, plan.layout.expert,
    )  # fmt: skip
    if run.activations is None:
        return found
    # Whoever else speaks for activations may look at more.
    return (*found, plan.strategy, plan.layout, plan.fsdp, plan.zero, plan.ddp, plan.forward)


def _activations(run: Run, plan: Plan, blocks: dict[Hashable, Any]) -> tuple[Activations | None, str]:
    try:
        if run.activations is not None:
            return run.activations(run.model, plan), ""
        from ranktop.budget.activations.closed import activations

        return activations(run.model, plan, blocks), ""
    except NoRule as reason:
        return None, str(reason)


def _equal_shards(inventory: Inventory, plan: Plan) -> bool:
    """Whether every rank of the sharding group holds the same: what is uneven, or cut anywhere, tells them apart."""
    if plan.zero is not None:
        return plan.zero.stage == 3 and not plan.host  # padded; on a host rank 0 alone gathers to save
    if plan.fsdp is not None:
        ranks = plan.layout.shard
        return (
            plan.stack == "torch"
            and plan.fsdp.version == 2
            and all(
                (kind.shape or (1,))[kind.shard_dim or 0] % (kind.shards or ranks) == 0
                for kind, _ in counted(inventory)
            )
        )
    return plan.strategy == "3d"
