"""A plan that was looked at, and the answer of a search."""

from __future__ import annotations

from dataclasses import dataclass, field

from ranktop.budget.fitting.cost import Cost, Speeds
from ranktop.budget.plan import Plan
from ranktop.budget.run import STRATEGIES, Projection, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One plan for the wanted global batch; ``project(run, strategy)`` gives the same budget."""

    run: Run
    """The run with everything that the plan changes."""
    strategy: str
    """One of STRATEGIES."""
    title: str
    """The strategy with the sizes of its axes, e.g. ``3d tp8 pp4``."""
    projection: Projection
    """Of the ranks that may be the worst; ``max_micro_batch`` is not looked for."""
    changes: tuple[str, ...]
    """What differs from what runs now, in words, the fewest that this plan needs."""
    sent: int
    """Bytes per step that the busiest GPU sends, ring terms."""
    seconds: Cost
    margin: int
    """Bytes by which the total may be off: the errors of its parts, and half of what is guessed."""
    also: tuple[str, ...] = ()
    """Other titles of the same plan."""

    @property
    def cost(self) -> float:
        """Seconds per step beyond the computation that every plan has."""
        return self.seconds.total

    @property
    def plan(self) -> Plan:
        """The plan of the rank that needs the most."""
        return self.projection.ranks[self.projection.worst].plan

    @property
    def total(self) -> int:
        """Bytes of the rank that needs the most, at its peak."""
        return self.projection.ranks[self.projection.worst].total or 0

    @property
    def missing(self) -> int:
        """Bytes by which it does not fit; 0 when it does."""
        return max(0, -(self.projection.headroom or 0))

    @property
    def fits(self) -> bool:
        """Whether every rank fits."""
        return self.projection.fits is True

    @property
    def offloads(self) -> bool:
        """Whether states leave the device."""
        zero, fsdp = self.plan.zero, self.plan.fsdp
        away = zero is not None and {zero.offload_optimizer, zero.offload_parameters} != {"none"}
        return away or (fsdp is not None and fsdp.cpu_offload)

    @property
    def tight(self) -> bool:
        """Whether it fits only if the budget is right to less than its own error."""
        return self.fits and (self.projection.headroom or 0) < self.margin

    @property
    def order(self) -> tuple[float, bool, int, int, int, str]:
        """Key by which plans that fit are sorted: cost to two digits, not tight, fewest changes, fullest forward."""
        known = STRATEGIES.index(self.strategy)
        return rounded(self.cost), self.tight, len(self.changes), -self.run.micro_batch, known, self.title


def rounded(seconds: float) -> float:
    """Return seconds to two digits: costs that look the same are the same."""
    return float(f"{seconds:.1e}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A plan that fits if something is changed that training itself feels."""

    words: str
    """What is changed, and what that means."""
    candidate: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The answer of a search, or what is known of it so far."""

    global_batch: int
    """Samples per optimizer step, over all ranks."""
    fitting: tuple[Candidate, ...] = ()
    """Those that fit, cheapest first: each strategy's best, and a cheaper one of it that is tight."""
    present: Candidate | None = None
    """What runs now, when that is known and can be judged."""
    nearest: Candidate | None = None
    """When nothing fits: what needs the least memory."""
    less_precise: str = ""
    """The precision that was taken because nothing fits in the run's own; empty when that was not needed."""
    more_ranks: tuple[int, str] | None = None
    """When nothing fits: with how many ranks something does, and the title of the plan."""
    shorter: int | None = None
    """When nothing fits: tokens per sample with which the nearest plan fits."""
    suggestions: tuple[Suggestion, ...] = ()
    """When nothing fits: what fits with another optimizer or without fp32 masters. Training changes with it."""
    reason: str = ""
    """Why no plan could be judged; empty when some could."""
    tried: int = 0
    """Plans whose memory was computed."""
    layouts: int = 0
    """Layouts that were considered."""
    speeds: Speeds = field(default_factory=Speeds)
