"""A run under a strategy, answered: every kind of rank with its budget, what is sent, what fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ranktop.budget.collective import Collective
from ranktop.budget.desk import Desk
from ranktop.budget.inventory import Inventory
from ranktop.budget.model import NoRule
from ranktop.budget.plan import Layout, Plan
from ranktop.budget.run import STRATEGIES, Projection, RankBudget, Run
from ranktop.budget.strategies import plan_of
from ranktop.budget.terms import STEP, Amount, Budget

ENOUGH = 1 << 20
"""A micro-batch that nobody asks for: beyond it the search for the largest one stops."""


def compare(run: Run, strategies: tuple[str, ...] = STRATEGIES) -> tuple[Projection, ...]:
    """Return one projection per strategy, in their order. Raises BadInput."""
    desk = Desk()
    return tuple(project(run, strategy, desk) for strategy in strategies)


def project(run: Run, strategy: str, desk: Desk | None = None) -> Projection:
    """Return what a run needs under one strategy. Raises BadInput; what only this strategy cannot is ``refused``.

    ``desk``: of the comparison that this is a part of.
    """
    desk = Desk() if desk is None else desk
    try:
        plan = plan_of(run, strategy)
        ranks = tuple(_budgets(run, plan, desk))
    except NoRule as reason:
        return Projection(strategy=strategy, refused=str(reason))
    worst = max(range(len(ranks)), key=lambda i: _size(ranks[i]))
    total = ranks[worst].total
    headroom = None if total is None or run.device_memory is None else run.device_memory - total
    return Projection(
        strategy=strategy,
        ranks=ranks,
        worst=worst,
        collectives=busiest(run, plan, desk),
        fits=None if headroom is None else headroom >= 0,
        headroom=headroom,
        max_micro_batch=_largest(run, plan, ranks, desk),
        assumptions=(*plan.notes, *_left_out(run, plan, desk)),
    )


def _size(rank: RankBudget) -> int:
    """Return the total at the peak, or what is known where that is largest."""
    if rank.total is not None:
        return rank.total
    return max(sum(amount.bytes or 0 for amount in rank.budget.at(moment).values()) for moment in STEP)


def places(layout: Layout, strategy: str) -> Iterator[tuple[Layout, tuple[int, ...]]]:
    """Yield one place for each kind of rank, with the global ranks that are like it.

    Ranks count tensor parallel fastest, then context, data, pipeline. Among equal shards the last one may differ (a
    remainder, padding, the border of a flat group); it is told apart, the others go with the first.
    """
    inner = layout.tensor * layout.context
    data = layout.data
    for stage in range(layout.pipeline):
        for first, members in _data_ranks(layout, strategy):
            place = replace(
                layout, pipeline_rank=stage, shard_rank=first % layout.shard, replicate_rank=first // layout.shard
            )
            yield place, tuple([(stage * data + d) * inner + i for d in members for i in range(inner)])


def _data_ranks(layout: Layout, strategy: str) -> list[tuple[int, range]]:
    data = layout.data
    if data == 1:
        return [(0, range(1))]
    if strategy in ("dp", "ps"):
        return [(0, range(1)), (1, range(1, data))]
    if layout.replicate == 1 and layout.shard > 1:
        return [(0, range(data - 1)), (data - 1, range(data - 1, data))]
    return [(0, range(data))]


def _budgets(run: Run, plan: Plan, desk: Desk) -> Iterator[RankBudget]:
    for place, ranks in places(plan.layout, plan.strategy):
        own = replace(plan, layout=place)
        yield RankBudget(ranks=ranks, stage=place.pipeline_rank, plan=own, budget=rank_budget(run, own, desk))


def rank_budget(run: Run, plan: Plan, desk: Desk | None = None) -> Budget:
    """Return the budget of the rank that a plan of this run names. Raises NoRule, BadInput."""
    desk = Desk() if desk is None else desk
    activations, reason = desk.activations(run, plan)
    found = desk.budget(run, plan, activations)
    if activations is None:
        found = _unknown(found, "activations", reason)
        if plan.zero is None:
            found = _with_all_gradients(found)
    gathers = plan.fsdp is not None or (plan.zero is not None and plan.zero.stage == 3)
    if gathers and not run.model.family and run.inventory is None:
        found = _unknown(found, "buffers", "what is gathered at once follows from the layers, which are not known")
    return found


def inventory(run: Run, plan: Plan) -> Inventory:
    """Return the parameters of the rank that the plan names. Raises NoRule when a live job's cannot be split so."""
    if run.inventory is None or run.model.family:
        from ranktop.budget.models.place import inventory as placed

        return placed(run.model, plan)
    if plan.layout.tensor * plan.layout.pipeline * plan.layout.expert > 1:
        raise NoRule("the model's architecture is not known, so it cannot be split by layers or heads")
    return _regrouped(run.inventory, plan)


def _regrouped(found: Inventory, plan: Plan) -> Inventory:
    """A live job's parameters for another strategy: same tensors, another wrapper around them."""
    masters = plan.precision.master is not None and plan.zero is None
    dtype = plan.precision.parameters
    kinds = tuple(
        replace(
            kind,
            dtype=dtype,
            unit=max(0, kind.unit) if plan.fsdp is not None else 0,
            group=-1 if masters or not kind.trainable else 0,
            shards=None,
            shard_rank=None,
        )
        for kind in found.kinds
    )
    return replace(found, kinds=kinds)


