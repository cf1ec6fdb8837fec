"""Which of the strategies that fit to look at first: the simplest of those that lose the least time per sample."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from ranktop.budget.planning import bands

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ranktop.budget.fitting.cost import Speeds, Work
    from ranktop.budget.planning.answer import Row

ALIKE: Final = 1.05
"""Costs that differ by less are equal: then the simpler strategy is better."""

LITTLE: Final = 0.01
"""So is a cost that is more by less than this share of a sample's computation."""

CALL: Final = 20e-6
"""Seconds that a collective is taken to cost however little it sends: launch and latency."""

BLOCK: Final = 0.5e-3
"""Seconds that forward and backward of one block take however small it is: to launch its kernels, eagerly."""

_SIMPLE: Final = (
    ("single",), ("ddp",), ("zero1", "fsdp-full", "fsdp-grad-op"), ("zero2", "fsdp-hybrid"), ("zero3",),
    ("tp", "pp-gpipe", "pp-1f1b", "3d"), ("dp", "ps"),
)  # fmt: skip
"""The simplest to set up first; what offloads comes behind them."""


def best(rows: Iterable[Row], device: str = "") -> str | None:
    """Return the name of the best strategy that fits, None when none does or no capacity is known."""
    fitting = [row for row in rows if row.fits and row.projection.rank is not None]
    if not fitting:
        return None
    from ranktop.budget.fitting.cost import speeds, work

    run = fitting[0].run
    at = speeds(run.link, device, several_nodes=run.world_size > run.gpus_per_node)
    per_token = work(run.model, run.sequence_length or run.model.positions)
    costs = [(lost_per_sample(row, at, per_token), row) for row in fitting]
    tokens = run.sequence_length or run.model.positions or 1
    least_work = max(3 * per_token.whole * tokens / at.flops, BLOCK * run.model.layers / run.micro_batch)
    little = LITTLE * least_work / run.world_size
    least = min(cost for cost, _ in costs)
    alike = [row for cost, row in costs if cost <= max(least * ALIKE, least + little)]
    return min(alike, key=lambda row: (_tight(row), _level(row.name), row.at_least)).name


def _tight(row: Row) -> bool:
    """Say whether a row fits only if its budget is right to less than its own error."""
    return (row.projection.headroom or 0) < bands.margin_of(row.amounts)


def _level(name: str) -> int:
    return next((level for level, names in enumerate(_SIMPLE) if name in names), len(_SIMPLE))


def nearest(rows: Iterable[Row]) -> Row | None:
    """Return what misses by the least, when nothing fits."""
    short = [row for row in rows if row.projection.headroom is not None]
    return max(short, key=lambda row: row.projection.headroom or 0) if short else None


def lost_per_sample(row: Row, at: Speeds, per_token: Work) -> float:
    """Return the seconds that a sample costs beyond computing on all GPUs, nothing overlapped.

    Sending, copying to the host, waiting in a pipeline as the search for plans reckons them, what every call costs
    beside its bytes, and GPUs without work.
    """
    from ranktop.budget.fitting import cost
    from ranktop.budget.project import inventory

    rank = row.projection.rank
    if rank is None:
        return inf
    run, plan = row.run, rank.plan
    layout, batch = plan.layout, plan.batch
    samples = (batch.micro_batch or 1) * plan.micro_batches
    tokens = samples * (batch.sequence_length or 1) / (layout.tensor * layout.pipeline * layout.context)
    launching = BLOCK * per_token.layers / layout.pipeline
    computing = max(3 * per_token.whole * tokens / at.flops, plan.micro_batches * launching)
    idle = computing * (1 - layout.world_size / max(run.world_size, layout.world_size))
    offloaded = bool(rank.budget.host.bytes or rank.budget.nvme.bytes)
    copying = cost.copying(plan, inventory(run, plan), at) if offloaded else 0.0
    sending = cost.sending(plan, row.projection.collectives, at, run.gpus_per_node)
    sending += CALL * sum(one.calls for one in row.projection.collectives)
    waiting = cost.waiting(plan, per_token, samples, at)
    if plan.pipeline is not None:
        waiting = max(waiting, (layout.pipeline - 1) / plan.pipeline.virtual * launching)
    return (idle + sending + copying + waiting) / (samples * layout.data)
