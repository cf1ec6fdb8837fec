"""What a rank's memory was, step after step, in the little that the rules need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from ranktop.budget.terms import Memory
from ranktop.tui.session.expected import ALLOCATED
from ranktop.wire.schema import Sample

KEPT: Final = 40
"""Footprints per rank, about as many as the hub sends to a new viewer."""

KEPT_OF_MANY: Final = 12
"""... in a job of more than ``MANY`` ranks."""

MANY: Final = 256

RESTING: Final = ("step_end", "step_start")
"""Moments at which only that is held which a step leaves behind, the better first."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """One step that was read."""

    step: int
    at: float
    """When it ended, seconds on the session's clock."""
    first: bool
    """The optimizer's state appeared in it."""
    moment: str
    """Its peak moment."""
    peak: Memory
    """At that moment."""
    rest: Memory | None
    """What the step left behind: ``step_end``, else ``step_start``; None when neither was seen."""
    moments: Mapping[str, Memory]
    reserved: int | None
    """By the allocator, when the sample was taken."""
    inactive_split: int | None
    retries: int | None
    tokens: int | None
    """In the micro-batches of that step."""


_RESERVED: Final = attrgetter(*ALLOCATED, "cache")


def footprint(sample: Sample, moment: str | None, at: float) -> Footprint | None:
    """Return the footprint of the step in a sample that was heard at ``at`` and peaks at ``moment``; None without."""
    table = sample.table
    if table is None or moment is None:
        return None
    known = [part for part in _RESERVED(sample.now) if part is not None]
    tokens = [step.tokens for step in sample.steps if step.index == table.step]
    return Footprint(
        step=table.step,
        at=at - table.age,
        first=table.first,
        moment=moment,
        peak=table.moments[moment],
        rest=table.moments.get(RESTING[0]) or table.moments.get(RESTING[1]),
        moments=table.moments,
        reserved=sum(known) if known else None,
        inactive_split=sample.inactive_split,
        retries=sample.retries,
        tokens=tokens[-1] if tokens else None,
    )
