"""History of one rank in a bounded, compact form: eleven numbers a second for half an hour."""

from __future__ import annotations

import math
from array import array
from typing import Final

from ranktop.wire.schema import Point

CAPACITY: Final = 1800
"""Points kept per rank: 30 minutes at one a second."""

COLUMNS: Final = Point.__struct_fields__
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
