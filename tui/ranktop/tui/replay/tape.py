"""What a replay needs of a recording."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from ranktop.tui.session.source import Received
from ranktop.wire.codec import WireError, decode_body, decode_header
from ranktop.wire.schema import Item, Job, Sample

if TYPE_CHECKING:
    from ranktop.wire.recording import Stretch

THINNED: Final = 2.5
"""Seconds between a rank's samples from which on a recording counts as thinned there."""


class Tape(Protocol):
    """A recording (``wire.recording.Recording``). Times are seconds on its own clock, which never goes back."""

    @property
    def job(self) -> Job:
        """Whose it is."""
        ...

    @property
    def begin(self) -> float:
        """When it begins."""
        ...

    @property
    def end(self) -> float:
        """When it ends, or has come to when it was last refreshed."""
        ...

    @property
    def spacing(self) -> float:
        """Seconds between two samples of a rank that were recorded at all; 0: each was."""
        ...

    def stretches(self) -> Sequence[Stretch]:
        """Return how closely the samples of each part are kept, in order."""
        ...

    def wall(self, t: float) -> float:
        """Return the wall clock's time then, seconds since 1970."""
        ...

    def clocks(self) -> Sequence[tuple[float, float]]:
        """Return (t, wall clock) at the begin and wherever the wall clock was set; between them both go alike."""
        ...

    def items(self, after: float, until: float) -> Iterator[Item]:
        """Return the messages of ``after < t <= until``, oldest first."""
        ...

    def state_at(self, t: float) -> Iterator[Item]:
        """Return what a hub would have told a viewer that came then."""
        ...

    def events(self) -> Iterator[Item]:
        """Return all marks, boxes, ends and cards."""
        ...

    def refresh(self) -> None:
        """Look whether it has grown."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Kept:
    """How closely samples are kept, by time; asked once and again after ``refresh``."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._firsts: list[float] = []
        self._steps: list[float] = []
        self.refresh()

    def refresh(self) -> None:
        """Ask again: old parts may have been thinned meanwhile."""
        stretches = self._tape.stretches()
        self._firsts = [stretch.first for stretch in stretches]
        self._steps = [stretch.step for stretch in stretches]

    def step(self, t: float) -> float:
        """Return the seconds between the samples of a rank that are kept around ``t``; 0 where all are."""
        at = bisect_right(self._firsts, t) - 1
        step = self._steps[max(0, at)] if self._steps else 0.0
        return step if step >= THINNED and step > self._tape.spacing else 0.0


def received(items: Iterable[Item], now: float, spacing: float = 0.0) -> Iterator[Received]:
    """Decode messages as of ``now``; what can't be read is left out, as a viewer of the hub would.

    ``spacing``: seconds between two samples of a rank that were recorded at all: so long a rank is not silent.
    """
    for item in items:
        try:
            header = decode_header(item.header)
            body = decode_body(header, item.body)
        except WireError:
            continue
        if spacing and isinstance(body, Sample) and body.interval < spacing:
            body = replace(body, interval=spacing)
        # A message from after ``now`` has a negative age: its time stays exact.
        yield Received(header=header, body=body, age=now - item.t, number=item.number)


def is_sample(item: Item) -> bool:
    """Tell whether a message is one that comes every interval."""
    try:
        return decode_header(item.header).kind == "sample"
    except WireError:
        return False
