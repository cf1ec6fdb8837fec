"""Whether runs can be compared at all, and what must be kept in mind where they can't quite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ranktop.tui.compare.side import Side
from ranktop.tui.view.text import count, human, plain
from ranktop.wire.schema import Card

TOKENS_APART: Final = 0.01
"""Share by which the tokens of a step may differ without being another batch."""

HURTS: Final = ("all", "world", "device", "batch")
"""What a caveat hurts, the gravest first: everything (no verdict is given), the size of the job, its speed, the length
of a step."""


@dataclass(frozen=True, slots=True)
class Caveat:
    """One reason why two runs are not quite alike."""

    hurts: str
    """One of ``HURTS``."""
    letters: str
    """The two runs."""
    why: str
    """In words, to go on after ``they``-less: ``different models (4 and 8 parameters)``."""

    @property
    def sentence(self) -> str:
        """The whole of it."""
        return f"{self.letters[0]} and {self.letters[1]}: {self.why}"


def caveats(sides: Sequence[Side]) -> list[Caveat]:
    """Return everything that makes the comparison with the first run unfair, the gravest first."""
    found = [
        Caveat(hurts, sides[0].letter + other.letter, why)
        for other in sides[1:]
        for hurts, why in _between(sides[0], other)
    ]
    return sorted(found, key=lambda one: HURTS.index(one.hurts))


def _between(base: Side, other: Side) -> Iterator[tuple[str, str]]:
    one, two = base.card, other.card
    if one is None or two is None:
        who = " and ".join(side.letter for side in (base, other) if side.card is None)
        yield "all", f"no rank of {who} has said what it is"
        return
    if one.simulated != two.simulated:
        yield "all", f"{other.letter if two.simulated else base.letter} is simulated, the other one is a real job"
        return
    model = _model(one, two)
    if model:
        yield "all", f"their models are different ({model})"
        return
    sizes = base.run.job.world_size, other.run.job.world_size
    if sizes[0] != sizes[1]:
        yield "world", f"different world sizes, {count(sizes[0])} and {count(sizes[1])} ranks"
    devices = _devices(base), _devices(other)
    if devices[0] != devices[1]:
        yield "device", f"different devices, {devices[0]} and {devices[1]}: their speeds say little"
    if base.tokens is not None and other.tokens is not None and base.token_unit != other.token_unit:
        yield "batch", f"steps of {base.token_unit} beside steps of {other.token_unit}"
    elif _apart(base.tokens, other.tokens):
        told = f"{base.tokens:,.0f} and {other.tokens:,.0f} {base.token_unit}"
        yield "batch", f"their steps are not alike ({told}), so {base.token_unit} a second are compared"


def _model(one: Card, two: Card) -> str:
    """Say how the models differ; empty where they don't as far as the cards tell."""
    if one.model and two.model and one.model != two.model:
        return f"{plain(one.model)} and {plain(two.model)}"
    if one.inventory is None or two.inventory is None or one.plan is None or two.plan is None:
        return ""
    # A rank of a tensor- or pipeline-parallel job lists its own part: only equal cuts can be compared.
    cuts = [(plan.layout.tensor, plan.layout.pipeline, plan.layout.expert) for plan in (one.plan, two.plan)]
    if cuts[0] != cuts[1]:
        return ""
    numbers = one.inventory.numel, two.inventory.numel
    return "" if numbers[0] == numbers[1] else f"{count(numbers[0])} and {count(numbers[1])} parameters"


def _devices(side: Side) -> str:
    kinds = {(plain(card.device.name or card.device.kind), card.device.total) for card in side.cards()}
    told = [name if total is None else f"{name} ({human(total)})" for name, total in sorted(kinds, key=str)]
    return ", ".join(told)


def _apart(one: float | None, two: float | None) -> bool:
    return one is not None and two is not None and abs(one - two) > TOKENS_APART * max(one, two)
