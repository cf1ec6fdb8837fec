"""Which ranks hold more or less than the ranks beside them that do the same work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from ranktop.budget.terms import STATES, Memory
from ranktop.tui.session.rank import RankView

COMPARED: Final = (*STATES, "activations", "buffers", "cache", "runtime")
"""Categories of the process itself; what others do on the device says nothing of the rank."""

MIN_PEERS: Final = 3
"""With fewer nobody can say who is out of line."""

MIN_SHARE: Final = 0.03
"""Smallest deviation that counts, as a share of what the process usually holds."""

MIN_RATIO: Final = 0.10
"""... and as a share of the category's usual size."""

SPREADS: Final = 4.0
"""... and in median absolute deviations of the category."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """The category in which a rank is furthest from its peers."""

    category: str
    difference: int
    """Bytes above (or below) the median of the peers."""
    usual: int
    """That median, in bytes."""

    @property
    def ratio(self) -> float | None:
        """Deviation as a share of the usual size; None when that is zero."""
        return self.difference / self.usual if self.usual else None


def peer_key(view: RankView) -> tuple[object, ...]:
    """Return what ranks must have in common to be compared: strategy, stage, kind and size of the device."""
    card = view.card
    if card is None:
        return ("unknown",)
    plan = card.plan
    stage = () if plan is None else (plan.strategy, plan.layout.pipeline_rank)
    return (*stage, card.device.kind, card.device.total)


def outliers(measured: Mapping[int, tuple[RankView, Memory]]) -> dict[int, Outlier]:
    """Return the ranks that stand out from their peers, each with its worst category."""
    groups: dict[tuple[object, ...], list[tuple[int, Memory]]] = defaultdict(list)
    for rank, (view, memory) in measured.items():
        groups[peer_key(view)].append((rank, memory))
    found: dict[int, Outlier] = {}
    for members in groups.values():
        if len(members) >= MIN_PEERS:
            found.update(_outliers(members))
    return found


def _outliers(members: list[tuple[int, Memory]]) -> dict[int, Outlier]:
    usual: dict[str, tuple[float, float]] = {}
    for category in COMPARED:
        values = [value for _, memory in members if (value := getattr(memory, category)) is not None]
        if len(values) >= MIN_PEERS:
            middle = median(values)
            usual[category] = (middle, median(abs(value - middle) for value in values))
    scale = sum(middle for middle, _ in usual.values())
    found: dict[int, Outlier] = {}
    for rank, memory in members:
        worst: Outlier | None = None
        for category, (middle, spread) in usual.items():
            value = getattr(memory, category)
            if value is None:
                continue
            away = abs(value - middle)
            if away <= max(MIN_SHARE * scale, MIN_RATIO * middle, SPREADS * spread):
                continue
            if worst is None or away > abs(worst.difference):
                worst = Outlier(category, int(value - middle), int(middle))
        if worst is not None:
            found[rank] = worst
    return found
