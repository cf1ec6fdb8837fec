"""A sample in compact form: the one rule by which hub and viewer make the points of a rank's history."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from ranktop.budget.live_choice import ALLOCATED
from ranktop.budget.terms import STATES, Memory
from ranktop.wire.progress import loss_step
from ranktop.wire.schema import Point, Sample

HISTORY_SECONDS: Final = 1800.0
"""Of each rank that hubs hold, and viewers are told at first."""

_FULL_RATE_RANKS: Final = 256
"""Up to this many ranks each keeps a point a second (57 MB in all); more ranks keep fewer points each."""

_JITTER: Final = 0.1
"""Seconds by which a sample may come early and still count as a second after the one before."""

_STATES: Final = attrgetter(*STATES)
_TENSORS: Final = attrgetter(*ALLOCATED)
_RESERVED: Final = attrgetter(*ALLOCATED, "cache")

LARGEST: Final = 2**63 - 1
"""The largest integer that SQLite takes; a sum of absurd values still has to fit into a message and a recording."""


def point_spacing(ranks: int) -> float:
    """Return the seconds from one point of a rank to its next, at least, in a job of so many ranks."""
    return max(1.0, ranks / _FULL_RATE_RANKS) - _JITTER


def point_of(sample: Sample, t: float) -> Point:
    """Reduce a sample to its point; states and activations are those of the peak moment of its last step."""
    peak = _peak(sample)
    now = sample.now
    progress = sample.progress
    used = now.used()
    return Point(
        t=t,
        step=sample.step,
        step_s=sample.steps[-1].seconds if sample.steps else None,
        used=sample.device.used if used is None else used,
        states=_sum(_STATES(peak)),
        activations=peak.activations,
        reserved=_sum(_RESERVED(now)),
        utilization=sample.device.utilization,
        power=sample.device.power,
        temperature=sample.device.temperature,
        after=_after(sample),
        loss=progress.loss if progress is not None else None,
        learning_rate=progress.learning_rate if progress is not None else None,
        loss_step=loss_step(progress) if progress is not None else None,
    )  # fmt: skip


def _peak(sample: Sample) -> Memory:
    if sample.table is None or not sample.table.moments:
        return sample.now
    return max(sample.table.moments.values(), key=_allocated)


def _after(sample: Sample) -> int | None:
    """Return what the last step read left behind, as seen at its end or else at the start of a step."""
    moments = sample.table.moments if sample.table is not None else {}
    left = moments.get("step_end") or moments.get("step_start")
    return _sum(_TENSORS(left)) if left is not None else None


def _allocated(memory: Memory) -> int:
    known = _TENSORS(memory)
    total: int = sum(known) if None not in known else sum(size for size in known if size is not None)
    return max(-LARGEST, min(total, LARGEST))


def _sum(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    total = sum(known)
    if -LARGEST <= total <= LARGEST:
        return total if known else None
    return LARGEST if total > 0 else -LARGEST
