"""``ranktop plan --fit``: the plans that fit for one global batch, the cheapest first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ranktop.tui.planning.as_json import SCHEMA, model_json, run_json
from ranktop.tui.planning.notes import device_line, model_line
from ranktop.tui.planning.sizes import GIB, fold, seconds

if TYPE_CHECKING:
    from ranktop.budget.fit import Candidate, Fit
    from ranktop.tui.planning.request import Request

SHOWN: Final = 20
"""Plans in the table; JSON has them all."""

CONFIGS: Final = {"deepspeed": "DeepSpeed's JSON", "accelerate": "Accelerate's YAML", "code": "the script"}
"""Kinds of ``config_lines`` in words."""

HEADS: Final = ("strategy", "precision", "ckpt", "batch", "accum", "total", "left", "lost")


def text(request: Request, *, as_json: bool, width: int) -> str:
    """Return the answer of the search as a page or as JSON. Raises BadInput."""
    from ranktop.budget.fit import fit

    found = fit(request.run, batch=request.global_batch, strategies=request.strategies, present=request.own or "")
    if as_json:
        return json.dumps(fit_json(request, found), indent=2) + "\n"
    return "\n".join(_page(request, found, width)) + "\n"


def fit_json(request: Request, found: Fit) -> dict[str, Any]:
    """Return the answer in the documented form."""
    return {
        "schema": SCHEMA,
        "model": model_json(request),
        "run": run_json(request),
        "fit": {
            "global_batch": found.global_batch,
            "tried": found.tried,
            "fitting": [_candidate(one) for one in found.fitting],
            "nearest": _candidate(found.nearest) if found.nearest else None,
        },
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    rank = one.projection.rank
    return {
        "name": one.projection.strategy,
        "precision": one.run.precision,
        "checkpointing": one.run.checkpointing,
        "micro_batch": one.run.micro_batch,
        "accumulation": one.run.accumulation,
        "total": rank.total if rank else None,
        "headroom": one.projection.headroom,
        "missing": one.missing,
        "seconds": {"sending": one.sending, "copying": one.copying, "recomputing": one.recomputing, "total": one.cost},
        "changes": list(one.changes),
        "configs": {kind: "\n".join(lines) for kind, lines in _configs(one).items()},
    }


def _page(request: Request, found: Fit, width: int) -> list[str]:
    told = [*fold(model_line(request), width, "  ")]
    told += fold(f"{found.global_batch} samples a step; {device_line(request)}", width, "  ")
    if not found.fitting:
        return [*told, "", *_nothing(found, width)]
    legend = (
        f"{len(found.fitting)} of {found.tried} plans fit. In GiB on the worst rank; left: free beside it; lost: at "
        "least, per step, to sending, copying and recomputing, nothing overlapped."
    )
    return [*told, "", *_table(found, width), *fold(legend, width), "", *_first(found.fitting[0], width)]


def _table(found: Fit, width: int) -> list[str]:
    """Return head and rows; what each changes stands behind it where there is room."""
    rows = [(HEADS, "change"), *((_row(one), ", ".join(one.changes) or "nothing") for one in found.fitting[:SHOWN])]
    widths = [max(len(cells[i]) for cells, _ in rows) for i in range(len(HEADS))]
    lines = ["  ".join(_cell(text, size, i) for i, (text, size) in enumerate(zip(cells, widths, strict=True)))
             for cells, _ in rows]  # fmt: skip
    changed = [f"{line}  {change}" for line, (_, change) in zip(lines, rows, strict=True)]
    return [line.rstrip() for line in (changed if max(map(len, changed)) <= width else lines)]


def _first(one: Candidate, width: int) -> list[str]:
    """Return what the best plan changes, and the lines that ask for it."""
    told = fold(f"first: {', '.join(one.changes) or 'no change'}", width, "    ")
    for kind, lines in _configs(one).items():
        return [*told, f"in {CONFIGS[kind]}:", *(f"  {line}" for line in lines)]
    return told


def _configs(one: Candidate) -> dict[str, list[str]]:
    """Return the lines of every config that can ask for a plan, the most direct first."""
    from ranktop.budget.config_lines import config_lines, kinds_for

    rank = one.projection.rank
    return {kind: config_lines(rank.plan, kind) for kind in kinds_for(rank.plan)} if rank is not None else {}


def _cell(text: str, size: int, index: int) -> str:
    return text.ljust(size) if index < 3 else text.rjust(size)


def _row(one: Candidate) -> tuple[str, ...]:
    rank = one.projection.rank
    return (
        one.projection.strategy,
        one.run.precision,
        one.run.checkpointing,
        str(one.run.micro_batch),
        str(one.run.accumulation),
        GIB.write(rank.total if rank else None),
        GIB.write(one.projection.headroom),
        seconds(one.cost),
    )


def _nothing(found: Fit, width: int) -> list[str]:
    if not found.tried:
        line = f"nothing to try: {found.global_batch} samples a step cannot be dealt out evenly, or no strategy can run"
        return fold(line, width, "  ")
    if found.nearest is None:
        return ["no plan can be judged: the bytes of no strategy are known in full"]
    one = found.nearest
    line = (
        f"nothing fits: of {found.tried} plans, {one.projection.strategy} with micro-batch {one.run.micro_batch}, "
        f"{one.run.checkpointing} checkpointing, {one.run.precision} is nearest, {GIB.named(one.missing)} too much"
    )
    return fold(line, width, "  ")
