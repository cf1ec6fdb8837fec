"""The answer of ``explain``: data for a command or a screen to draw, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ranktop.budget.collective import Collective
from ranktop.budget.fitting.cost import Speeds, sending
from ranktop.budget.run import Projection, RankBudget, Run
from ranktop.budget.terms import Part

SHOWN: Final = ("parameters", "gradients", "optimizer", "activations")
"""Categories of the picture of the ranks."""

MOST_RANKS: Final = 8
"""Ranks in the picture, and kinds of ranks beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which part of the whole of one category a rank holds on its device."""

    category: str
    parts: int = 1
    """Equal parts that the whole is dealt into; 1 = the rank holds all of it, 0 = nothing of it."""
    index: int = 0
    """Which of the parts."""
    bytes: int | None = None
    """What the rank holds of it while it is all there: gradients before the optimizer's step, activations at their
    highest; None when unknown."""
    own: bool = False
    """It is of the rank's own samples or layers: no other rank has any of it, however many parts there are."""
    away: str = ""
    """Where it is instead of the device: ``host`` or ``NVMe``."""
    partly: bool = False
    """Some of it is dealt out over the tensor-parallel ranks, the rest is whole on each of them."""
    in_flight: int = 1
    """Micro-batches that it is of: those that a pipeline stage keeps at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank of the picture."""

    rank: int
    place: tuple[tuple[str, int], ...]
    """Its index on every axis with more than one rank, e.g. ``(("pp", 1), ("dp", 0))``."""
    shares: tuple[Share, ...]
    """One for each category of SHOWN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the worst rank holds at one moment of a step."""

    name: str
    """One of ALL_MOMENTS."""
    held: Mapping[str, int | None]
    """Category -> bytes."""
    total: int | None
    largest: Part | None
    """The largest piece that is there only for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One summand of a formula: ``count`` things of ``each`` bytes, divided by ``over``."""

    symbol: str
    """As papers write it, e.g. ``12P/N``."""
    count: float
    each: float
    """Bytes: per element, or of one thing."""
    over: int = 1
    name: str = ""
    """In words, where the symbol does not say it."""

    @property
    def bytes(self) -> int:
        """What the summand comes to."""
        return round(self.count * self.each / self.over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A category's formula with this run's numbers, beside what the budget says exactly."""

    category: str
    terms: tuple[Term, ...]
    """Empty when there is none: its bytes follow from the shape of every tensor."""
    budget: int | None
    """Bytes in the budget at ``moment``."""
    moment: str
    """Moment at which the formula speaks."""
    difference: str = ""
    """What the budget has beside the formula, in words; empty when both are equal."""
    source: str = ""
    """Rule by file or paper; the reason when the budget is not known."""
    within: float | None = 0.0
    """As ``Amount.within``."""
    most: int | None = None
    """Bytes where the category is highest within a step, when that is more."""
    most_at: str = ""
    """The moment of ``most``."""
    more: tuple[Part, ...] = ()
    """Of what is there then, what the formula does not speak of, the largest first."""

    @property
    def bytes(self) -> int | None:
        """What the formula gives, None without one."""
        return sum(term.bytes for term in self.terms) if self.terms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One thing that can be changed, and what that does; both sides are projected."""

    name: str
    """Of the option, e.g. ``reduce_bucket_size``."""
    before: str
    after: str
    how: str
    """What to type or write, e.g. ``--micro-batch 2``."""
    run: Run
    strategy: str
    """Run and strategy with the change, so that a screen may go there."""
    peak: int
    """Bytes that the worst rank's peak changes by."""
    sent: int
    """Bytes per step that what one GPU sends changes by."""
    host: int
    """Bytes that what a rank keeps in host memory changes by."""
    note: str = ""
    """What else changes."""
    partial: bool = False
    """Not all bytes are known: ``peak`` is the change of what is known, where that is largest."""
    nvme: int = 0
    """Bytes that what a rank keeps on NVMe changes by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """What people usually get wrong, and what is so for this run."""

    claim: str
    truth: str
    """With ``{name}`` for every size of ``sizes``."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes for ``claim`` and ``truth``, by name."""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a strategy does for a run."""

    strategy: str
    run: Run
    projection: Projection
    parameters: int
    """Of the whole model, adapters included."""
    summary: str = ""
    """What the strategy does, in one or two sentences."""
    symbols: tuple[tuple[str, int, str], ...] = ()
    """Letters of the formulas with value and meaning."""
    ranks: tuple[Rank, ...] = ()
    """At most MOST_RANKS, spread over the layout."""
    kinds: tuple[RankBudget, ...] = ()
    """At most MOST_RANKS kinds of ranks that hold the same, the worst among them, in the order of the ranks."""
    moments: tuple[Moment, ...] = ()
    """One step on the worst rank."""
    formulas: tuple[Formula, ...] = ()
    collectives: tuple[Collective, ...] = ()
    """Of one step, in their order."""
    at: Speeds = field(default_factory=Speeds)
    """Bytes per second for their times."""
    link_assumed: bool = True
    """Nobody said how fast a link is."""
    knobs: tuple[Knob, ...] = ()
    """Those that apply, what changes the peak most first."""
    mistakes: tuple[Mistake, ...] = ()

    @property
    def several_nodes(self) -> bool:
        """Whether the ranks lie on more than one node."""
        return self.run.world_size > self.run.gpus_per_node

    def seconds(self, collectives: Iterable[Collective]) -> float:
        """Return the seconds that sending takes at least, as plans and the search for them reckon."""
        rank = self.projection.rank
        return sending(rank.plan, collectives, self.at, self.run.gpus_per_node) if rank is not None else 0.0
