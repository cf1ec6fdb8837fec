"""A rank's last looks at its collectives in compact form: of a thousand ranks they are a quarter of a million."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, overload

from ranktop.wire.schema import Look

_ABSENT: Final = -(2**63)
"""There was no such group yet."""

_UNKNOWN: Final = _ABSENT + 1
_LARGEST: Final = 2**63 - 1

_SLACK: Final = 64
"""Looks beyond the capacity after which the oldest are dropped."""


class Looks(Sequence[Look]):
    """The last ``capacity`` looks, oldest first; each costs eight bytes and eight more a process group."""

    __slots__ = ("_numbers", "_width", "capacity")

    def __init__(self, capacity: int, looks: Iterable[Look] = ()) -> None:
        self.capacity = capacity
        self._width = 2
        self._numbers = array("q")
        self.extend(looks)

    @property
    def slot(self) -> int:
        """Slot of the newest look; -1 before the first."""
        return self._numbers[-self._width] if self._numbers else -1

    def extend(self, looks: Iterable[Look]) -> None:
        """Add newer looks, oldest first."""
        numbers, width = self._numbers, self._width
        for look in looks:
            if len(look.positions) == width - 1:
                row: tuple[Any, ...] = (look.slot, *look.positions)
                try:
                    numbers.extend(row)
                    continue
                except (OverflowError, TypeError):  # what comes before the one that it cannot take is there
                    del numbers[len(numbers) // width * width :]
            self._add(look)
            numbers, width = self._numbers, self._width
        if len(self._numbers) > (self.capacity + _SLACK) * self._width:
            del self._numbers[: -self.capacity * self._width]

    def _add(self, look: Look) -> None:
        positions = look.positions
        spare = self._width - 1 - len(positions)
        if spare < 0:
            self._widen(len(positions) + 1)
            spare = 0
        row = [_UNKNOWN if one is None else max(_UNKNOWN, min(one, _LARGEST)) for one in (look.slot, *positions)]
        self._numbers.extend([*row, *[_ABSENT] * spare])

    def _widen(self, width: int) -> None:
        """A group was made: older looks know nothing of it."""
        before = list(self)
        self._width, self._numbers = width, array("q")
        for look in before:
            self._add(look)

    def _look(self, row: Sequence[int]) -> Look:
        slot, *rest = row
        if _ABSENT in rest:
            rest = rest[: rest.index(_ABSENT)]
        if _UNKNOWN in rest:
            return Look(slot, tuple(None if one == _UNKNOWN else one for one in rest))
        return Look(slot, tuple(rest))

    def __len__(self) -> int:
        return min(len(self._numbers) // self._width, self.capacity)

    @overload
    def __getitem__(self, at: int) -> Look: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Look]: ...
    def __getitem__(self, at: int | slice) -> Look | Sequence[Look]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        count = len(self)
        if not -count <= at < count:
            raise IndexError(at)
        begin = len(self._numbers) + ((at - count) if at >= 0 else at) * self._width
        return self._look(self._numbers[begin : begin + self._width])

    def __iter__(self) -> Iterator[Look]:
        return map(self._look, self._rows())

    def __reversed__(self) -> Iterator[Look]:
        numbers, width = self._numbers, self._width
        for end in range(len(numbers), len(numbers) - len(self) * width, -width):
            yield self._look(numbers[end - width : end])

    def between(self, first: int, last: int) -> list[tuple[int, tuple[int | None, ...]]]:
        """Return (slot, positions) of the looks in slots from ``first`` to ``last``, oldest first."""
        width = self._width
        count = min(len(self), max(0, self.slot - first + 1))
        part = self._numbers[len(self._numbers) - count * width :]
        if _UNKNOWN in part or _ABSENT in part:
            known = [(look.slot, look.positions) for at in range(0, len(part), width)
                     for look in (self._look(part[at : at + width]),)]  # fmt: skip
        else:
            columns = [part[at::width] for at in range(width)]
            known = list(zip(columns[0], zip(*columns[1:], strict=True), strict=True))
        return [one for one in known if first <= one[0] <= last]

    def _rows(self) -> Iterator[array[int]]:
        numbers, width = self._numbers, self._width
        for begin in range(len(numbers) - len(self) * width, len(numbers), width):
            yield numbers[begin : begin + width]
