"""``ranktop plan --fit``: the plans that fit for one global batch, the cheapest first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ranktop.budget.model import BadInput

if TYPE_CHECKING:
    from ranktop.budget.fit import Fit
    from ranktop.budget.planning.request import Request


def text(request: Request, *, as_json: bool, width: int, number: int = 1, colour: bool = False) -> str:
    """Return the answer of the search as a page or as JSON; ``number``: the plan whose lines are shown.

    Raises BadInput.
    """
    found = search(request)
    if found.fitting and not 1 <= number <= len(found.fitting):
        raise BadInput(f"--fit-plan {number}: there are plans 1 to {len(found.fitting)}")
    if as_json:
        from ranktop.budget.planning.fit_json import fit_json

        return json.dumps(fit_json(request, found), indent=2) + "\n"
    from ranktop.budget.planning.fit_page import page

    return page(request, found, width, number, colour)


def search(request: Request) -> Fit:
    """Return the plans that fit. Raises BadInput."""
    from ranktop.budget.fit import fit, speeds

    run = request.run
    at = speeds(run.link, request.device, several_nodes=run.world_size > run.gpus_per_node)
    return fit(run, batch=request.global_batch, strategies=request.strategies, present=request.own or "", at=at)


def shown_number(typed: str | None) -> int:
    """Return which plan's lines are shown. Raises BadInput."""
    from ranktop.budget.planning.numbers import whole

    return 1 if typed is None else whole("--fit-plan", typed, 1000)
