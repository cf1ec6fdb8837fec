"""A rank that holds more than the ranks beside it, beyond what its budget explains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from ranktop.tui.session.findings import beyond
from ranktop.tui.session.findings.columns import (
    Column,
    Screen,
    Value,
    Windows,
    beyond_expected,
    by_tokens,
    column,
    compared_moments,
    expected_bytes,
    plain,
)
from ranktop.tui.session.findings.finding import Evidence, Finding, Plot
from ranktop.tui.session.findings.groups import Group
from ranktop.tui.session.findings.limits import Limits
from ranktop.tui.session.findings.memory_words import ADVICE, EXTRA_COPY, sentence, several, short
from ranktop.tui.session.findings.robust import NORMAL
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.sizes import PROCESS, WORDS, at_moment, model_sized, summed, whole_parameters
from ranktop.tui.session.findings.windows import PERSISTENT, WINDOW, is_host, persistent, settled
from ranktop.tui.session.rank_view import RankView

SPREADS: Final = 6.0
"""Smallest deviation in robust standard deviations of the category, beside the limits that may be changed."""
SINGLE_SPREADS: Final = 4.0
"""... where the category's spread is that of single footprints."""
AGAIN: Final = 0.7
"""Share of the floors that single footprints must reach."""
STANDING: Final = 0.8
"""Share of the limits below which a finding that stands goes."""
LOOSE: Final = 3.0
"""What a host's process holds beside its tensors is Python's and the allocator's: limits are so much higher."""
UNKNOWN_LENGTHS: Final = 2.0
"""Activations that vary with no length known may do so for any reason: limits are so much higher."""
VARYING: Final = 0.03
"""Spread of a rank's activations over its steps, as a share of them, from which on they vary."""
COPIES: Final = ("parameters", "activations", "runtime")
"""Where a second copy of the model lands."""
KEPT: Final = 0.8
"""Share of the activations that are too many which must be there between the steps, to be a second model."""
APART: Final = 8
"""Ranks of a group that are told one by one."""
CACHE_RATIO: Final = 0.5
"""What the allocator keeps without need varies by itself, and is no harm while there is room."""
MANY: Final = 64
"""Members of a group from which on only those are looked at closely that stand out now."""


@dataclass(frozen=True, slots=True)
class Excess:
    """The category in which a rank is furthest from its peers."""

    view: RankView
    moment: str
    category: str
    bytes: float
    usual: float
    """The category's usual size in the group, as it was measured."""
    measured: float
    spreads: float
    tokens: bool
    """What more tokens explain is left out."""
    column: Column


def memory(scene: Scene) -> Iterator[Finding]:
    """Yield one finding for each rank that is out of line, and for groups that hold more states than expected."""
    for group in scene.groups:
        windows = {view.rank: found for view in group.members if len(found := settled(view, WINDOW)) >= PERSISTENT}
        if len(windows) >= 2:
            yield from _told(group, _excesses(scene, group, windows))
        yield from beyond.findings(group, windows, scene.limits)


