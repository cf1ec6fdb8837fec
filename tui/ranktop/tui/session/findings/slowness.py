"""Which ranks work longer than their peers, by their phases and by when they arrive at the collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ranktop.tui.session.findings.arrival import Arrival
from ranktop.tui.session.findings.arrival import of as arrivals
from ranktop.tui.session.findings.groups import FEW
from ranktop.tui.session.findings.pace import PHASES, Pace, Paced, median, spread_of
from ranktop.tui.session.findings.pace import of as paces
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.within_step import phase_behind

FLOOR: Final = 0.04
"""Share of the step time from which more own work is told."""

FLOOR_OF_FEW: Final = 0.08
"""... among two or three ranks."""

SPREADS: Final = 5.0
"""Robust spreads of the group's medians by which a rank must be away."""

ERRORS: Final = 4.5
"""Standard errors of its own median by which it must be away."""

LAG: Final = 0.05
"""Share of the time from which being waited for is told."""

LAG_OF_FEW: Final = 0.1

LAG_ERRORS: Final = 4.0

STANDING: Final = 0.7
"""Share of all limits that keeps a finding that was there at the last look."""


@dataclass(frozen=True, slots=True)
class Slow:
    """One rank that others wait for in most steps."""

    pace: Pace
    paced: Paced
    gap: float = 0.0
    """Seconds of own work beyond its peers' in each step, as far as its phases show it; 0: they don't."""
    spreads: float | None = None
    """The gap in robust spreads of the group."""
    way: tuple[str, ...] = ()
    """Phases in which the gap is seen."""
    arrival: Arrival | None = None
    """When the looks show it as well, or alone."""

    @property
    def rank(self) -> int:
        """Its number."""
        return self.pace.rank

    @property
    def cost(self) -> float:
        """Seconds of each step in which the others wait for it.

        What phases show is exact; the looks count instead where they show clearly more, as when backward is longer too.
        """
        if self.arrival is None:
            return self.gap
        lag = self.arrival.lag * self.paced.step
        more = lag - 2 * self.arrival.error * self.paced.step > 1.25 * self.gap
        return lag if self.gap == 0 or (more and self.arrival.exact) else self.gap

    def excess(self, phase: str) -> float:
        """Return the seconds by which a phase is longer than its peers'."""
        return self.pace.phase(phase) - self.paced.middle(self.rank, phase)

    @property
    def phase(self) -> str:
        """The phase that holds most of the gap, or in which the others wait for it; empty where neither tells."""
        if self.way:
            return max(self.way, key=self.excess)
        return phase_behind(self.pace.view.glimpses, self.arrival) if self.arrival is not None else ""


def of(scene: Scene) -> tuple[Slow, ...]:
    """Return the slow ranks, by rank."""
    return scene.once("slowness", _slow)


def _slow(scene: Scene) -> tuple[Slow, ...]:
    standing = {rank for rule, _, ranks in scene.standing if rule == "straggler" for rank in ranks}
    coming = arrivals(scene)
    found: dict[int, Slow] = {}
    for paced in paces(scene):
        for slow in _by_phases(paced, standing):
            known = found.get(slow.rank)
            if known is None or slow.gap > known.gap:
                found[slow.rank] = slow
        for rank in coming.keys() & paced.members.keys():
            if _late(coming[rank], rank in standing):
                found[rank] = replace(found.get(rank, Slow(paced.members[rank], paced)), arrival=coming[rank])
    return tuple(found[rank] for rank in sorted(found))


def _by_phases(paced: Paced, standing: set[int]) -> Iterator[Slow]:
    floor = (FLOOR_OF_FEW if paced.few else FLOOR) * paced.step
    for index, way in enumerate(paced.ways):
        own = [(pace, pace.own[index]) for pace in paced.members.values()]
        values = [one.value for _, one in own]
        middle = median(values)
        typical = median([one.error for _, one in own])
        spread = 0.0 if paced.few else spread_of(values, middle)
        least = STANDING * max(floor, SPREADS * max(spread, typical))
        for pace, one in own:
            if paced.few:
                middle = median([other.value for peer, other in own if peer is not pace])
            away = one.value - middle
            if away < least:
                continue
            ease = STANDING if pace.rank in standing else 1.0
            if away < ease * max(least / STANDING, ERRORS * one.error):
                continue
            slow = Slow(pace, paced, away, away / max(spread, typical, 1e-9), way)
            if _lasting(slow, middle, ease * floor) and _waited_for(slow):
                yield slow


def _lasting(slow: Slow, middle: float, floor: float) -> bool:
    """Tell whether it holds in both halves of the window, so that a few spikes or a short trouble are no straggler."""
    return all(half - middle >= floor / 2 for half in slow.pace.halves(slow.way))


def _waited_for(slow: Slow) -> bool:
    """Tell whether the rank waits less for it in the other phases: else its step is longer and nobody waits."""
    rest = [phase for phase in PHASES if phase not in slow.way]
    others = median([pace.phase(*rest) for pace in slow.paced.others(slow.rank)])
    return others - slow.pace.phase(*rest) >= slow.gap / 2


def _late(arrival: Arrival, stands: bool) -> bool:
    ease = STANDING if stands else 1.0
    floor = ease * (LAG if arrival.members >= FEW else LAG_OF_FEW)
    if arrival.lag < max(floor, ease * LAG_ERRORS * arrival.error):
        return False
    return sum(quarter - arrival.peers >= floor / 2 for quarter in arrival.quarters) >= 3


def costliest(found: Mapping[int, Slow] | tuple[Slow, ...]) -> float:
    """Return the seconds per step that the slowest of them costs; 0 for none."""
    slow = found.values() if isinstance(found, Mapping) else found
    return max((one.cost for one in slow), default=0.0)
