"""What speaks for a rank being slow beside the looks: phases without waiting and tokens, too small to be told alone.

A rank that computes more slowly does so in its optimizer as well. That costs little, but among many peers it is seen
with a certainty that looks at the collectives reach only after minutes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ranktop.tui.session.findings.pace import Median, Pace, Paced, median, spread_of

LEAST_RATIO: Final = 0.02
"""How much more it must be to say anything."""

LEAST_CHANCE: Final = 1e-6
"""Chance below which no sign is."""

UNEVEN: Final = 0.25
"""How far from proportional the phases of a slow rank may be to each other, as a share (standard error)."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that a rank has or needs more of than its peers."""

    name: str
    """Phases, or ``tokens``."""
    chance: float
    """Probability of that for a sound rank."""
    ratio: float
    """How much more than its peers' it is, as a share."""
    error: float
    """Standard error of ``ratio``."""
    computing: bool
    """Whether all that the rank computes is likely to take as much longer."""

    def cost(self, pace: Pace) -> Median:
        """Return the seconds of each step by which computing is longer, when it is so everywhere alike.

        The rank that works longest waits least, so its own phases come closest to what it computes.
        """
        phases = ("forward", "backward") if self.name == "tokens" else ("forward", "backward", "optimizer")
        busy = pace.phase(*phases)
        more = self.ratio / (1 + self.ratio) * busy
        return Median(more, math.hypot(self.error * busy / (1 + self.ratio) ** 2, UNEVEN * more))


NOTHING: Final = Sign("", 1.0, 0.0, 0.0, computing=False)


def of(pace: Pace, paced: Paced) -> Sign:
    """Return the strongest sign; of chance 1 when there is none, and among so few that there is no spread."""
    if paced.few:
        return NOTHING
    signs = [_of_way(pace, paced, index) for index in range(len(paced.ways))]
    signs.append(_of_tokens(pace, paced))
    best = min(signs, key=lambda one: one.chance)
    # The best of several is found by chance more often than each.
    chance = min(1.0, best.chance * len(signs))
    return Sign(best.name, chance, best.ratio, best.error, best.computing)


def _of_way(pace: Pace, paced: Paced, index: int) -> Sign:
    way, own = paced.ways[index], pace.own[index]
    values, middle, spread = _typical(paced, index)
    spread = max(spread, own.error)
    # With data in it the sum is no measure of how fast the rank computes.
    computing = way == ("optimizer",)
    return _sign(" and ".join(way), own, middle, values, spread, itself=1, computing=computing)


def _typical(paced: Paced, index: int) -> tuple[list[float], float, float]:
    """Return (own work of all members by one way, rising; its middle; what is usual to be away from it)."""
    known: dict[int, tuple[list[float], float, float]] = paced.worked_out.setdefault("typical", {})
    if index not in known:
        own = [one.own[index] for one in paced.members.values()]
        values = sorted(one.value for one in own)
        middle = median(values)
        known[index] = values, middle, max(spread_of(values, middle), median([one.error for one in own]))
    return known[index]


def _of_tokens(pace: Pace, paced: Paced) -> Sign:
    own = _tokens(pace)
    known = [one for other in paced.others(pace.rank) if (one := _tokens(other)) is not None]
    if own is None or len(known) < 3:
        return NOTHING
    values = sorted(one.value for one in known)
    middle = median(values)
    spread = max(spread_of(values, middle), median([one.error for one in known]), own.error)
    return _sign("tokens", own, middle, values, spread, itself=0, computing=True)


def _tokens(pace: Pace) -> Median | None:
    values = sorted(float(one) for one in pace.tokens if one is not None)
    count = len(values)
    if count < 4:
        return None
    spread = 0.7413 * (values[-1 - count // 4] - values[count // 4])
    return Median(median(values), 1.2533 * spread / math.sqrt(count))


def _sign(
    name: str, own: Median, middle: float, values: Sequence[float], spread: float, *, itself: int, computing: bool
) -> Sign:
    """``values``: of the peers, rising, among them ``itself`` that are the rank's own."""
    away = own.value - middle
    if middle <= 0 or away < LEAST_RATIO * middle:
        return NOTHING
    # However far away it is: where some peers are nearly as far, it is a kind of ranks and nothing odd.
    alike = (len(values) - bisect_left(values, middle + away / 2) - itself) / max(1, len(values))
    chance = max(LEAST_CHANCE, _tail(away / max(spread, 1e-3 * middle)), alike)
    return Sign(name, chance, away / middle, spread / middle, computing)


def _tail(z: float) -> float:
    """Return the chance to be so many robust spreads above the middle, with the heavy tails of real clusters.

    Student's distribution with 4 degrees of freedom: 3.7e-3 at 5 spreads, 2.8e-4 at 10, 1.8e-5 at 20.
    """
    part = 1 + z * z / 4
    return max(0.0, 0.5 - 0.375 * z / math.sqrt(part) * (1 - z * z / (12 * part)))


def at_least(events: int, looks: int, share: float) -> float:
    """Return the chance to be waited for so often in so many looks, where it happens in ``share`` of them."""
    if events <= 0:
        return 1.0
    term = (1 - share) ** looks
    below = term
    for count in range(1, events):
        term *= (looks - count + 1) / count * share / (1 - share)
        below += term
    if below < 0.99999:
        return max(0.0, 1 - below)
    # Far out the difference to 1 is lost: the tail itself, which falls fast.
    total = 0.0
    for count in range(events, looks + 1):
        term *= (looks - count + 1) / count * share / (1 - share)
        total += term
        if term < 1e-6 * total:
            break
    return total


def both(one: float, other: float) -> float:
    """Return the chance of two independent things so unlikely or more so (Fisher)."""
    product = max(one * other, 1e-300)
    return min(1.0, product * (1 - math.log(product)))
