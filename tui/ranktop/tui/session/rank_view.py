"""One rank as a frame shows it, and what its parts are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ranktop.budget.terms import Budget, Memory
from ranktop.probes.reading import AllocatorReading, DeviceDetail, StepTimes
from ranktop.tui.session.footprints import Footprint
from ranktop.tui.session.nodes import NODE_LOST
from ranktop.tui.session.rings import Ring
from ranktop.wire.schema import Box, Card, End, Look, Sample, Stack

SILENT_INTERVALS: Final = 3
"""A rank that missed this many intervals is silent, and its values show their age."""

GONE: Final = frozenset({"ended", "failed", "killed", "vanished"})
"""States of a rank whose process is known to be over."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Since when a category differs from its budget without a break."""

    step: int
    """Step of the first table that showed it."""
    at: float
    """Seconds on the session's clock."""
    known: bool
    """False when it differed already in the first table that was seen: it may be older."""
    sign: int


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What a rank was in when a sample was taken."""

    step: int
    """Steps finished."""
    phase: str
    positions: tuple[int | None, ...]
    """``enqueued`` of each of its process groups."""
    starved: float | None = None
    """Share of the interval in which the training thread was ready to run and had no CPU."""
    clock: int | None = None
    """Of the device's multiprocessors, MHz."""


@dataclass(frozen=True, slots=True)
class Event:
    """A mark with the time at which it was made, on the session's clock."""

    at: float
    what: str
    detail: str = ""


def end_state(end: End) -> str:
    """Return ``ended``, ``failed``, ``killed`` or ``vanished`` for the way a process ended."""
    if end.how == "signal":
        return "killed"
    if end.how == "exception" or (end.how == "exit" and end.code not in (None, 0)):
        return "failed"
    return "ended" if end.how == "exit" else "vanished"


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank as one frame shows it; nothing in it changes any more but what goes on.

    That are histories (``history``, ``footprints``, ``looks``, ``glimpses``), unless they were copied, and the ages of
    views that a session keeps (``Session.keep_views``).
    """

    rank: int
    state: str
    age: float | None
    """Seconds since its last sample, None without one."""
    card: Card | None = None
    sample: Sample | None = None
    end: End | None = None
    restart: int = 0
    steps: tuple[StepTimes, ...] = ()
    budget: Budget | None = None
    peak: str | None = None
    standing: Mapping[tuple[str, str], Standing] = field(default_factory=dict)
    """(moment, category) -> since when it differs from the budget."""
    history: Ring | None = None
    marks: tuple[Event, ...] = ()
    ended: float | None = None
    """When its end reached the hub, on the session's clock."""
    detail: DeviceDetail | None = None
    """What its device says more seldom; None before the first of it, and for a host."""
    allocator: AllocatorReading | None = None
    detail_age: float | None = None
    """Seconds since detail and allocator were heard; the ages in ``detail`` are from then."""
    footprints: Sequence[Footprint] = ()
    """Memory of the last steps that were read, oldest first."""
    looks: Sequence[Look] = ()
    """The last looks at the collectives, oldest first."""
    glimpses: Sequence[Glimpse] = ()
    """Of the last samples, oldest first."""
    stack: Stack | None = None
    """Where its training thread was when a step took much too long; None once a newer step is finished."""
    stack_at: float | None = None
    """When the stack was taken, on the session's clock."""
    box: Box | None = None
    """What it left behind when it ran out of memory."""
    boxed: float | None = None
    """When that reached the hub, on the session's clock."""
    process: str = ""
    """What its node says of its process while it is silent: ``stopped``, ``sleeping``, ... (``Mark``)."""
    validating: bool = False
    """It was seen in validation since its last step finished."""
    former: End | None = None
    """How the life before this one ended; None in a first life, and where nobody told."""
    former_box: Box | None = None
    """What the last former life that ran out of memory left behind; None once a later life leaves its own."""
    former_boxed: float | None = None
    """When that reached the hub, on the session's clock."""
    former_footprints: Sequence[Footprint] = ()
    """Memory of the last steps of that life, oldest first."""

    @property
    def stale(self) -> bool:
        """True when its values are older than the allowed number of intervals."""
        return self.state == NODE_LOST or is_stale(self.sample, self.age)

    def memory(self, moment: str | None) -> Memory | None:
        """Return the bytes at a moment of the last finished step; ``now`` and None mean the latest reading."""
        if self.sample is None:
            return None
        if moment is None or moment == "now" or self.sample.table is None:
            return self.sample.now
        return self.sample.table.moments.get(moment)


def grow_older(view: RankView, age: float | None, detail_age: float | None) -> None:
    """Set the ages of a view that a new picture shows again."""
    object.__setattr__(view, "age", age)
    object.__setattr__(view, "detail_age", detail_age)


def is_stale(sample: Sample | None, age: float | None) -> bool:
    """Tell whether a sample of that age is older than the allowed number of intervals."""
    if sample is None or age is None:
        return False
    return age > SILENT_INTERVALS * max(sample.interval, 0.1)


def device_trouble(card: Card | None, sample: Sample) -> str:
    """Return the device's state when it is one to be shown (``lost``, ``no answer``, ...), else nothing.

    A rank on its way to its device, and one without a GPU, has none that could be unavailable.
    """
    state = sample.device.state
    if state in ("lost", "reset required", "no answer"):
        return state
    return state if state == "unavailable" and card is not None and card.device.kind == "cuda" else ""