def _with_all_gradients(budget: Budget) -> Budget:
    """Count all gradients inside backward: without activations nobody knows at which of them it is highest."""
    inside, end = budget.at("backward"), budget.at("backward_end")
    if not inside or not end or (inside["gradients"].bytes or 0) >= (end["gradients"].bytes or 0):
        return budget
    return replace(budget, moments={**budget.moments, "backward": {**inside, "gradients": end["gradients"]}})


def _unknown(budget: Budget, category: str, reason: str) -> Budget:
    """Say why a category is not known: wherever it has no bytes, and where the bytes would follow from a guess."""
    always = category == "buffers"
    moments = {
        moment: {
            name: Amount(None, reason) if name == category and (always or amount.bytes is None) else amount
            for name, amount in table.items()
        }
        for moment, table in budget.moments.items()
    }
    return replace(budget, moments=moments)


def collectives_of(run: Run, plan: Plan, desk: Desk | None = None) -> tuple[Collective, ...]:
    """Return the collectives of one step under a plan of this run."""
    from ranktop.budget.communication import collectives

    held = inventory(run, plan) if desk is None else desk.inventory(run, plan)
    return collectives(held, plan, run.model if run.model.family else None)


def _left_out(run: Run, plan: Plan, desk: Desk) -> tuple[str, ...]:
    """Say which messages the collectives leave out."""
    from ranktop.budget.communication import left_out

    if run.model.family and plan.batch.sequence_length:
        return ()
    model = run.model if run.model.family else None
    found = left_out(desk.inventory(run, plan), plan, model)
    return tuple(f"not counted in what is sent: {text}" for text in found)


def busiest(run: Run, plan: Plan, desk: Desk | None = None) -> tuple[Collective, ...]:
    """Return the collectives of one step on the rank that sends the most: of a pipeline, at its ends or between."""
    stages = range(plan.layout.pipeline)
    places = (replace(plan.layout, pipeline_rank=stage) for stage in sorted({0, *stages[1:2], stages[-1]}))
    found = [collectives_of(run, replace(plan, layout=place), desk) for place in places]
    return max(found, key=lambda collectives: sum(one.sent for one in collectives))


def _hardest(ranks: tuple[RankBudget, ...]) -> tuple[RankBudget, ...]:
    """Return the ranks that can be the first to run out as micro-batches grow.

    Along a pipeline activations in flight fall from stage to stage (1F1B) or stay (GPipe), and the last has the
    logits: between the ends only the stage that is the fullest now can be.
    """
    if len(ranks) <= 2:
        return ranks
    ends = (ranks[0].stage, ranks[-1].stage)
    fullest = max(ranks, key=_size)
    return tuple(rank for rank in ranks if rank.stage in ends or rank is fullest)


def _largest(run: Run, plan: Plan, ranks: tuple[RankBudget, ...], desk: Desk) -> int | None:
    """Return the largest micro-batch that fits every rank; None when it is unknown or has no limit.

    What a moment needs is the highest of several lines in the micro-batch: a line through two points is never above
    it beyond them, so that it leads to a first upper limit, and stepping down from there finds the answer.
    """
    batch, memory = plan.batch.micro_batch, run.device_memory
    if memory is None or batch is None or any(rank.total is None for rank in ranks):
        return None
    hardest = _hardest(ranks)

    def budgets(size: int) -> list[Budget]:
        asked = replace(run, micro_batch=size)
        batch = replace(plan.batch, micro_batch=size)
        return [rank_budget(asked, replace(each.plan, batch=batch), desk) for each in hardest]

    now, then = [each.budget for each in hardest], budgets(2 * batch)
    if not all(_fits(each, memory) for each in now):
        low, high = 0, batch
    elif not all(_fits(each, memory) for each in then):
        low, high = batch, 2 * batch
    else:
        low, high = 2 * batch, 1 + min(_limit(*pair, batch, memory) for pair in zip(now, then, strict=True))
        if high > ENOUGH:
            return None
    return _between(low, high, lambda size: all(_fits(each, memory) for each in budgets(size)))


def _fits(budget: Budget, memory: int) -> bool:
    return all((budget.total(moment) or 0) <= memory for moment in STEP)


def _limit(now: Budget, then: Budget, batch: int, memory: int) -> int:
    """Return the micro-batch at which the first line through ``batch`` and twice of it reaches the capacity."""
    best = ENOUGH
    for moment in STEP:
        here, there = now.total(moment) or 0, then.total(moment) or 0
        if there > here:
            best = min(best, 2 * batch + (memory - there) * batch // (there - here))
    return best


def _between(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number below ``high`` that fits; ``low`` does, and most often the last one does."""
    step = 1
    while high - low > 1:
        middle = max(low + 1, high - step)
        if fits(middle):
            low = middle
        else:
            high, step = middle, 2 * step
        if middle <= (low + high) // 2:
            step = max(1, (high - low) // 2)
    return low
