"""What a search for plans that fit returns."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas

    from ranktop.budget.fit import Fit
    from ranktop.budget.planning.request import Request

COLUMNS: Final = (
    ("name", "string"), ("precision", "string"), ("checkpointing", "string"), ("micro_batch", "Int64"),
    ("accumulation", "Int64"), ("total", "Int64"), ("headroom", "Int64"), ("margin", "Int64"), ("tight", "boolean"),
    ("host_bytes", "Int64"), ("nvme_bytes", "Int64"), ("sent", "Int64"), ("seconds", "Float64"),
)  # fmt: skip
"""Of the frame, and their pandas types. ``seconds``: lost per step beside its computation, at least."""


class Candidates:
    """Plans that fit for one global batch, the cheapest first."""

    def __init__(self, request: Request, found: Fit, plan: int = 1) -> None:
        self._request, self._found, self._plan = request, found, plan

    def __len__(self) -> int:
        return len(self._found.fitting)

    @property
    def reason(self) -> str | None:
        """Why nothing could be judged."""
        return self._found.reason or None

    @property
    def configs(self) -> dict[str, str]:
        """Form (``deepspeed``, ``accelerate``, ``code``, ``megatron``) -> the lines that ask for the chosen plan."""
        from ranktop.budget.fitting.lines import lines_of

        if not self._found.fitting:
            return {}
        return {kind: "\n".join(text) for kind, text in lines_of(self._found.fitting[self._plan - 1]).items()}

    def to_dict(self) -> dict[str, Any]:
        """Return what ``ranktop plan --fit --json`` prints for the same question."""
        from ranktop.budget.planning.fit_json import fit_json

        return fit_json(self._request, self._found)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row for each plan that fits; sizes in bytes, seconds lost per step at least.

        Raises ImportError with one line when pandas is not installed.
        """
        from ranktop.budget.notebook.frames import frame

        plans = self.to_dict()["fit"]["fitting"]
        table: dict[str, list[Any]] = {name: [each[name] for each in plans] for name, _ in COLUMNS[:-1]}
        table["seconds"] = [each["seconds"]["total"] for each in plans]
        return frame(COLUMNS, table, index=("plan", [each["plan"] for each in plans]))

    def text(self, width: int | None = None) -> str:
        """Return the page of ``ranktop plan --fit`` in ``width`` cells; None: of the terminal, 80 without one."""
        from ranktop.budget.planning.fit_page import page

        width = width or max(20, get_terminal_size((80, 24)).columns)
        return page(self._request, self._found, width, self._plan, colour=False)

    def __str__(self) -> str:
        return self.text().rstrip("\n")

    def __repr__(self) -> str:
        first = self._found.fitting[0].title if self._found.fitting else None
        return f"<Candidates: {len(self)} plans fit, the cheapest {first}>"

    def _repr_html_(self) -> str:
        """Return the page for a notebook, escaped."""
        from html import escape

        return f"<pre>{escape(self.text(120))}</pre>"