def _told(group: Group, found: Iterable[Excess]) -> Iterator[Finding]:
    """Yield a finding for each rank; one for all that hold more of the same where they are many."""
    by_category: dict[str, list[Excess]] = {}
    for one in found:
        by_category.setdefault(one.category, []).append(one)
    for alike in by_category.values():
        if len(alike) <= APART:
            yield from (_finding(group, one) for one in alike)
            continue
        alike.sort(key=lambda one: one.bytes)
        middle = _finding(group, alike[len(alike) // 2])
        ranks = tuple(sorted(one.view.rank for one in alike))
        some = several(middle.subject, ranks, alike[0].bytes, alike[-1].bytes, len(group.members), group.role)
        peers = tuple(rank for rank in group.ranks if rank not in set(ranks))
        yield replace(middle, ranks=ranks, sentence=some, peers=peers, plot=None)


def _excesses(scene: Scene, group: Group, windows: Windows) -> Iterable[Excess]:
    """Return the worst of each rank, by bytes."""
    holds = median(summed(window[-1].peak, PROCESS) for window in windows.values())
    many = len(windows) > MANY
    worst: dict[int, Excess] = {}
    moments = compared_moments(windows)
    for moment in moments:
        now = Screen(group, windows, moment) if many else None
        for category in PROCESS:
            if category == "cache" and moment != moments[0]:
                continue  # what is free between the steps was in use at the peak
            floor, ratio = _floors(is_host(group.members[0]), category, holds, scene.limits)
            close = windows
            if now is not None:
                suspects = now.suspects(category, AGAIN * STANDING * floor, AGAIN * STANDING * ratio)
                if not suspects:
                    continue
                # The last footprints of all tell the usual, of those that stand out the whole windows are judged.
                close = {rank: found if rank in suspects else found[-1:] for rank, found in windows.items()}
            for one in _Judge(scene, group, close, moment, category, floor, ratio).excesses():
                old = worst.get(one.view.rank)
                # The same bytes are seen at more than one moment: the peak, which comes first, tells it.
                if old is None or one.bytes > 1.1 * old.bytes:
                    worst[one.view.rank] = one
    return worst.values()


def _floors(host: bool, category: str, holds: float, limits: Limits) -> tuple[float, float]:
    """Return the least difference in bytes, and as a share of the category."""
    share, ratio = limits["memory.min_share"], limits["memory.min_share_of_category"]
    floor = max(limits["memory.min_bytes_host" if host else "memory.min_bytes"], share * holds)
    if host and category in ("runtime", "cache"):
        floor, ratio = LOOSE * floor, LOOSE * ratio
    if category == "cache":
        return max(floor, LOOSE * share * holds), max(CACHE_RATIO, ratio)
    return floor, ratio


@dataclass(frozen=True, slots=True)
class _Judge:
    """One category at one moment in one group, with its limits."""

    scene: Scene
    group: Group
    windows: Windows
    moment: str
    category: str
    floor: float
    ratio: float

    def excesses(self) -> Iterator[Excess]:
        """Yield the ranks that are out of line."""
        raw = column(self.windows, self.moment, self.category, plain(self.moment, self.category))
        if raw is None:
            return
        tokens = by_tokens(self.windows, self.moment) if self.category == "activations" else None
        values = self._values(tokens)
        noises = self._noises(values[-1]) if self.category == "activations" else {}
        pair = len(self.windows) == 2
        shared = [] if pair else [column(self.windows, self.moment, self.category, value) for value in values]
        for rank, size in raw.middles.items():
            own = self._columns(values, rank) if pair else shared
            usual = next(held for other, held in raw.middles.items() if other != rank) if pair else raw.middle
            found = self._least(rank, own, usual, self._noise(raw, noises, rank, tokens is not None))
            view = self.scene.snapshot.rank(rank)
            if found is None or view is None:
                continue
            which, excess = found
            yield Excess(
                view, self.moment, self.category, excess, usual, size,
                excess / which.spread if which.spread else float("inf"), tokens is not None, raw,
            )  # fmt: skip

    def _columns(self, values: list[Value], rank: int) -> list[Column | None]:
        """Return the columns of two ranks: there is no middle but the other one."""
        return [column(self.windows, self.moment, self.category, value, rank) for value in values]

    def _values(self, tokens: Value | None) -> list[Value]:
        """Return the ways to compare. Activations must stand out in each: their budget may be one of another length."""
        measured = plain(self.moment, self.category)
        if tokens is not None:
            return [tokens]
        found = beyond_expected(self.group, self.moment, self.category)
        if found is None:
            return [measured]
        return [found[0], measured] if self.category == "activations" else [found[0]]

    def _noises(self, value: Value) -> dict[int, float]:
        """Return how much the activations of each rank vary over all its footprints: lengths may drift slowly."""
        noises: dict[int, float] = {}
        for view in self.group.members if len(self.windows) <= MANY else ():
            known = [size for step in settled(view) if (size := value(view.rank, step)) is not None]
            if len(known) > 2:
                centre = median(known)
                noises[view.rank] = NORMAL * median(abs(one - centre) for one in known)
        return noises

    def _noise(self, raw: Column, noises: Mapping[int, float], rank: int, lengths: bool) -> float:
        """Return how much activations vary by themselves, as the peers of a rank do; more with no ``lengths`` known."""
        if self.category != "activations":
            return 0.0
        others = [noise for other, noise in noises.items() if other != rank]
        found = median(others) if others else raw.spread
        if found <= VARYING * raw.middle:
            return 0.0
        return found if lengths else UNKNOWN_LENGTHS * found

    def _least(
        self, rank: int, columns: list[Column | None], usual: float, noise: float
    ) -> tuple[Column, float] | None:
        """Return (column, bytes too many) by the way that finds the least; None when one finds nothing."""
        best: tuple[Column, float] | None = None
        for own in columns:
            if own is None or rank not in own.middles:
                return None
            excess = own.middles[rank] - own.middle
            if excess < STANDING * self.floor:
                return None
            floors = max(self.floor, self.ratio * usual)
            few = self._few_limit(excess, usual) if len(self.windows) < 4 else 0.0
            limit = max(floors, self._spreads() * max(own.spread, noise), few)
            if self._stands(rank):
                floors, limit = STANDING * floors, STANDING * limit
            if excess < limit or not self._again(rank, own, floors):
                return None
            if best is None or excess < best[1]:
                best = own, excess
        return best

    def _spreads(self) -> float:
        """Single footprints are further apart than medians of five."""
        return SPREADS if len(self.windows) <= MANY else SINGLE_SPREADS

    def _few_limit(self, excess: float, usual: float) -> float:
        """Return the ratio's limit; a difference as large as the model needs none."""
        card = self.group.members[0].card
        whole = whole_parameters(card.inventory) if card is not None and card.inventory is not None else None
        return self.floor if model_sized(excess, whole) else self.scene.limits["memory.min_share_of_few"] * usual

    def _again(self, rank: int, own: Column, floors: float) -> bool:
        known = [value for step in self.windows[rank] if (value := own.value(rank, step)) is not None]
        return persistent([value - own.middle for value in known], AGAIN * floors)

    def _stands(self, rank: int) -> bool:
        return self.scene.stands("memory", self.category, (rank,))


def _finding(group: Group, one: Excess) -> Finding:
    view, inventory = one.view, one.view.card.inventory if one.view.card is not None else None
    whole = whole_parameters(inventory) if inventory is not None else None
    local = expected_bytes(view, one.moment, "parameters")
    copied = model_sized(one.bytes, whole, local) if one.category in COPIES and _kept(one) else ""
    peers = tuple(rank for rank in group.ranks if rank != view.rank)
    step, at = _began(one)
    expected = expected_bytes(view, one.moment, one.category)
    evidence = [
        Evidence(f"{WORDS[one.category]} {at_moment(one.moment)}", round(one.measured), "B"),
        Evidence(f"usual of {len(peers)} peer{'s' * (len(peers) > 1)}", round(one.usual), "B"),
        Evidence("too much", round(one.bytes), "B"),
        Evidence(
            "too much, in usual spreads of its peers", None if one.spreads == float("inf") else round(one.spreads, 1)
        ),
        *([Evidence("expected", expected, "B")] if expected is not None else []),
        *([Evidence("whole model's parameters", whole, "B")] if copied and whole else []),
        *([Evidence("compared", "at the same number of tokens")] if one.tokens else []),
    ]
    few = group.few
    return Finding(
        rule="memory", severity="info" if one.category == "cache" else "warning", ranks=(view.rank,),
        subject=one.category, sentence=sentence(one.category, view.rank, one.bytes, one.measured, one.usual,
        len(peers), group.role, tokens=one.tokens, copied=copied), short=short(one.category, one.bytes, one.usual),
        evidence=tuple(evidence), advice=EXTRA_COPY if copied else ADVICE[one.category],
        confidence="low" if few else "high" if one.spreads >= 10 and len(group.members) >= 8 else "medium",
        since=at, step=step, peers=peers, plot=_plot(one),
    )  # fmt: skip


def _kept(one: Excess) -> bool:
    """Whether activations that are too many are there between the steps too, as a second model is."""
    rest = one.view.footprints[-1].rest
    held = rest.activations if rest is not None else None
    return one.category != "activations" or held is None or held >= KEPT * one.bytes


def _began(one: Excess) -> tuple[int | None, float | None]:
    """Return (step, time) of the first footprint of the run that shows it without a break."""
    first: tuple[int | None, float | None] = None, None
    value, away = one.column.value, one.measured - one.bytes
    for step in reversed(one.view.footprints):
        size = value(one.view.rank, step)
        if step.first or size is None or size - away < 0.5 * one.bytes:
            break
        first = step.step, step.at
    return first


def _plot(one: Excess) -> Plot:
    steps = list(one.view.footprints)
    own = tuple(one.column.value(one.view.rank, step) for step in steps)
    return Plot(
        title=f"{WORDS[one.category]} {at_moment(one.moment)}", over="step", unit="B",
        at=tuple(step.step for step in steps),
        lines=((f"rank {one.view.rank}", own), ("peers", tuple(one.usual for _ in steps))),
    )  # fmt: skip
