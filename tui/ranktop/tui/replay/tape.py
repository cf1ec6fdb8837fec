"""What a replay needs of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from ranktop.tui.session.source import Received
from ranktop.wire.codec import WireError, decode_body, decode_header
from ranktop.wire.schema import Item, Job

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

    def wall(self, t: float) -> float:
        """Return the wall clock's time then, seconds since 1970."""
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


def spacing(tape: Tape, t: float) -> float:
    """Return the seconds between the samples of a rank that are kept around ``t``; 0 where all are."""
    asked = getattr(tape, "spacing", None)
    return float(asked(t)) if asked is not None else 0.0


def received(items: Iterable[Item], now: float) -> Iterator[Received]:
    """Decode messages as of ``now``; what can't be read is left out, as a viewer of the hub would."""
    for item in items:
        try:
            header = decode_header(item.header)
            body = decode_body(header, item.body)
        except WireError:
            continue
        # A message from after ``now`` has a negative age: its time stays exact.
        yield Received(header=header, body=body, age=now - item.t, number=item.number)


def is_sample(item: Item) -> bool:
    """Tell whether a message is one that comes every interval."""
    try:
        return decode_header(item.header).kind == "sample"
    except WireError:
        return False
