"""What a rank's last steps say: how long each phase took, and what of it was the rank's own work.

All ranks leave the same collective together, and each arrives at the next when its own work is done. So in lockstep
every rank's step takes equally long, and the rank that works longest waits least. Whatever a rank spends outside of the
phases in which ranks wait for each other is its own work, and compares without a common clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, sub
from typing import Any, Final

from ranktop.tui.session.findings.groups import FEW, LIVELY
from ranktop.tui.session.findings.robust import NORMAL
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.rank_view import RankView

PHASES: Final = ("data", "forward", "backward", "optimizer")

WARM_UP: Final = 3
"""First steps, in which things are compiled, allocated and loaded."""

WINDOW: Final = 32
"""Steps that are judged: enough for a median that noise moves little, few enough to see what began lately."""

WINDOW_OF_MANY: Final = 20
MANY: Final = 256

FEWEST: Final = 8
"""Steps of a rank below which nothing is said of it."""

LIKE: Final = 64
"""Peers that are enough for the middle of a phase."""

SPREAD_OF_QUARTILES: Final = 0.7413
"""Standard deviation of a normal distribution in distances between its quartiles."""

ERROR_OF_MEDIAN: Final = 1.2533
"""Standard error of a median in those of a mean (normal distribution)."""

LOCKSTEP: Final = (("data", "forward", "optimizer"), ("data", "optimizer"), ("optimizer",))
"""Phases that hold own work alone, as one looks further: ranks wait in backward, for the gradients; they may do so in
forward too, where parameters are gathered or buffers broadcast; or even in data, where a loss is averaged."""

LOCKSTEP_WITH_OPTIMIZER: Final = (("data", "forward"), ("data",))
"""The same where ``optimizer.step()`` communicates as well: ZeRO and ZeroRedundancyOptimizer."""


@dataclass(frozen=True, slots=True)
class Median:
    """A median with what it may be off by."""

    value: float
    error: float
    """Standard error."""


@dataclass(frozen=True, slots=True)
class Pace:
    """One rank's last steps whose phases are all known, oldest first. Seconds; columns, not rows: there are many."""

    view: RankView
    seconds: tuple[float, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    optimizer: tuple[float, ...]
    tokens: tuple[int | None, ...]
    step: float
    """Median of ``seconds``."""
    own: tuple[Median, ...]
    """For each way to look at it (``Paced.ways``): what is own work by it."""

    @property
    def rank(self) -> int:
        """Its number."""
        return self.view.rank

    @property
    def count(self) -> int:
        """Steps."""
        return len(self.seconds)

    def column(self, phases: Iterable[str]) -> list[float]:
        """Return the sum of some phases for each step; ``data`` is what the others leave of it."""
        wanted = set(phases)
        if "data" not in wanted:
            parts = [self._column(phase) for phase in wanted]
            return [sum(values) for values in zip(*parts, strict=True)]
        values = list(self.seconds)
        for phase in PHASES[1:]:
            if phase not in wanted:
                values = list(map(sub, values, self._column(phase)))
        return values

    def all_steps(self, way: Sequence[str]) -> list[float]:
        """Return the sum of some phases for each step that is remembered, beyond those that are judged."""
        values: list[float] = []
        for step in self.view.steps:
            rest = [getattr(step, phase) for phase in PHASES[1:] if phase not in way]
            if step.index > WARM_UP and step.seconds is not None and None not in rest:
                values.append(step.seconds - sum(rest))
        return values

    def _column(self, phase: str) -> tuple[float, ...]:
        return self.forward if phase == "forward" else self.backward if phase == "backward" else self.optimizer

    def halves(self, way: Sequence[str]) -> tuple[float, float]:
        """Return the median of those phases' sum in the older and the newer half of the steps."""
        values = self.column(way)
        middle = len(values) // 2
        return median(values[:middle]), median(values[middle:])

    def phase(self, *phases: str) -> float:
        """Return the median of the sum of some phases."""
        return max(0.0, median(self.column(phases)))


@dataclass(frozen=True, slots=True)
class Paced:
    """Ranks of the same role in lockstep."""

    role: str
    ways: tuple[tuple[str, ...], ...]
    members: Mapping[int, Pace]
    step: float
    """Median of their steps."""
    worked_out: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What several ranks are compared with."""

    @property
    def overlapping(self) -> bool:
        """Whether gradients are reduced while backward goes on, and nothing else is communicated."""
        card = next(iter(self.members.values())).view.card
        return card is not None and card.plan is not None and card.plan.strategy in ("ddp", "zero0", "dp")

    @property
    def few(self) -> bool:
        """Whether it has too few members for a spread."""
        return len(self.members) < FEW

    def others(self, rank: int) -> list[Pace]:
        """Return some peers of a rank, enough for their middle."""
        others = [pace for pace in self.members.values() if pace.rank != rank]
        return others[:: max(1, len(others) // LIKE)]

    def middle(self, rank: int, phase: str) -> float:
        """Return the median of a phase among the peers of a rank."""
        return median([pace.phase(phase) for pace in self.others(rank)])


def of(scene: Scene) -> tuple[Paced, ...]:
    """Return the groups of ranks whose steps compare, each with at least two members."""
    return scene.once("pace", _paced)


def _paced(scene: Scene) -> tuple[Paced, ...]:
    many = len(scene.snapshot.ranks) > MANY
    lately: _Lately = scene.memory.setdefault("pace", _Lately())
    lately.turn += 1
    found: dict[tuple[object, ...], list[Pace]] = {}
    for view in scene.snapshot.ranks:
        if view.sample is None or view.stale or not (view.state in LIVELY or view.state.startswith("device ")):
            continue
        pace = lately.of(view) if many else _pace(view, ways_of(view), WINDOW)
        if pace is not None:
            found.setdefault(_role_key(view), []).append(pace)
    several = len(found) > 1
    return tuple(
        Paced(
            role=_role(members[0].view) if several else "",
            ways=ways_of(members[0].view),
            members={pace.rank: pace for pace in members},
            step=median([pace.step for pace in members]),
        )
        for members in found.values()
        if len(members) > 1
    )


@dataclass(slots=True)
class _Lately:
    """The paces of many ranks from look to look: at each look those of every other rank are worked out anew.

    A look follows another after few of the steps that are judged, and this is most of its cost.
    """

    turn: int = 0
    paces: dict[int, tuple[int, Pace | None]] = field(default_factory=dict)
    """Rank -> (turn in which it was worked out, its pace)."""

    def of(self, view: RankView) -> Pace | None:
        """Return the pace of a rank."""
        turn, pace = self.paces.get(view.rank, (0, None))
        same = pace is not None and pace.view.card is view.card and pace.view.restart == view.restart
        if same and pace is not None and turn == self.turn - 1 and (view.rank + self.turn) % 2 == 0:
            # Not by ``replace``, which takes as long as half of the work.
            return Pace(
                view, pace.seconds, pace.forward, pace.backward, pace.optimizer, pace.tokens, pace.step, pace.own
            )
        pace = _pace(view, ways_of(view), WINDOW_OF_MANY)
        self.paces[view.rank] = (self.turn, pace)
        return pace


def _role_key(view: RankView) -> tuple[object, ...]:
    """Tensor-parallel ranks of a stage do the same work, so other than for memory they are peers."""
    card = view.card
    if card is None:
        return ("unknown",)
    stage = (card.plan.strategy, card.plan.layout.pipeline_rank) if card.plan is not None else ()
    return (*stage, card.device.kind, card.device.name if card.device.kind == "cuda" else "")


def _role(view: RankView) -> str:
    card = view.card
    if card is None:
        return ""
    if card.plan is not None and card.plan.layout.pipeline > 1:
        return f"of stage {card.plan.layout.pipeline_rank}"
    return f"on {card.device.name}" if card.device.kind == "cuda" and card.device.name else ""


def ways_of(view: RankView) -> tuple[tuple[str, ...], ...]:
    """Return the sets of phases that hold no waiting, the widest first."""
    plan = view.card.plan if view.card is not None else None
    if plan is not None and (plan.zero_redundancy or plan.strategy in ("zero1", "zero2", "zero3", "zero-redundancy")):
        return LOCKSTEP_WITH_OPTIMIZER
    return LOCKSTEP


_FIELDS: Final = attrgetter("index", "seconds", "forward", "backward", "optimizer", "tokens")


def _pace(view: RankView, ways: tuple[tuple[str, ...], ...], window: int) -> Pace | None:
    steps = view.steps[-window:]
    if len(steps) < FEWEST:
        return None
    try:
        if steps[0].index > WARM_UP:
            return _measured(view, ways, list(map(_FIELDS, steps)))
    except TypeError:  # a phase that was not seen
        pass
    rows = [row for row in map(_FIELDS, steps) if row[0] > WARM_UP and None not in row[1:5]]
    return _measured(view, ways, rows) if len(rows) >= FEWEST else None


def _measured(view: RankView, ways: tuple[tuple[str, ...], ...], rows: Sequence[tuple[Any, ...]]) -> Pace:
    """Work a rank's pace out; TypeError where a phase is unknown (to look for that first costs a quarter of it all)."""
    _, seconds, forward, backward, optimizer, tokens = zip(*rows, strict=True)
    outside = list(map(sub, seconds, backward))
    if ways is LOCKSTEP:
        own = [outside, list(map(sub, outside, forward)), list(optimizer)]
    else:
        outside = list(map(sub, outside, optimizer))
        own = [outside, list(map(sub, outside, forward))]
    medians = tuple(map(_median, own))
    return Pace(view, seconds, forward, backward, optimizer, tokens, median(seconds), medians)


def median(values: Iterable[float]) -> float:
    """Return the median (``statistics.median`` takes five times as long); 0 for nothing."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return 0.0
    middle = count // 2
    return ordered[middle] if count % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _median(values: list[float]) -> Median:
    values.sort()
    count = len(values)
    middle = count // 2
    value = values[middle] if count % 2 else (values[middle - 1] + values[middle]) / 2
    # By the quartiles, which one outlier does not move either, and which need no second sort.
    spread = SPREAD_OF_QUARTILES * (values[-1 - count // 4] - values[count // 4])
    return Median(value, ERROR_OF_MEDIAN * spread / count**0.5)


def spread_of(values: Sequence[float], middle: float) -> float:
    """Return the robust standard deviation of values around their middle."""
    return NORMAL * median([abs(value - middle) for value in values])
