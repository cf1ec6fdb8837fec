"""What a rank should hold: its card through the budget, once per card, and the moment at which a step peaks."""

from __future__ import annotations

from typing import Final

from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Plan
from ranktop.budget.terms import BUDGETED, MOMENTS, STATES, Amount, Budget, Memory
from ranktop.wire.schema import Card, Table

ALLOCATED: Final = (*STATES, "activations", "buffers")
"""Categories that live in the allocator as tensors."""

_CACHE_LIMIT: Final = 16384
_Key = tuple[str, int, int, int, int, bool]
_cache: dict[_Key, tuple[Inventory, Plan, Budget]] = {}


def expected(card: Card, table: Table | None) -> Budget | None:
    """Return the budget of a rank, or None while its model or plan is unknown.

    The first step that runs the optimizer has its own: the optimizer's state appears during it.
    """
    if card.inventory is None or card.plan is None:
        return None
    first = table is not None and table.first
    key = (card.job.id, card.rank, card.restart, card.pid, card.revision, first)
    found = _cache.get(key)
    if found is None or (found[0], found[1]) != (card.inventory, card.plan):
        if len(_cache) >= _CACHE_LIMIT:
            _cache.clear()
        found = _cache[key] = (card.inventory, card.plan, _compute(card, first))
    return found[2]


def _compute(card: Card, first: bool) -> Budget:
    try:
        from ranktop.budget.live import live_budget

        if card.inventory is None or card.plan is None:
            return Budget()
        return live_budget(card.inventory, card.plan, card.model, first_step=first)
    except Exception as error:  # a plan that the budget cannot read must not take the screen with it
        reason = f"the budget failed: {type(error).__name__}: {error}"
        unknown = {category: Amount(None, reason) for category in BUDGETED}
        return Budget(moments={moment: dict(unknown) for moment in MOMENTS})


def allocated(memory: Memory) -> int | None:
    """Return the bytes of all tensors, or None when no category of them is known."""
    known = [value for name in ALLOCATED if (value := getattr(memory, name)) is not None]
    return sum(known) if known else None


def peak_moment(table: Table | None) -> str | None:
    """Return the moment at which the most bytes were allocated; the earliest of equals, None without a table."""
    best: str | None = None
    most = -1
    if table is not None:
        for moment in MOMENTS:
            memory = table.moments.get(moment)
            size = None if memory is None else allocated(memory)
            if size is not None and size > most:
                best, most = moment, size
    return best


def steady(budget: Budget) -> dict[str, Amount]:
    """Return the amounts that are the same at every moment: what can be expected whenever one looks."""
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
    if measured is None or amount is None or amount.bytes is None or amount.within is None:
        return None
    delta = measured - amount.bytes
    return 0 if abs(delta) <= amount.slack + amount.within * amount.bytes else delta
