"""Which of the strategies that fit to look at first: the one that loses the least time per sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ranktop.tui.planning.answer import Row

LINK: Final = 50e9
"""Bytes per second that a GPU is taken to send where the user does not say: 400 Gbit/s."""

HOST_LINK: Final = 25e9
"""Bytes per second between a GPU and host memory: PCIe 4 x16, as it is reached."""

FLOPS: Final = 200e12
"""Operations per second that a GPU is taken to reach, to weigh idle GPUs against communication."""

ALIKE: Final = 1.02
"""Costs that differ by less are equal: then the one that needs less memory is better."""


def best(rows: Iterable[Row]) -> str | None:
    """Return the name of the best strategy that fits, None when none does or no capacity is known."""
    costs = [(cost, row) for row in rows if row.fits and (cost := lost_per_sample(row)) is not None]
    if not costs:
        return None
    least = min(cost for cost, _ in costs)
    alike = [row for cost, row in costs if cost <= least * ALIKE]
    return min(alike, key=lambda row: row.at_least).name


def nearest(rows: Iterable[Row]) -> Row | None:
    """Return what misses by the least, when nothing fits."""
    short = [row for row in rows if row.projection.headroom is not None]
    return max(short, key=lambda row: row.projection.headroom or 0) if short else None


def lost_per_sample(row: Row) -> float | None:
    """Return the seconds that a sample costs beyond computing on all GPUs, nothing overlapped.

    Computing on fewer GPUs, waiting in a pipeline, sending, copying to the host. 6 operations per parameter and token
    (Kaplan et al. 2020, arXiv:2001.08361), 8 with full checkpointing; a pipeline of p stages and m micro-batches in v
    chunks is idle for (p - 1)/(m v) of its work (arXiv:2104.04473).
    """
    rank = row.projection.rank
    if rank is None:
        return None
    plan, batch = rank.plan, rank.plan.batch
    layout, pipeline = plan.layout, plan.pipeline
    micro_batches = pipeline.micro_batches if pipeline else batch.accumulation or 1
    samples = (batch.micro_batch or 1) * micro_batches * layout.data
    operations = (8 if plan.checkpointing == "full" else 6) * row.parameters * (batch.sequence_length or 1) * samples
    computing = operations / (FLOPS * layout.world_size)
    idle = computing - operations / (FLOPS * max(row.run.world_size, layout.world_size))
    waiting = computing * (layout.pipeline - 1) / (micro_batches * pipeline.virtual) if pipeline else 0.0
    sending = row.projection.sent / (row.run.link or LINK)
    away = (rank.budget.host.bytes or 0) + (rank.budget.nvme.bytes or 0)
    return (idle + waiting + sending + away / HOST_LINK) / samples
