"""What ranks need: of each peer group the rank that holds the most, at its peak, expected beside measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final

from ranktop.budget.terms import CATEGORIES, STATES, Amount, Memory
from ranktop.tui.compare.align import Window
from ranktop.tui.compare.gather import Life, Peak, RankLife
from ranktop.tui.session.expected import expected
from ranktop.tui.session.findings.groups import role_key
from ranktop.tui.session.findings.robust import NORMAL
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.view.text import plain
from ranktop.wire.schema import Card

SHARE: Final = 0.01
"""Share of what is held by which memory that depends on timing moves from run to run."""

SPREADS: Final = 3.0

MEASURED: Final = tuple(name for name in CATEGORIES if name not in ("free", "other"))
"""Categories of the process itself."""


@dataclass(frozen=True, slots=True)
class Held:
    """One rank at the peak moment of the step in which it held the most."""

    rank: int
    role: str
    """Of its peer group, in words; empty when all ranks are peers."""
    ranks: tuple[int, ...]
    """Of its peer group."""
    step: int
    moment: str
    memory: Memory
    expected: Mapping[str, Amount]
    held: int
    """Bytes of tensors and runtime: without the allocator's cache."""
    unrest: Mapping[str, float] = field(default_factory=dict)
    """Category -> robust standard deviation over the compared steps, from one to the next, in bytes."""
    peak: int | None = None
    """The allocator's running peak up to the last compared step, of the group's fullest rank, bytes."""
    peak_step: int = 0
    """Steps finished when it last rose."""

    @property
    def expected_sum(self) -> int | None:
        """Sum of what is expected; None unless every category that was measured and can be planned is known."""
        sizes = [amount.bytes for amount in self.expected.values()]
        return None if not sizes or None in sizes else sum(size or 0 for size in sizes)

    @property
    def needs(self) -> int | None:
        """The allocator's running peak and runtime: what a device must have; None where one is not known."""
        return None if self.peak is None or self.memory.runtime is None else self.peak + self.memory.runtime

    def noise(self, category: str) -> float:
        """Bytes up to which this category says nothing: none for states, which a strategy alone decides."""
        moves = SPREADS * self.unrest.get(category, 0.0)
        return moves if category in STATES else max(moves, SHARE * self.held)

    @property
    def moves(self) -> float:
        """Bytes up to which the whole of it says nothing."""
        return max(SHARE * self.held, *(self.noise(name) for name in ("activations", "buffers", "runtime")))


def by_group(life: Life, window: Window) -> tuple[Held, ...]:
    """Return the fullest rank of each peer group, the fullest group first; empty without a reading in the window."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, rank in sorted(life.ranks.items()):
        groups.setdefault(role_key(RankView(number, "ok", 0.0, card=rank.card)), []).append(number)
    found = []
    for members in groups.values():
        one = _fullest(life, tuple(members), window, several=len(groups) > 1)
        if one is not None:
            found.append(one)
    return tuple(sorted(found, key=lambda held: -held.held))


def _fullest(life: Life, members: tuple[int, ...], window: Window, *, several: bool) -> Held | None:
    best: tuple[Peak, int, list[Peak]] | None = None
    for number in members:
        peaks = life.ranks[number].peaks.within(window.first, window.last)
        most = max(peaks, key=lambda peak: peak.held, default=None)
        if most is not None and (best is None or most.held > best[0].held):
            best = most, number, peaks
    if best is None:
        return None
    peak, number, peaks = best
    rank = life.ranks[number]
    running = [life.ranks[one].peak_until(window.last) for one in members]
    highest = max((one for one in running if one is not None), default=None)
    return Held(
        rank=number,
        role=_role(rank.card) if several else "",
        ranks=members,
        step=peak.step,
        moment=peak.moment,
        memory=peak.memory,
        expected=_expected(rank, peak),
        held=peak.held,
        unrest={name: _unrest(peaks, name) for name in MEASURED},
        peak=highest[0] if highest is not None else None,
        peak_step=highest[1] if highest is not None else 0,
    )


def _expected(rank: RankLife, peak: Peak) -> Mapping[str, Amount]:
    budget = expected(rank.card, peak.table) if rank.card is not None else None
    return budget.at(peak.moment) if budget is not None else {}


def _unrest(peaks: list[Peak], name: str) -> float:
    values = [value for peak in peaks if (value := getattr(peak.memory, name)) is not None]
    if len(values) < 2:
        return 0.0
    middle = float(median(values))
    around = float(median(abs(value - middle) for value in values))
    # What grows from step to step is no noise: then a step differs from the next by less than from the middle one.
    between = float(median(abs(two - one) for one, two in pairwise(values))) / math.sqrt(2.0)
    return NORMAL * min(around, between)


def _role(card: Card | None) -> str:
    if card is None:
        return "unknown"
    layout = card.plan.layout if card.plan is not None else None
    parts = []
    if layout is not None and layout.pipeline > 1:
        parts.append(f"stage {layout.pipeline_rank}")
    if layout is not None and layout.tensor > 1:
        parts.append(f"tensor-parallel rank {layout.tensor_rank}")
    return ", ".join(parts) or plain(card.device.name) or "unknown"
