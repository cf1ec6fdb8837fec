"""One run of a comparison with all its numbers, over the steps that are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from ranktop.budget.collective import Collective
from ranktop.tui.compare.align import Window
from ranktop.tui.compare.gather import Gathered, Life
from ranktop.tui.compare.held import Held, by_group
from ranktop.tui.compare.spread import Spread, spread
from ranktop.tui.session.findings.finding import Finding
from ranktop.wire.schema import Card, Job

PHASES: Final = ("data", "forward", "backward", "optimizer")

SHORTEST: Final = 1e-9
"""Seconds of a step below which it tells no rate."""


@dataclass(slots=True)
class Loaded:
    """One run as it was read, before anything is compared."""

    source: str
    """As the person named it."""
    job: Job
    gathered: Gathered
    findings: tuple[Finding, ...] = ()
    """Of the last moment that is known."""
    state: str = ""
    """``running``, ``ended``, ``past``, ...; of a past run how it stood at its end is in ``at_end``."""
    at_end: str = ""
    started: float | None = None
    """Wall clock, seconds since the epoch."""
    ended: float | None = None
    host: str = ""
    notes: list[str] = field(default_factory=list)
    """What a reader must know of the run before its numbers."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What one rank sends in a step by the rules, and how often it was seen to."""

    bytes: int | None
    """Expected; None where no rule can tell, ``reason`` says why."""
    calls: int | None
    """Expected collectives per step."""
    seen: float | None
    """Collectives per step that were counted (median of the ranks); None where the positions are not known."""
    reason: str = ""


@dataclass(slots=True)
class Side:
    """One run, measured over the window."""

    letter: str
    run: Loaded
    life: Life
    window: Window
    card: Card | None
    """Of the lowest rank that has seen a model."""
    groups: tuple[Held, ...]
    times: dict[str, Spread]
    """``seconds`` and phases -> seconds; ``rate`` -> tokens (or samples) a second of the whole job; those missing are
    not known."""
    tokens: float | None
    """Tokens or samples of a step, of the whole job."""
    token_unit: str
    sent: Sent
    reasons: dict[str, str] = field(default_factory=dict)
    """Number -> why it is not known."""

    @property
    def held(self) -> Held | None:
        """The fullest rank."""
        return self.groups[0] if self.groups else None

    @property
    def peak(self) -> Held | None:
        """The group whose device must have the most, by the allocator's running peak; None where it is not known."""
        known = [held for held in self.groups if held.needs is not None]
        if not known or len(known) < len(self.groups):
            return None
        return max(known, key=lambda held: held.needs or 0)

    @property
    def device(self) -> str:
        """``GPU`` or ``rank``: what the numbers are of."""
        return "GPU" if self.card is not None and self.card.device.kind == "cuda" else "rank"

    def cards(self) -> list[Card]:
        """Return the cards that were seen, by rank."""
        return [rank.card for _, rank in sorted(self.life.ranks.items()) if rank.card is not None]


def side(letter: str, run: Loaded, life: Life, window: Window) -> Side:
    """Measure a run over the window."""
    cards = [rank.card for _, rank in sorted(life.ranks.items()) if rank.card is not None]
    card = next((one for one in cards if one.plan is not None and one.inventory is not None), None)
    card = card or next(iter(cards), None)
    steps = [life.steps[number] for number in window.steps(life) if number in life.steps]
    times: dict[str, Spread] = {}
    for name in ("seconds", *PHASES):
        found = spread([value for step in steps if (value := step.mean(name)) is not None])
        if found is not None:
            times[name] = found
    reasons: dict[str, str] = {}
    share, why = _ranks_of_tokens(card, run.job.world_size)
    tokens = [value for step in steps if (value := step.mean("tokens")) is not None]
    unit = "samples" if card is not None and card.plan is not None and not card.plan.batch.sequence_length else "tokens"
    if share is None or not tokens:
        reasons["rate"] = why or "no step told its tokens"
    else:
        pairs = ((step.mean("tokens"), step.mean("seconds")) for step in steps)
        rate = spread(
            [told * share / seconds for told, seconds in pairs if told is not None and seconds and seconds > SHORTEST]
        )
        if rate is not None:
            times["rate"] = rate
    groups = by_group(life, window)
    if not groups:
        reasons["memory"] = "no step's memory was read in the compared steps"
    if "seconds" not in times:
        reasons["seconds"] = "none of the compared steps was timed"
    return Side(
        letter=letter, run=run, life=life, window=window, card=card, groups=groups, times=times,
        tokens=median(tokens) * share if tokens and share is not None else None, token_unit=unit,
        sent=_sent(life, card), reasons=reasons,
    )  # fmt: skip


def _ranks_of_tokens(card: Card | None, world_size: int) -> tuple[int | None, str]:
    """Return how many ranks see tokens of their own, or why that is not known."""
    if card is None or card.plan is None:
        return (1, "") if world_size == 1 else (None, "the layout of the ranks is not known")
    layout = card.plan.layout
    if layout.context > 1:
        return None, "with context parallel the inputs do not tell the tokens of a rank"
    return max(1, layout.data), ""


def _sent(life: Life, card: Card | None) -> Sent:
    counts = [count for rank in life.ranks.values() if (count := rank.calls_per_step()) is not None]
    seen = median(counts) if counts else None
    if card is None or card.plan is None or card.inventory is None:
        return Sent(None, None, seen, "no rank has run a model yet")
    try:
        found, missing = _collectives(card)
    except Exception as error:  # a plan that the rules cannot read must not cost the other numbers
        return Sent(None, None, seen, f"the rules failed: {type(error).__name__}: {error}")
    if missing:
        return Sent(None, None, seen, "; ".join(missing))
    return Sent(sum(one.sent for one in found), sum(one.calls for one in found), seen)


def _collectives(card: Card) -> tuple[tuple[Collective, ...], tuple[str, ...]]:
    from ranktop.budget.communication import collectives, left_out
    from ranktop.budget.live import understand

    assert card.inventory is not None
    assert card.plan is not None
    model = None
    if left_out(card.inventory, card.plan, None):
        model = understand(card.inventory, card.plan, card.model).model
    told: Callable[..., tuple[str, ...]] = left_out
    return collectives(card.inventory, card.plan, model), told(card.inventory, card.plan, model)
