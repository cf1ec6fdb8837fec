"""The known answers, and how the product is asked for each: one table, printed by the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).parents[1] / "data" / "budget_cases.json"

UNITS: Final = {"B": 1, "GB": 1e9, "MB": 1e6, "GiB": 2**30, "MiB": 2**20}


@dataclass(frozen=True)
class Case:
    """One known answer."""

    id: str
    kind: str
    source: str
    case: str
    inputs: dict[str, Any]
    quantity: str
    value: Any
    unit: str
    tolerance_rel: float
    note: str = ""

    @property
    def bytes(self) -> float:
        """The answer in bytes, for those that are in a unit of memory."""
        return float(self.value) * UNITS[self.unit]


class NotAsked(Exception):
    """Raised by an answer for a case that cannot be asked; the text says why."""


Answer = Callable[[Case], float | list[float]]
"""Returns the product's number in the case's own unit."""

_ANSWERS: Final[list[tuple[str, str, Answer]]] = []


def answers(source: str, quantity: str = "") -> Callable[[Answer], Answer]:
    """Register a function for all cases whose source starts so and whose quantity starts so."""

    def register(answer: Answer) -> Answer:
        _ANSWERS.append((source, quantity, answer))
        return answer

    return register


@cache
def cases(path: Path = DATA) -> tuple[Case, ...]:
    """Return all known answers of a file in their order."""
    return tuple(Case(**entry) for entry in json.loads(path.read_text()))


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    case: Case
    ours: float | list[float] | None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Relative error; for lists 0 when equal and 1 otherwise; None when it was not asked."""
        if self.ours is None:
            return None
        if isinstance(self.case.value, list):
            return 0.0 if list(self.case.value) == self.ours else 1.0
        assert isinstance(self.ours, (int, float))
        value = float(self.case.value)
        return abs(self.ours - value) / abs(value) if value else float(self.ours != value)

    @property
    def inside(self) -> bool | None:
        """Whether the error is within the case's tolerance."""
        return None if self.error is None else self.error <= self.case.tolerance_rel + 1e-9


def rows(source: str = "", path: Path = DATA) -> Iterator[Row]:
    """Ask the product for every case of a file whose source starts so."""
    for case in cases(path):
        if not case.source.startswith(source):
            continue
        found = [a for s, q, a in _ANSWERS if case.source.startswith(s) and case.quantity.startswith(q)]
        if not found:
            yield Row(case, None, "no answer is registered")
            continue
        try:
            yield Row(case, found[-1](case))
        except NotAsked as reason:
            yield Row(case, None, str(reason))


def table(found: list[Row], only_bad: bool = False) -> str:
    """Return rows as text: case, published, ours, error."""
    lines = []
    for row in found:
        if only_bad and row.inside is not False:
            continue
        error = "not asked" if row.error is None else f"{row.error:8.2%}"
        ours = row.reason if row.ours is None else f"{row.ours}"
        mark = {True: "ok", False: "OFF", None: "-"}[row.inside]
        lines.append(f"{row.case.id} {row.case.case[:70]:70} {row.case.value!s:>18} {ours:>18} {error:>9} {mark}")
    return "\n".join(lines)
