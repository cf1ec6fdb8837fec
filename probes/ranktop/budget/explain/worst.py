"""The rank that needs the most, without a look at those that cannot be it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.models.stages import stage_layers
from ranktop.budget.plan import Layout, Plan
from ranktop.budget.project import busiest, places, rank_budget
from ranktop.budget.run import Run
from ranktop.budget.strategies import plan_of
from ranktop.budget.terms import STEP, Budget

FEW: Final = 4
"""Stages of which each is looked at."""


@dataclass(frozen=True, slots=True)
class Worst:
    """What ``project`` says of the worst rank."""

    budget: Budget
    peak: int | None
    """Bytes at the peak."""
    known: int
    """Bytes of what is known where that is largest within a step; equal to ``peak`` when that is known."""
    sent: int
    """Bytes that the busiest GPU sends per step."""


def worst(run: Run, strategy: str) -> Worst:
    """Return the rank that ``project`` finds to need the most. Raises NoRule, BadInput."""
    plan = plan_of(run, strategy)
    budgets = [rank_budget(run, replace(plan, layout=place)) for place in _candidates(run, plan)]
    budget = max(budgets, key=_size)
    return Worst(budget, _total(budget), known(budget), sum(one.sent for one in busiest(run, plan)))


def _total(budget: Budget) -> int | None:
    peak = budget.peak()
    return None if peak is None else budget.total(peak)


def known(budget: Budget) -> int:
    """Return the bytes of what is known where that is largest within a step."""
    return max(sum(amount.bytes or 0 for amount in budget.at(moment).values()) for moment in STEP)


def _size(budget: Budget) -> int:
    total = _total(budget)
    return known(budget) if total is None else total


def _candidates(run: Run, plan: Plan) -> Iterator[Layout]:
    """Yield the places whose rank may need the most.

    A last shard never holds more than the first one, but for ZeRO's flat groups: there it is a matter of borders.
    """
    stages = _stages(run, plan)
    flat = plan.zero is not None and plan.zero.stage < 3
    for place, _ in places(plan.layout, plan.strategy):
        last_shard = plan.layout.replicate == 1 and place.shard_rank > 0 and not flat
        if place.pipeline_rank in stages and not last_shard:
            yield place


def _stages(run: Run, plan: Plan) -> set[int]:
    """Return the first stage, the last one, and of those between with as many layers the first one.

    The further back a stage is, the fewer micro-batches it has in flight, under every schedule. Where layers are not
    alike (some dense, some with experts) every stage is looked at.
    """
    layout = plan.layout
    stages = range(layout.pipeline)
    if layout.pipeline <= FEW or run.model.experts or not run.model.layers:
        return set(stages)
    first: dict[tuple[int, ...], int] = {}
    for stage in stages[1:-1]:
        chunks = stage_layers(run.model.layers, replace(plan, layout=replace(layout, pipeline_rank=stage)))
        first.setdefault(tuple(len(chunk) for chunk in chunks), stage)
    return {0, layout.pipeline - 1, *first.values()}
