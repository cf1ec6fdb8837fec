"""Which of the strategies that fit to look at first: the one that loses the least time per sample."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ranktop.budget.fitting.cost import Speeds, Work
    from ranktop.tui.planning.answer import Row

ALIKE: Final = 1.02
"""Costs that differ by less are equal: then the one that needs less memory is better."""


def best(rows: Iterable[Row], device: str = "") -> str | None:
    """Return the name of the best strategy that fits, None when none does or no capacity is known."""
    fitting = [row for row in rows if row.fits and row.projection.rank is not None]
    if not fitting:
        return None
    from ranktop.budget.fit import speeds
    from ranktop.budget.fitting.cost import work

    run = fitting[0].run
    at = speeds(run.link, device, several_nodes=run.world_size > run.gpus_per_node)
    per_token = work(run.model, run.sequence_length or run.model.positions)
    costs = [(lost_per_sample(row, at, per_token), row) for row in fitting]
    least = min(cost for cost, _ in costs)
    alike = [row for cost, row in costs if cost <= least * ALIKE]
    return min(alike, key=lambda row: row.at_least).name


def nearest(rows: Iterable[Row]) -> Row | None:
    """Return what misses by the least, when nothing fits."""
    short = [row for row in rows if row.projection.headroom is not None]
    return max(short, key=lambda row: row.projection.headroom or 0) if short else None


def lost_per_sample(row: Row, at: Speeds, per_token: Work) -> float:
    """Return the seconds that a sample costs beyond computing on all GPUs, nothing overlapped.

    Sending, copying to the host, waiting in a pipeline as the search for plans reckons them, and GPUs without work.
    """
    from ranktop.budget.fitting import cost
    from ranktop.budget.project import inventory

    rank = row.projection.rank
    if rank is None:
        return inf
    run, plan = row.run, rank.plan
    layout, batch = plan.layout, plan.batch
    micro_batches = plan.pipeline.micro_batches if plan.pipeline else batch.accumulation or 1
    samples = (batch.micro_batch or 1) * micro_batches
    tokens = samples * (batch.sequence_length or 1) / (layout.tensor * layout.pipeline * layout.context)
    idle = 3 * per_token.whole * tokens / at.flops * (1 - layout.world_size / max(run.world_size, layout.world_size))
    offloaded = bool(rank.budget.host.bytes or rank.budget.nvme.bytes)
    copying = cost.copying(plan, inventory(run, plan), at) if offloaded else 0.0
    sending = cost.sending(plan, row.projection.collectives, at, run.gpus_per_node)
    return (idle + sending + copying + cost.waiting(plan, per_token, samples, at)) / (samples * layout.data)
