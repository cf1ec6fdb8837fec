"""What a rank would hold under a plan a little different from its own, computed once per card."""

from __future__ import annotations

from typing import Final

from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Plan
from ranktop.budget.terms import Budget
from ranktop.wire.schema import Card

_LIMIT: Final = 256
_Key = tuple[str, int, int, int, int, str]
_cache: dict[_Key, tuple[Inventory, Plan, Budget | None]] = {}


def alternative(card: Card, plan: Plan, what: str) -> Budget | None:
    """Return the budget of the card's rank under another plan, named by ``what``; None where there is no rule."""
    if card.inventory is None:
        return None
    key = (card.job.id, card.rank, card.restart, card.pid, card.revision, what)
    found = _cache.get(key)
    if found is None or found[0] is not card.inventory or found[1] != plan:
        if len(_cache) >= _LIMIT:
            _cache.clear()
        found = _cache[key] = (card.inventory, plan, _compute(card.inventory, plan, card.model))
    return found[2]


def _compute(inventory: Inventory, plan: Plan, model: str) -> Budget | None:
    from ranktop.budget.live import live_budget

    try:
        return live_budget(inventory, plan, model)
    except Exception:  # a plan that the budget cannot read has no alternatives; the rank's own budget says why
        return None
