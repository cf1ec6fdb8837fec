"""What the dashboard and the agent say alike of a running rank: its budget, which one the bytes mean, its peak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Final

from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Plan
from ranktop.budget.terms import BUDGETED, MOMENTS, STATES, Amount, Budget, Memory

ALLOCATED: Final = (*STATES, "activations", "buffers")
"""Categories that live in the allocator as tensors."""

_TENSORS: Final = attrgetter(*ALLOCATED)

MUCH_LESS: Final = 0.7
"""Share of the expected activations below which something keeps them from being saved."""

NEAR: Final = 0.1
"""How near measured activations must be to those of full checkpointing to be taken for them."""


def running_budget(inventory: Inventory, plan: Plan, model: str, *, first_step: bool) -> Budget:
    """Return what a running rank should hold; may raise for a plan that the rules can't read.

    Of a CPU job's first step, in which libraries are loaded through the same malloc, no activations are compared.
    """
    from ranktop.budget.live import live_budget

    found = live_budget(inventory, plan, model, first_step=first_step)
    return _guessing(found) if first_step and plan.host else found


def by_the_bytes(plan: Plan, measured: int | None, budget_of: Callable[[Plan], Budget]) -> Budget:
    """Choose between no and full checkpointing where only the bytes tell: ``torch.utils.checkpoint`` cannot be seen.

    Much less than expected without, and as much as expected with it, is full checkpointing; much less than the one
    and not the other is something that no rule knows, so that the expected side is a guess. ``measured``: activations
    when forward has ended, bytes. ``budget_of`` gives the budget of a plan, which it may remember.
    """
    found = budget_of(plan)
    if plan.checkpointing is not None or measured is None:
        return found
    plain = found.at("forward_end").get("activations")
    if plain is None or not plain.bytes or measured >= MUCH_LESS * (plain.bytes - plain.slack):
        return found
    full = budget_of(replace(plan, checkpointing="full"))
    other = full.at("forward_end").get("activations")
    if other is not None and other.bytes and abs(measured - other.bytes) <= other.slack + NEAR * other.bytes:
        return full
    kept = _guesses.get(id(found))
    if kept is None or kept[0] is not found:
        if len(_guesses) >= _GUESSES:
            _guesses.clear()
        kept = _guesses[id(found)] = (found, _guessing(found))
    return kept[1]


_GUESSES: Final = 4096
_guesses: dict[int, tuple[Budget, Budget]] = {}
"""By a budget's ``id``: itself, and the same as a guess. Asked with every sample, and the same for long."""


def _guessing(budget: Budget) -> Budget:
    """Return a budget whose activations are a guess, with which nothing is compared."""
    moments = {
        moment: {
            name: replace(amount, within=None) if name == "activations" and amount.bytes is not None else amount
            for name, amount in table.items()
        }
        for moment, table in budget.moments.items()
    }
    return replace(budget, moments=moments)


def failed(error: Exception) -> Budget:
    """Return the budget of a plan that the rules could not read: nothing is known, and why."""
    reason = f"the budget failed: {type(error).__name__}: {error}"
    unknown = {category: Amount(None, reason) for category in BUDGETED}
    return Budget(moments={moment: dict(unknown) for moment in MOMENTS})


def allocated(memory: Memory) -> int | None:
    """Return the bytes of all tensors, or None when no category of them is known."""
    sizes = _TENSORS(memory)
    known = sizes if None not in sizes else [value for value in sizes if value is not None]
    return sum(known) if known else None


def peak_of(moments: Mapping[str, Memory]) -> str | None:
    """Return the moment at which the most bytes were allocated; the earliest of equals, None without any."""
    best: str | None = None
    most = -1
    for moment in MOMENTS:
        memory = moments.get(moment)
        size = None if memory is None else allocated(memory)
        if size is not None and size > most:
            best, most = moment, size
    return best
