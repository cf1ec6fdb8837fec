"""Looks at how far the process groups have come, at times that all ranks of a node share."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ranktop.wire.look_times import slot_at, time_of
from ranktop.wire.schema import Look

LATE: Final = 0.02
"""Seconds after its time at which a look would say what was true at another time."""

GROUPS: Final = 4
"""Groups looked at, the first ones of more than one rank."""

WAITING: Final = 64
"""Looks that wait for a sample, at most; the oldest go first."""


class Positions(Protocol):
    """Where the positions are read."""

    def to_look_at(self, most: int) -> tuple[str, ...]:
        """Return the names of all groups; empty when there is none of more than one rank."""
        ...

    def enqueued(self) -> tuple[int | None, ...]:
        """Return their positions now; None for a group that is not looked at."""
        ...


class Looks:
    """Takes and keeps looks until a sample takes them along. Belongs to the sampling thread."""

    def __init__(self, positions: Positions, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is CLOCK_MONOTONIC in seconds, which the processes of a node share."""
        self._positions = positions
        self._clock = clock
        self._slot = slot_at(clock()) + 1
        self._names: tuple[str, ...] = ()
        """Of the groups at the last look; empty: none was worth one."""
        self._taken: deque[tuple[int, tuple[str, ...], tuple[int | None, ...]]] = deque(maxlen=WAITING)

    def due(self) -> float | None:
        """Return when the next look is due by the clock; None while there is nothing to look at."""
        if not self._names:
            self._names = self._positions.to_look_at(GROUPS)
        return time_of(self._slot) if self._names else None

    def look(self) -> None:
        """Look if it is time, and not too late."""
        now, slot = self._clock(), self._slot
        due = time_of(slot)
        latest = due + LATE
        if now < due:
            return
        self._slot = slot_at(now) + 1
        if now > latest:
            return
        self._names = self._positions.to_look_at(GROUPS)
        found = self._positions.enqueued() if self._names else ()
        # Asking may have waited for the interpreter's lock.
        if found and self._clock() <= latest:
            self._taken.append((slot, self._names, found))

    def take(self, names: Sequence[str]) -> tuple[Look, ...]:
        """Return the looks since the last call, oldest first, their positions in the order of ``names``."""
        wanted = tuple(names)
        looks: list[Look] = []
        while self._taken and wanted:
            slot, had, found = self._taken.popleft()
            if had != wanted:
                by_name = dict(zip(had, found, strict=False))
                found = tuple(by_name.get(name) for name in wanted)
            looks.append(Look(slot, found))
        self._taken.clear()
        return tuple(looks)
