"""History of one rank in a bounded, compact form: fourteen numbers a second for half an hour."""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from msgspec import structs

from ranktop.wire.points import HISTORY_SECONDS, point_spacing
from ranktop.wire.schema import Point

CAPACITY: Final = 1800
"""Points kept per rank: 30 minutes at one a second."""

FULL: Final = 64
"""The newest points, which are kept as they come, however close to each other."""

COLUMNS: Final = Point.__struct_fields__
SAME_SECOND: Final = 0.45
"""Seconds within which two points are the same one, told and seen."""

_NONE: Final = math.nan
_LARGEST: Final = 3e38
"""What a 32-bit float can hold; anything above is no measurement."""

_WIDTH: Final = len(COLUMNS) - 1
_ROW: Final = struct.Struct(f"{_WIDTH}f")
_AT: Final = {name: place for place, name in enumerate(COLUMNS[1:])}
assert COLUMNS[0] == "t"


class Ring:
    """The last points of one rank; one costs eight bytes for its time and four for each other number."""

    __slots__ = ("_limit", "_rows", "_thinned", "_times", "capacity", "spacing")

    def __init__(self, capacity: int = CAPACITY, spacing: float = 0.0) -> None:
        """``spacing``: least seconds between two points that are no longer among the ``FULL`` newest."""
        self.capacity, self.spacing = capacity, spacing
        self._times = array("d")
        self._rows = bytearray()
        self._thinned = 0
        """So many of the oldest points are as far apart as they should be."""
        self._limit = 2 * FULL if spacing else capacity + FULL
        """Points at which the old ones are thinned out, and the oldest dropped."""

    @classmethod
    def of(cls, points: Sequence[Point], shift: float, capacity: int, spacing: float = 0.0) -> Ring:
        """Return the last ``capacity`` of some points, oldest first, ``shift`` seconds added to each."""
        ring = cls(capacity, spacing)
        for point in points[-capacity:]:
            ring._add(point.t + shift, structs.astuple(point))
        return ring

    def __len__(self) -> int:
        return min(len(self._times), self.capacity)

    @property
    def newest(self) -> float | None:
        """Time of the newest point."""
        return self._times[-1] if self._times else None

    def append(self, point: Point) -> None:
        """Add the newest point; the oldest goes when the ring is full."""
        self._add(point.t, structs.astuple(point))

    def _add(self, t: float, values: tuple[float | None, ...]) -> None:
        self._times.append(t)
        known = [_NONE if one is None or not -_LARGEST <= one <= _LARGEST else one for one in values[1:]]
        self._rows += _ROW.pack(*known)
        if len(self._times) >= self._limit:
            self._trim()

    def _trim(self) -> None:
        times, size = self._times, _ROW.size
        if self.spacing:
            begin = self._thinned
            last = times[begin - 1] if begin else -math.inf
            kept: list[int] = []
            for at in range(begin, len(times) - FULL):
                if times[at] - last >= self.spacing:
                    kept.append(at)
                    last = times[at]
            self._thinned += len(kept)
            kept += range(len(times) - FULL, len(times))
            self._rows[begin * size :] = b"".join([self._rows[at * size : (at + 1) * size] for at in kept])
            times[begin:] = array("d", [times[at] for at in kept])
        over = len(times) - self.capacity
        if over > 0:
            del times[:over], self._rows[: over * size]
            self._thinned = max(0, self._thinned - over)
        self._limit = len(times) + FULL

    def column(self, name: str) -> list[float]:
        """Return one column, oldest first; NaN where a value was unknown."""
        if name == "t":
            return self._times[-self.capacity :].tolist()
        with memoryview(self._rows) as rows, rows.cast("f") as numbers:
            found: list[float] = numbers[_AT[name] :: _WIDTH].tolist()  # type: ignore[assignment]  # of a cast view
            return found[-self.capacity :]

    @property
    def begins(self) -> float:
        """Return the oldest time; IndexError when there is none."""
        return self._times[max(0, len(self._times) - self.capacity)]

    def last(self, name: str) -> float | None:
        """Return the newest value of a column, or None."""
        if not self._times:
            return None
        value: float = self._times[-1] if name == "t" else _ROW.unpack_from(self._rows, -_ROW.size)[_AT[name]]
        return None if math.isnan(value) else value

    def copy(self) -> Ring:
        """Return an independent copy, for a picture that is to stand still."""
        other = Ring(self.capacity, self.spacing)
        other._times, other._rows = self._times[:], self._rows[:]
        other._thinned, other._limit = self._thinned, self._limit
        return other


def ring_for(ranks: int) -> Ring:
    """Return an empty ring for one of a job's ranks: of many each keeps less of what is long ago, as hubs do."""
    spacing = point_spacing(ranks)
    if spacing < 1.0:
        return Ring(CAPACITY, spacing)
    return Ring(math.ceil(HISTORY_SECONDS / spacing) + FULL, spacing)


def joined(told: Sequence[Point], shift: float, seen: Ring) -> Ring:
    """Return ``seen`` with the points ``told`` (oldest first, ``shift`` seconds to be added) that it lacks.

    A second that was seen is not told again: a sample comes with its exact time, a told point may be thinned out.
    """
    times = seen.column("t")
    points: list[Point] = [Point(*row) for row in zip(*map(seen.column, COLUMNS), strict=True)]
    first = times[0] - SAME_SECOND if times else math.inf
    before = bisect_left(told, first - shift, key=attrgetter("t"))
    merged = Ring.of(told[:before], shift, seen.capacity, seen.spacing)
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
