"""What a recording holds, sample by sample, with what was known of the rank then; nothing is kept but the last card."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranktop.budget.terms import Amount, Memory
from ranktop.probes.reading import StepTimes
from ranktop.tui.session.expected import expected, peak_moment
from ranktop.wire.codec import WireError, decode_body, decode_header
from ranktop.wire.schema import Card, Header, Item, Sample

if TYPE_CHECKING:
    from ranktop.wire.recording import Recording

Life = tuple[int, int, int]
"""(rank, restart, process)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sample of one rank."""

    time: float
    """Wall clock, seconds since the epoch."""
    t: float
    """Seconds on the recording's clock."""
    header: Header
    card: Card | None
    """The newest of this life of the rank."""
    sample: Sample
    moment: str | None
    """At which the last step that was read held the most."""
    expected: dict[str, Amount]
    """category -> what the rank should hold at that moment."""
    steps: tuple[StepTimes, ...] = ()
    """Steps that no earlier row of the rank has told."""

    @property
    def measured(self) -> Memory | None:
        """Memory at the peak moment; None before a step was read."""
        return self.at(self.moment)

    def at(self, moment: str | None) -> Memory | None:
        """Return the memory at one moment of the last step that was read."""
        table = self.sample.table
        return table.moments.get(moment) if table is not None and moment is not None else None

    @property
    def step(self) -> StepTimes | None:
        """The newest step that was timed since the row before; None when none was."""
        return self.steps[-1] if self.steps else None


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part of a recording that is exported."""

    after: float
    until: float
    """Seconds on the recording's clock."""
    every: float = 0.0
    """Seconds from one row of a rank to its next, at least; 0: every sample that was recorded."""


def rows(recording: Recording, stretch: Stretch) -> Iterator[Row]:
    """Yield the samples in order of time; RecordingError. Messages that can't be read are left out."""
    cards: dict[Life, Card] = {}
    for item in recording.events():
        if item.t > stretch.after:
            break
        _note_card(item, cards)
    slots: dict[int, int] = {}
    steps = NewSteps()
    for item in recording.items(stretch.after, stretch.until):
        header = _header(item)
        if header is None:
            continue
        if header.kind == "card":
            _note_card(item, cards)
        elif header.kind == "sample" and (sample := _sample(header, item)) is not None:
            steps.take(header, sample)
            slot = math.floor((item.t - stretch.after) / stretch.every) if stretch.every > 0 else item.number
            if slots.get(header.rank) != slot:
                slots[header.rank] = slot
                yield _row(recording, item, header, sample, cards, steps.give(header))


class NewSteps:
    """Steps of each rank that no row has told yet."""

    def __init__(self) -> None:
        self._told: dict[Life, int] = {}
        self._waiting: dict[Life, list[StepTimes]] = {}

    def take(self, header: Header, sample: Sample) -> None:
        """Note the steps of a sample that are new: a sample repeats the last one until the next is timed."""
        life = _life(header)
        for step in sample.steps:
            if step.index > self._told.get(life, 0):
                self._told[life] = step.index
                self._waiting.setdefault(life, []).append(step)

    def give(self, header: Header) -> tuple[StepTimes, ...]:
        """Return those of a rank that wait to be told; they are told now."""
        return tuple(self._waiting.pop(_life(header), ()))


def _life(header: Header) -> Life:
    return header.rank, header.restart, header.pid


def _sample(header: Header, item: Item) -> Sample | None:
    try:
        body = decode_body(header, item.body)
    except WireError:
        return None
    return body if isinstance(body, Sample) else None


def _row(
    recording: Recording, item: Item, header: Header, sample: Sample, cards: dict[Life, Card],
    steps: tuple[StepTimes, ...],
) -> Row:  # fmt: skip
    card = cards.get(_life(header))
    moment = peak_moment(sample.table)
    budget = expected(card, sample.table) if card is not None else None
    amounts = budget.at(moment) if budget is not None and moment is not None else {}
    return Row(recording.wall(item.t), item.t, header, card, sample, moment, amounts, steps)


def _note_card(item: Item, cards: dict[Life, Card]) -> None:
    header = _header(item)
    if header is None or header.kind != "card":
        return
    try:
        card = decode_body(header, item.body)
    except WireError:
        return
    if isinstance(card, Card):
        cards[_life(header)] = card


def _header(item: Item) -> Header | None:
    try:
        return decode_header(item.header)
    except WireError:
        return None
