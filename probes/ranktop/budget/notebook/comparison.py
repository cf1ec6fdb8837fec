"""What ``compare`` returns: a table that prints, that a notebook shows, and that pandas takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final

from ranktop.budget.model import BadInput
from ranktop.budget.planning.answer import Answer, Row
from ranktop.budget.terms import BUDGETED

if TYPE_CHECKING:
    import pandas

    from ranktop.budget.notebook.found import Candidates

COLUMNS: Final = (
    *((name, "Int64") for name in (*BUDGETED, "total", "at_least", "host_bytes", "nvme_bytes")),
    ("comm_bytes_per_step", "Int64"), ("seconds_at_least", "Float64"), ("fits", "boolean"), ("headroom", "Int64"),
    ("max_micro_batch", "Int64"), ("peak_moment", "string"), ("worst_rank", "Int64"), ("refused", "string"),
)  # fmt: skip
"""Of the frame, and their pandas types: what is not known is missing there, not 0."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One strategy's answer. Sizes are bytes of the fullest rank at its peak; None = not known (``reasons``)."""

    _row: Row

    @property
    def name(self) -> str:
        """The strategy."""
        return self._row.name

    @property
    def refused(self) -> str | None:
        """Why the strategy cannot run this; then every number is None."""
        return self._row.projection.refused or None

    @property
    def bytes(self) -> dict[str, int | None]:
        """Category -> bytes: parameters, gradients, optimizer, activations, buffers, runtime."""
        amounts = self._row.amounts
        return {name: amounts[name].bytes if name in amounts else None for name in BUDGETED}

    @property
    def total(self) -> int | None:
        """Bytes of the fullest rank at its peak."""
        return self._row.total

    @property
    def at_least(self) -> int | None:
        """The most of what is known at any moment of the step, in bytes."""
        return self._row.at_least if self._row.projection.rank is not None else None

    @property
    def fits(self) -> bool | None:
        """Whether the fullest rank fits into the device; None without one."""
        return self._row.fits

    @property
    def headroom(self) -> int | None:
        """Bytes of the device that are left; negative: missing."""
        return self._row.projection.headroom

    @property
    def max_micro_batch(self) -> int | None:
        """The largest micro-batch that fits, in samples, everything else as it is."""
        return self._row.projection.max_micro_batch

    @property
    def peak_moment(self) -> str | None:
        """The moment of a step at which it needs the most."""
        return self._row.moment if self._row.total is not None else None

    @property
    def seconds_at_least(self) -> float | None:
        """Seconds that the busiest GPU sends per step at least; None without the speed of a link."""
        return self._row.seconds

    @property
    def reasons(self) -> dict[str, str]:
        """Why what is None is not known, by its name."""
        told: dict[str, str] = self.to_dict()["reasons"]
        return told

    def to_dict(self) -> dict[str, Any]:
        """Return it as ``ranktop plan --json`` has it under ``strategies`` (docs/planning.md)."""
        from ranktop.budget.planning.as_json import row_json

        return row_json(self._row)

    def __repr__(self) -> str:
        if self.refused is not None:
            return f"<Estimate {self.name}: not possible: {self.refused}>"
        return f"<Estimate {self.name}: total {self.total} B, fits {self.fits}>"


class Comparison:
    """Every strategy's ``Estimate`` for one run, in the order of the table; by name or by number."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    @cached_property
    def estimates(self) -> tuple[Estimate, ...]:
        """One for each strategy that was asked for."""
        return tuple(Estimate(row) for row in self._answer.rows)

    @property
    def best(self) -> str | None:
        """The strategy that fits and loses the least time; None when nothing fits, or nobody said into what."""
        return self._answer.best

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return self._answer.request.parameters

    def __len__(self) -> int:
        return len(self._answer.rows)

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.estimates)

    def __getitem__(self, strategy: str | int) -> Estimate:
        if isinstance(strategy, int):
            return self.estimates[strategy]
        found = next((each for each in self.estimates if each.name == strategy), None)
        if found is None:
            raise KeyError(f"{strategy!r} was not compared; there are {', '.join(each.name for each in self)}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return what ``ranktop plan --json`` prints for the same question (schema 1, docs/planning.md)."""
        from ranktop.budget.planning.as_json import answer_json

        return answer_json(self._answer)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row for each strategy; sizes in bytes, times in seconds, what is not known is missing (``<NA>``).

        Raises ImportError with one line when pandas is not installed.
        """
        from ranktop.budget.notebook.frames import frame

        told = self.to_dict()["strategies"]
        table: dict[str, list[Any]] = {name: [] for name, _ in COLUMNS}
        for row in told:
            flat = {**row, **row["bytes"], "comm_bytes_per_step": row["comm_bytes_per_step"]["total"]}
            for name, column in table.items():
                column.append(flat[name])
        return frame(COLUMNS, table, index=("strategy", [row["name"] for row in told]))

    def search(self, *, plan: int = 1) -> Candidates:
        """Return the plans that fit for the same global batch, the cheapest first: ``ranktop plan --fit``.

        plan: the one whose config lines are shown, from 1. Raises BadInput.
        """
        from ranktop.budget.notebook.ask import named_as_keywords
        from ranktop.budget.notebook.found import Candidates
        from ranktop.budget.planning.fitting import search

        with named_as_keywords():
            found = search(self._answer.request)
            if found.fitting and not 1 <= plan <= len(found.fitting):
                raise BadInput(f"plan={plan}: there are plans 1 to {len(found.fitting)}")
        return Candidates(self._answer.request, found, plan)

    def text(self, width: int | None = None) -> str:
        """Return the page of ``ranktop plan`` in ``width`` cells; None: of the terminal, 80 without one."""
        from ranktop.budget.planning.page import page

        return page(self._answer, width or max(20, get_terminal_size((80, 24)).columns), colour=False)

    def __str__(self) -> str:
        return self.text().rstrip("\n")

    def __repr__(self) -> str:
        name = self._answer.request.run.model.name or "model"
        return f"<Comparison of {len(self)} strategies for {name}: best {self.best}>"

    def _repr_html_(self) -> str:
        """Return the table for a notebook: plain HTML, every text escaped."""
        from ranktop.budget.notebook.html import comparison_html

        return comparison_html(self._answer)
