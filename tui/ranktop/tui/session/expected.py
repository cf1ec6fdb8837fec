"""What a rank should hold: its card through the budget, once per card, and the moment at which a step peaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from ranktop.budget.inventory import Inventory
from ranktop.budget.live_choice import ALLOCATED, allocated, by_the_bytes, failed, peak_of, running_budget
from ranktop.budget.plan import Plan
from ranktop.budget.terms import MOMENTS, Amount, Budget, Memory
from ranktop.wire.schema import Card, Table

__all__ = ["ALLOCATED", "alike", "allocated", "bounds", "difference", "expected", "peak_moment", "steady"]

_CACHE_LIMIT: Final = 16384
_Key = tuple[str, int, int, int, int, bool, str | None]
_cache: dict[_Key, tuple[Inventory, Plan, Budget]] = {}
_budgets: dict[tuple[object, ...], Budget] = {}
"""The same budgets by what they depend on (``alike``)."""
_steady: dict[int, tuple[Budget, dict[str, Amount]]] = {}
_bounds: dict[int, tuple[Budget, dict[str, Bounds]]] = {}
"""By the budget's ``id``: what of it is compared, worked out once for all ranks that share it."""


def expected(card: Card, table: Table | None) -> Budget | None:
    """Return the budget of a rank, or None while its model or plan is unknown.

    The first step that runs the optimizer has its own: the optimizer's state appears during it.
    """
    if card.inventory is None or card.plan is None:
        return None
    first = table is not None and table.first
    memory = None if table is None else table.moments.get("forward_end")
    measured = None if memory is None else memory.activations
    return by_the_bytes(card.plan, measured, lambda plan: _remembered(card, plan, first))


def _remembered(card: Card, plan: Plan, first: bool) -> Budget:
    assert card.inventory is not None
    key = (card.job.id, card.rank, card.restart, card.pid, card.revision, first, plan.checkpointing)
    found = _cache.get(key)
    if found is not None and found[0] is card.inventory and found[1] is plan:
        return found[2]
    if found is not None and (found[0], found[1]) == (card.inventory, plan):
        # The hub has told the card again: from now on it is known by these objects, whose equality takes long to tell.
        budget = found[2]
    else:
        if len(_cache) >= _CACHE_LIMIT:
            _cache.clear()
        try:
            budget = _shared(card, card.inventory, plan, first)
        except Exception as error:  # a plan that the budget cannot read must not take the screen with it
            budget = failed(error)
    _cache[key] = (card.inventory, plan, budget)
    return budget


def _shared(card: Card, inventory: Inventory, plan: Plan, first: bool) -> Budget:
    """Return the budget of a rank; computed once for all ranks that differ only in what it does not depend on."""
    place = alike(inventory, plan)
    if place is None:
        return _compute(card, plan, first)
    key = (card.model, first, inventory, *place)
    found = _budgets.get(key)
    if found is None:
        if len(_budgets) >= _CACHE_LIMIT:
            _budgets.clear()
        found = _budgets[key] = _compute(card, plan, first)
    return found


def alike(inventory: Inventory, plan: Plan) -> tuple[str, tuple[int, ...]] | None:
    """Return what the budgets of ranks with the same parameters depend on; None where only the whole plan will do.

    Under DDP all replicas hold the same. Under FSDP2 a rank's coordinate tells nothing but the rows of its shards
    (``ranktop.budget.fsdp.states.shard_shapes``), and there are few different ones.
    """
    # As text: a plan holds dictionaries, which no key can.
    anywhere = repr(replace(plan, layout=replace(plan.layout, replicate_rank=0, shard_rank=0)))
    if plan.strategy == "ddp":
        return (anywhere, ()) if plan.layout.shard == 1 and not plan.zero_redundancy else None
    if plan.strategy != "fsdp2" or (plan.fsdp is not None and plan.fsdp.version != 2) or plan.zero_redundancy:
        return None
    splits = {
        ((kind.shape or (1,))[kind.shard_dim or 0], kind.shards or plan.layout.shard)
        for kind in inventory.kinds
        if kind.shard_rank is None
    }
    rows = []
    for size, ranks in sorted(splits):
        chunk = -(-size // ranks)
        rows.append(min(max(size - plan.layout.shard_rank * chunk, 0), chunk))
    return anywhere, tuple(rows)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is compared at one moment: the categories that the budget knows, and what a right measurement may be."""

    measured: Callable[[Memory], tuple[int | None, ...]]
    """Picks those categories' bytes out, in their order."""
    limits: tuple[tuple[str, int, int], ...]
    """(category, least bytes, most bytes)."""

    def differing(self, memory: Memory) -> list[tuple[str, int]]:
        """Return (category, 1 or -1) of those that are above or below, as ``difference`` tells."""
        found: list[tuple[str, int]] = []
        for value, (category, least, most) in zip(self.measured(memory), self.limits, strict=False):
            if value is not None and not least <= value <= most:
                found.append((category, 1 if value > most else -1))
        return found


def bounds(budget: Budget) -> dict[str, Bounds]:
    """Return moment -> what is compared there; moments without anything are left out."""
    kept = _bounds.get(id(budget))
    if kept is None or kept[0] is not budget:
        if len(_bounds) >= _CACHE_LIMIT:
            _bounds.clear()
        found = {moment: one for moment in budget.moments if (one := _bounds_at(budget, moment)).limits}
        kept = _bounds[id(budget)] = (budget, found)
    return kept[1]


def _bounds_at(budget: Budget, moment: str) -> Bounds:
    limits = [
        (category, amount.bytes - amount.tolerance, amount.bytes + amount.tolerance)
        for category, amount in budget.at(moment).items()
        if amount.bytes is not None and amount.tolerance is not None and category in Memory.__dataclass_fields__
    ]
    # A single name would give its value instead of a tuple.
    names: list[str] = [category for category, _, _ in limits] or ["total"]
    pick: Any = attrgetter(*names, names[0])
    return Bounds(pick, tuple(limits))


def _compute(card: Card, plan: Plan, first: bool) -> Budget:
    assert card.inventory is not None
    return running_budget(card.inventory, plan, card.model, first_step=first)


def peak_moment(table: Table | None) -> str | None:
    """Return the moment at which the most bytes were allocated; the earliest of equals, None without a table."""
    return None if table is None else peak_of(table.moments)


def steady(budget: Budget) -> dict[str, Amount]:
    """Return the amounts that are the same at every moment: what can be expected whenever one looks."""
    kept = _steady.get(id(budget))
    if kept is None or kept[0] is not budget:
        if len(_steady) >= _CACHE_LIMIT:
            _steady.clear()
        kept = _steady[id(budget)] = (budget, _work_out_steady(budget))
    return kept[1]


def _work_out_steady(budget: Budget) -> dict[str, Amount]:
    tables = [budget.at(moment) for moment in MOMENTS if budget.at(moment)]
    if not tables:
        return {}
    first, *others = tables
    return {
        category: amount
        for category, amount in first.items()
        if all(other.get(category, amount).bytes == amount.bytes for other in others)
    }


def difference(measured: int | None, amount: Amount | None) -> int | None:
    """Return measured - expected in bytes, 0 within the rule's slack and error.

    None when a side is missing, or when the expected one is a guess: nothing differs from a guess.
    """
    if measured is None or amount is None or amount.bytes is None or amount.tolerance is None:
        return None
    delta = measured - amount.bytes
    return 0 if abs(delta) <= amount.tolerance else delta
