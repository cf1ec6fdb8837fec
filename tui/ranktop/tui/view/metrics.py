"""What the grid of all ranks can be coloured by: one number per rank, and how far it is from those of its peers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from ranktop.tui.session.findings.groups import peer_groups
from ranktop.tui.session.gauges import Gauges
from ranktop.tui.session.rank_view import GONE, RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.metric_times import arrival_lags, own_work
from ranktop.tui.view.scale import PROCESS, shown
from ranktop.tui.view.text import GIB, MIB

STEPS: Final = 16
"""Steps over which times and tokens are taken."""

LEVELS: Final = 10
"""Shades: 0 is far below the median of the peers, 4 and 5 are at it, 9 is far above."""

Values = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number per rank."""

    key: str
    title: str
    unit: str
    """``B``, ``s``, ``%``, ``W``, ``°C``, ``MHz``, ``tokens``."""
    values: Callable[[Snapshot], Values]
    """Rank -> value; a rank whose value is unknown or old is left out."""
    share: float
    """Least distance that the scale spans, as a share of the median: noise stays pale."""
    least: float = 0.0
    """... and in the metric's unit."""
    zero: bool = False
    """Distances are from zero, not from the median: the metric is a difference already."""


@dataclass(frozen=True, slots=True)
class Field:
    """The values of a metric with what they are held against."""

    metric: Metric
    values: Values
    middles: Values
    """Rank -> median of its peers; without those that have no group."""
    reach: float
    """Distance from the middle that has the strongest shade."""
    groups: int = 1
    order: tuple[int, ...] = field(default_factory=tuple)
    """Ranks with a value, the smallest first."""

    def away(self, rank: int) -> float | None:
        """Return how far a rank is from its peers; None where that is not known."""
        value, middle = self.values.get(rank), self.middles.get(rank)
        return None if value is None or middle is None else value - middle

    def level(self, rank: int) -> int | None:
        """Return a rank's shade, 0 to 9; None where there is nothing to compare."""
        away = self.away(rank)
        if away is None or not self.reach:
            return None if away is None else LEVELS // 2
        return max(0, min(LEVELS - 1, math.floor((away / self.reach + 1) * LEVELS / 2)))


def field_of(metric: Metric, snapshot: Snapshot) -> Field:
    """Read a metric of all ranks and lay each value beside those of its peers."""
    values = {rank: value for rank, value in metric.values(snapshot).items() if abs(value) < 1e300}
    groups = peer_groups(snapshot.ranks)
    middles: dict[int, float] = {}
    for group in groups:
        known = [values[rank] for rank in group.ranks if rank in values]
        if known:
            middle = 0.0 if metric.zero else median(known)
            middles.update(dict.fromkeys(group.ranks, middle))
    aways = [abs(value - middles[rank]) for rank, value in values.items() if rank in middles]
    usual = median(abs(middle) for middle in middles.values()) if middles else 0.0
    reach = max([metric.share * usual, metric.least, *aways])
    order = tuple(sorted(values, key=lambda rank: (values[rank], rank)))
    return Field(metric, values, middles, reach, len(groups), order)


def speaking(snapshot: Snapshot) -> list[RankView]:
    """Return the ranks whose values are of now."""
    return [view for view in snapshot.ranks if view.sample is not None and not view.stale and view.state not in GONE]


def _memory(snapshot: Snapshot) -> Values:
    out: dict[int, float] = {}
    for view in speaking(snapshot):
        memory = view.memory(view.peak)
        known = [value for name in PROCESS if memory is not None and (value := getattr(memory, name)) is not None]
        if known:
            out[view.rank] = float(sum(known))
    return out


def _difference(snapshot: Snapshot) -> Values:
    rows = ((view.rank, shown(view, "peak").total_delta) for view in speaking(snapshot) if view.budget is not None)
    return {rank: float(delta) for rank, delta in rows if delta is not None}


def _of_steps(name: str) -> Callable[[Snapshot], Values]:
    def values(snapshot: Snapshot) -> Values:
        out: dict[int, float] = {}
        for view in speaking(snapshot):
            known = [value for step in view.steps[-STEPS:] if (value := getattr(step, name)) is not None]
            if known:
                out[view.rank] = float(median(known) if name == "seconds" else sum(known) / len(known))
        return out

    return values


def _of_device(name: str) -> Callable[[Snapshot], Values]:
    def values(snapshot: Snapshot) -> Values:
        out: dict[int, float] = {}
        for view in speaking(snapshot):
            value = getattr(view.sample.device, name) if view.sample is not None else None
            if value is None:
                continue
            gauges = Gauges.of(view)
            if gauges is not None and gauges.old(name) is None:
                out[view.rank] = float(value)
        return out

    return values


METRICS: Final = (
    Metric("memory", "memory", "B", _memory, 0.06, 32 * MIB),
    Metric("difference", "difference to expected", "B", _difference, 0.0, 0.5 * GIB, zero=True),
    Metric("own", "own work", "s", own_work, 0.06, 0.002),
    Metric("tokens", "tokens", "tokens", _of_steps("tokens"), 0.06, 1.0),
    Metric("power", "power", "W", _of_device("power"), 0.25, 50.0),
    Metric("temperature", "temperature", "°C", _of_device("temperature"), 0.0, 15.0),
    Metric("clock", "clocks", "MHz", _of_device("sm_clock"), 0.10, 150.0),
    Metric("arrival", "arrival lag", "%", arrival_lags, 0.0, 15.0, zero=True),
    Metric("step", "step time", "s", _of_steps("seconds"), 0.06, 0.002),
)  # fmt: skip
"""In the order in which a key goes through them."""
