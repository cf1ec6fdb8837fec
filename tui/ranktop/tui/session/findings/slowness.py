"""Which ranks work longer than their peers, by their phases and by when they arrive at the collectives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ranktop.tui.session.findings.arrival import Arrival
from ranktop.tui.session.findings.arrival import of as arrivals
from ranktop.tui.session.findings.groups import FEW
from ranktop.tui.session.findings.limits import Limits
from ranktop.tui.session.findings.pace import PHASES, Median, Pace, Paced, median, spread_of
from ranktop.tui.session.findings.pace import of as paces
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.signs import LEAST_CHANCE, NOTHING, Sign, at_least, both
from ranktop.tui.session.findings.signs import of as of_phases
from ranktop.tui.session.findings.within_step import phase_behind
from ranktop.wire.schema import LOOK_SECONDS

SPREADS: Final = 5.0
"""Robust spreads of the group's medians by which a rank must be away."""

ERRORS: Final = 4.5
"""Standard errors of its own median by which it must be away."""

LAG_OF_FEW: Final = 1.25
"""How much larger than the limit for few ranks the share of the time must be in which two or three wait for one."""

LAG_ERRORS: Final = 4.0
"""Standard errors of that share by which it must be away, among so few."""

CHANCE: Final = 1e-4
"""Probability, over all ranks of a job, of what must not be chance."""

EASED: Final = 100.0
"""How much likelier it may be for a finding that stands."""

NOW_AND_THEN: Final = 0.4
"""Share of the waiting for a rank that outliers of its work may make up for: beyond it is not slow, but seldom late."""

BESIDE: Final = 1e-3
"""Chance of what the phases say below which they show that it lasts, where looks are few."""

SHORT_OF_CPUS: Final = 0.1
"""Share of the time without a CPU, of most of two or three ranks, from which on their phases must show it as well."""

STARVED: Final = 2.0
"""How much larger the limit is for such ranks: a scheduler favours one of them for many seconds."""

CONTRADICTS: Final = 0.25
"""Share of what its phases seem to show for which a rank must at least be waited for, where the looks see another."""

LATELY: Final = 8
"""Newest steps by which the phase is told while the looks alone show a rank."""

LATELY_EXPLAINS: Final = 0.5
"""Share of the cost that a phase must make up for in them."""

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
    sign: Sign = NOTHING
    """What speaks for it beside the looks."""

    @property
    def rank(self) -> int:
        """Its number."""
        return self.pace.rank

    @property
    def cost(self) -> float:
        """Seconds of each step in which the others wait for it."""
        return self.estimate.value

    @property
    def estimate(self) -> Median:
        """``cost`` with its standard error, 0 where phases show it.

        What phases show is exact; the looks count instead where they show clearly more, as when backward is longer too.
        """
        if self.arrival is None:
            return Median(self.gap, 0.0)
        step, by = self.paced.step, self.arrival
        seen = _weighed(
            Median(by.lag * step, by.error * step), self.sign.cost(self.pace) if self.sign.computing else None
        )
        errors = 1 if self.sign.computing else 2
        more = seen.value - errors * seen.error > 1.25 * self.gap
        return seen if self.gap == 0 or (more and by.exact) else Median(self.gap, 0.0)

    @property
    def beyond(self) -> bool:
        """Whether it also is slow in phases in which ranks wait for each other, which its own phases don't show."""
        return self.gap > 0 and self.cost > self.gap

    def excess(self, phase: str) -> float:
        """Return the seconds by which a phase is longer than its peers'."""
        return self.pace.phase(phase) - self.paced.middle(self.rank, phase)

    @property
    def phase(self) -> str:
        """The phase that holds most of the gap, or in which the others wait for it; empty where neither tells."""
        if self.way:
            return max(self.way, key=self.excess)
        lately = max(self.paced.ways[0], key=self._lately)
        if self._lately(lately) >= LATELY_EXPLAINS * self.cost:
            return lately
        behind = phase_behind(self.pace.view.glimpses, self.arrival) if self.arrival is not None else ""
        # Its samples tell where it usually is at that position; where nobody waits, a longer phase would be seen.
        alone = ("data", "forward", "optimizer") if self.paced.overlapping else self.paced.ways[-1]
        return "" if behind in alone else behind

    def _lately(self, phase: str) -> float:
        """Return the seconds by which a phase is longer than its peers' in the newest steps: it may have begun then."""
        peers = median([median(peer.column((phase,))[-LATELY:]) for peer in self.paced.others(self.rank)])
        return median(self.pace.column((phase,))[-LATELY:]) - peers


def of(scene: Scene) -> tuple[Slow, ...]:
    """Return the slow ranks, by rank."""
    return scene.once("slowness", _slow)


