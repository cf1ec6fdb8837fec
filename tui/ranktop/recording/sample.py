"""One sample of one rank, by the columns of ``ranktop export``; and columns over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ranktop.budget.terms import BUDGETED
from ranktop.tui.export.columns import COLUMNS, MEMORY, Column, Value
from ranktop.tui.export.rows import Row

__all__ = ["BY_NAME", "Held", "Sample", "Series", "Value"]

BY_NAME: Final[Mapping[str, Column]] = {column.name: column for column in COLUMNS}


class Series(NamedTuple):
    """One column of one rank."""

    times: list[float]
    """Wall clock, seconds since the epoch."""
    values: list[Value]
    """None: not known then."""


class Held(NamedTuple):
    """One category of one rank: what it held at the peak moment of the step last read, beside what it should."""

    times: list[float]
    """Wall clock, seconds since the epoch."""
    measured: list[int | None]
    """Bytes."""
    expected: list[int | None]
    """Bytes, at the same moment."""


class Sample(Mapping[str, Value]):
    """What one rank said at one time: a mapping of the columns of ``ranktop export`` (docs/export.md)."""

    __slots__ = ("_row",)

    def __init__(self, row: Row) -> None:
        self._row = row

    @property
    def rank(self) -> int:
        """Who said it."""
        return self._row.header.rank

    @property
    def time(self) -> float:
        """Wall clock, seconds since the epoch."""
        return self._row.time

    @property
    def step(self) -> int:
        """Steps finished."""
        return self._row.sample.step

    @property
    def moment(self) -> str | None:
        """The moment of a step of which ``measured`` and ``expected`` are; None before a step was read."""
        return self._row.moment

    @property
    def measured(self) -> dict[str, int | None]:
        """Category -> bytes at the peak moment of the step last read; the categories add up to ``total``."""
        memory = self._row.measured
        return {name: getattr(memory, name) if memory is not None else None for name in MEMORY}

    @property
    def expected(self) -> dict[str, int | None]:
        """Category -> bytes that the strategy should hold at that moment, of the categories that it speaks of."""
        amounts = self._row.expected
        return {name: amounts[name].bytes if name in amounts else None for name in BUDGETED}

    @property
    def rules(self) -> dict[str, str]:
        """Category -> the rule behind the expected bytes, or why they are not known."""
        return {name: amount.rule for name, amount in self._row.expected.items()}

    @property
    def now(self) -> dict[str, int | None]:
        """Category -> bytes when the sample was taken."""
        return {name: getattr(self._row.sample.now, name) for name in MEMORY}

    def __getitem__(self, column: str) -> Value:
        return BY_NAME[column].value(self._row)

    def __iter__(self) -> Iterator[str]:
        return iter(BY_NAME)

    def __len__(self) -> int:
        return len(BY_NAME)

    def __repr__(self) -> str:
        return f"<Sample of rank {self.rank} at {self.time:.3f}, step {self.step}>"
