"""History of one rank in a bounded, compact form: fourteen numbers a second for half an hour."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from msgspec import structs

from ranktop.wire.schema import Point

CAPACITY: Final = 1800
"""Points kept per rank: 30 minutes at one a second."""

COLUMNS: Final = Point.__struct_fields__
SAME_SECOND: Final = 0.45
"""Seconds within which two points are the same one, told and seen."""

_NONE: Final = math.nan
_LARGEST: Final = 3e38
"""What a 32-bit float can hold; anything above is no measurement."""


class Ring:
    """The last points of one rank; a column costs four bytes a point, the time eight."""

    __slots__ = ("_columns", "_start", "capacity")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._start = 0
        self._columns = {name: array("d" if name == "t" else "f") for name in COLUMNS}

    @classmethod
    def of(cls, points: Sequence[Point], shift: float, capacity: int) -> Ring:
        """Return the last ``capacity`` of some points, oldest first, ``shift`` seconds added to each."""
        ring = cls(capacity)
        kept = points[-capacity:]
        for name, column in ring._columns.items():
            values = list(map(attrgetter(name), kept))
            if name == "t":
                column.extend([t + shift for t in values])
            else:
                column.extend([_NONE if value is None or abs(value) > _LARGEST else value for value in values])
        return ring

    def __len__(self) -> int:
        return len(self._columns["t"])

    def append(self, point: Point) -> None:
        """Add the newest point; the oldest goes when the ring is full."""
        full = len(self) >= self.capacity
        for name, column in self._columns.items():
            value = getattr(point, name)
            number = _NONE if value is None or abs(value) > _LARGEST else float(value)
            if full:
                column[self._start] = number
            else:
                column.append(number)
        if full:
            self._start = (self._start + 1) % self.capacity

    def column(self, name: str) -> list[float]:
        """Return one column, oldest first; NaN where a value was unknown."""
        values = self._columns[name]
        return [*values[self._start :], *values[: self._start]]

    def last(self, name: str) -> float | None:
        """Return the newest value of a column, or None."""
        if not len(self):
            return None
        value = self._columns[name][self._start - 1]
        return None if math.isnan(value) else value

    def copy(self) -> Ring:
        """Return an independent copy, for a picture that is to stand still."""
        other = Ring(self.capacity)
        other._start = self._start
        other._columns = {name: column[:] for name, column in self._columns.items()}
        return other


def joined(told: Sequence[Point], shift: float, seen: Ring) -> Ring:
    """Return ``seen`` with the points ``told`` (oldest first, ``shift`` seconds to be added) that it lacks.

    A second that was seen is not told again: a sample comes with its exact time, a told point may be thinned out.
    """
    times = seen.column("t")
    points: list[Point] = [Point(*row) for row in zip(*map(seen.column, COLUMNS), strict=True)]
    first = times[0] - SAME_SECOND if times else math.inf
    before = bisect_left(told, first - shift, key=attrgetter("t"))
    merged = Ring.of(told[:before], shift, seen.capacity)
    place = 0
    for point in told[before:]:
        t = point.t + shift
        while place < len(times) and times[place] <= t:
            merged.append(points[place])
            place += 1
        near = (times[i] for i in (place - 1, place) if 0 <= i < len(times))
        if all(abs(t - other) > SAME_SECOND for other in near):
            merged.append(structs.replace(point, t=t))
    for point in points[place:]:
        merged.append(point)
    return merged