def _slow(scene: Scene) -> tuple[Slow, ...]:
    standing = {rank for rule, _, ranks in scene.standing if rule == "straggler" for rank in ranks}
    coming = arrivals(scene)
    found: dict[int, Slow] = {}
    for paced in paces(scene):
        for slow in _by_phases(paced, standing, scene.limits):
            known = found.get(slow.rank)
            if (known is None or slow.gap > known.gap) and not _waits_itself(slow, coming, scene.limits):
                found[slow.rank] = slow
        for rank in coming.keys() & paced.members.keys():
            late = _late(coming[rank], paced.members[rank], paced, scene.limits, stands=rank in standing)
            known = found.get(rank)
            if late is not None and (known is not None or not _short_of_cpus(paced)):
                found[rank] = late if known is None else replace(known, arrival=late.arrival, sign=late.sign)
    return tuple(found[rank] for rank in sorted(found))


def _waits_itself(slow: Slow, coming: Mapping[int, Arrival], limits: Limits) -> bool:
    """Tell whether the looks show that the others do not wait for this rank, but for another one.

    A script's own collective (of a loss, of a flag) has ranks wait in a phase that holds own work elsewhere.
    """
    own = coming.get(slow.rank)
    waited = own.lag if own is not None else 0.0
    if waited >= CONTRADICTS * slow.gap / slow.paced.step:
        return False
    return any(
        coming[rank].lag >= max(limits["straggler.min_share"], 2 * waited)
        for rank in coming.keys() & slow.paced.members.keys()
    )


def _short_of_cpus(paced: Paced) -> bool:
    """Tell whether most of few ranks wait for a CPU: who comes last is who was not let run, now one, now the other."""
    starved = [
        median(known)
        for pace in (paced.members.values() if paced.few else ())
        if (known := [one.starved for one in pace.view.glimpses if one.starved is not None])
    ]
    # Both of two, two of three: one alone that starves is slow for that very reason.
    return bool(starved) and sorted(starved)[(len(starved) - 1) // 2] >= SHORT_OF_CPUS


def _by_phases(paced: Paced, standing: set[int], limits: Limits) -> Iterator[Slow]:
    few = limits["straggler.min_share_of_few"]
    share = STARVED * few if _short_of_cpus(paced) else few if paced.few else limits["straggler.min_share"]
    floor = share * paced.step
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


def _late(arrival: Arrival, pace: Pace, paced: Paced, limits: Limits, *, stands: bool) -> Slow | None:
    """Return a rank as slow when what the looks say of it, and what its phases say beside them, is not chance."""
    ease = STANDING if stands else 1.0
    if arrival.members < FEW or paced.few:
        # Looks into one and the same step are one event: who is late in it is so in all of them.
        error = arrival.error * math.sqrt(max(1.0, paced.step / LOOK_SECONDS))
        least = ease * max(LAG_OF_FEW * limits["straggler.min_share_of_few"], LAG_ERRORS * error)
        return Slow(pace, paced, arrival=arrival) if arrival.lag >= least and _all_along(arrival, least, 3) else None
    limit = CHANCE * (EASED if stands else 1.0) / len(paced.members)
    looks = at_least(arrival.events, arrival.looks, min(0.9, arrival.usual))
    if both(looks, LEAST_CHANCE) > limit:
        return None
    sign = of_phases(pace, paced)
    slow = Slow(pace, paced, arrival=arrival, sign=sign)
    if min(looks, both(looks, sign.chance)) > limit or slow.cost < ease * limits["straggler.min_share"] * paced.step:
        return None
    lasts = _all_along(arrival, limits["straggler.min_share"] / 2, 2 if sign.chance < BESIDE else 3)
    return slow if lasts and not _now_and_then(slow) else None


def _all_along(arrival: Arrival, floor: float, quarters: int) -> bool:
    """Tell whether it was waited for in so many quarters of the time."""
    return sum(quarter - arrival.peers >= floor / 2 for quarter in arrival.quarters) >= quarters


def _now_and_then(slow: Slow) -> bool:
    """Tell whether it is late in few steps only, and then much: a rank that logs or saves every so often.

    The mean of its work outside of waiting is then above the median, by much of what the others wait for.
    """
    way = next((way for way in slow.paced.ways if "forward" not in way and "data" in way), None)
    if way is None or slow.arrival is None:
        return False
    peers = slow.paced.others(slow.rank)
    skew = _skew(slow.pace.all_steps(way)) - median([_skew(peer.column(way)) for peer in peers[:: 1 + len(peers) // 8]])
    return skew >= NOW_AND_THEN * slow.arrival.lag * slow.paced.step


def _skew(values: Sequence[float]) -> float:
    return sum(values) / len(values) - median(values) if values else 0.0


def _weighed(one: Median, other: Median | None) -> Median:
    """Return the mean of two estimates by their weights; the first alone when they contradict each other."""
    if other is None or abs(one.value - other.value) > 2 * math.hypot(one.error, other.error):
        return one
    weights = one.error**-2, other.error**-2
    return Median((weights[0] * one.value + weights[1] * other.value) / sum(weights), sum(weights) ** -0.5)


def costliest(found: Mapping[int, Slow] | tuple[Slow, ...]) -> float:
    """Return the seconds per step that the slowest of them costs; 0 for none."""
    slow = found.values() if isinstance(found, Mapping) else found
    return max((one.cost for one in slow), default=0.0)
