"""``ranktop plan --fit``: the plans that fit for one global batch, the cheapest first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ranktop.tui.planning.as_json import SCHEMA, model_json, run_json
from ranktop.tui.planning.notes import device_line, model_line, run_line
from ranktop.tui.planning.sizes import GIB, fold, seconds

if TYPE_CHECKING:
    from ranktop.budget.fit import Candidate, Fit
    from ranktop.tui.planning.request import Request

SHOWN: Final = 20
"""Plans in the table; JSON has them all."""

CONFIGS: Final = {"deepspeed": "DeepSpeed's JSON", "accelerate": "Accelerate's YAML", "code": "the script"}
"""Kinds of ``config_lines`` in words."""

HEADS: Final = ("plan", "precision", "ckpt", "batch", "accum", "total", "left", "lost")


def text(request: Request, *, as_json: bool, width: int) -> str:
    """Return the answer of the search as a page or as JSON. Raises BadInput."""
    from ranktop.budget.fit import fit, speeds

    run = request.run
    at = speeds(run.link, request.device, several_nodes=run.world_size > run.gpus_per_node)
    found = fit(run, batch=request.global_batch, strategies=request.strategies, present=request.own or "", at=at)
    if as_json:
        return json.dumps(fit_json(request, found), indent=2) + "\n"
    return "\n".join(_page(request, found, width)) + "\n"


# -- JSON ------------------------------------------------------------------------------------------------------------


def fit_json(request: Request, found: Fit) -> dict[str, Any]:
    """Return the answer in the documented form."""
    return {
        "schema": SCHEMA,
        "model": model_json(request),
        "run": run_json(request),
        "fit": {
            "global_batch": found.global_batch,
            "layouts": found.layouts,
            "tried": found.tried,
            "speeds": found.speeds.words(request.run.world_size > request.run.gpus_per_node),
            "fitting": [_candidate(one) for one in found.fitting],
            "present": _candidate(found.present) if found.present else None,
            "nearest": _candidate(found.nearest) if found.nearest else None,
            "less_precise": found.less_precise or None,
            "more_ranks": {"world_size": found.more_ranks[0], "plan": found.more_ranks[1]}
            if found.more_ranks
            else None,
            "shorter_sequence": found.shorter,
            "suggestions": [{"words": one.words, **_candidate(one.candidate)} for one in found.suggestions],
            "reason": found.reason or None,
        },
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    cost = one.seconds
    return {
        "name": one.strategy,
        "plan": one.title,
        "also": list(one.also),
        "precision": one.run.precision,
        "checkpointing": one.run.checkpointing,
        "micro_batch": one.run.micro_batch,
        "accumulation": one.run.accumulation,
        "total": one.total,
        "headroom": one.projection.headroom,
        "missing": one.missing,
        "tight": one.tight,
        "sent": one.sent,
        "seconds": {
            "sending": cost.sending,
            "copying": cost.copying,
            "recomputing": cost.recomputing,
            "waiting": cost.waiting,
            "total": cost.total,
        },
        "changes": list(one.changes),
        "configs": {kind: "\n".join(lines) for kind, lines in _configs(one).items()},
    }


def _configs(one: Candidate) -> dict[str, list[str]]:
    """Return the lines of every config that can ask for a plan, the most direct first."""
    from ranktop.budget.config_lines import config_lines, kinds_for

    return {kind: config_lines(one.plan, kind) for kind in kinds_for(one.plan)}


# -- page ------------------------------------------------------------------------------------------------------------


def _page(request: Request, found: Fit, width: int) -> Iterator[str]:
    """Yield the lines of the page."""
    run = request.run
    yield from fold(model_line(request), width, "  ")
    yield from fold(f"{run_line(request)}; {device_line(request)}", width, "  ")
    yield ""
    if not found.fitting:
        yield from _nothing(found, width)
        return
    if found.less_precise:
        yield from fold(f"nothing fits with {run.precision}; with {found.less_precise}:", width, "  ")
    yield from _table(found, width)
    yield from fold(
        f"The cheapest plan of each strategy that fits {found.global_batch} samples a step, of {found.tried} judged in "
        f"{found.layouts} layouts. In GiB on the worst rank; left: free beside it, ! less than the "
        "total may be off; lost: per step, to sending, copying, recomputing and waiting, nothing overlapped, at "
        f"{found.speeds.words(run.world_size > run.gpus_per_node)}.",
        width,
    )
    yield ""
    yield from _first(found.fitting[0], width)


def _table(found: Fit, width: int) -> list[str]:
    """Return head and rows; what each changes stands behind it where there is room."""
    rows = [(HEADS, "change"), *((_row(one), ", ".join(one.changes) or "nothing") for one in found.fitting[:SHOWN])]
    widths = [max(len(cells[i]) for cells, _ in rows) for i in range(len(HEADS))]
    lines = ["  ".join(_cell(text, size, i) for i, (text, size) in enumerate(zip(cells, widths, strict=True)))
             for cells, _ in rows]  # fmt: skip
    changed = [f"{line}  {change}" for line, (_, change) in zip(lines, rows, strict=True)]
    return [line.rstrip() for line in (changed if max(map(len, changed)) <= width else lines)]


def _cell(text: str, size: int, index: int) -> str:
    return text.ljust(size) if index < 3 else text.rjust(size)


def _row(one: Candidate) -> tuple[str, ...]:
    return (
        one.title,
        one.run.precision,
        one.run.checkpointing,
        str(one.run.micro_batch),
        str(one.run.accumulation),
        GIB.write(one.total),
        ("!" if one.tight else "") + GIB.write(one.projection.headroom),
        seconds(one.cost),
    )


def _first(one: Candidate, width: int) -> Iterator[str]:
    """Yield what the best plan changes, and the lines that ask for it."""
    yield from fold(f"first: {', '.join(one.changes) or 'no change'}", width, "    ")
    for kind, lines in _configs(one).items():
        yield f"in {CONFIGS[kind]}:"
        yield from (f"  {line}" for line in lines)
        return


def _nothing(found: Fit, width: int) -> Iterator[str]:
    """Yield what is nearest and what would help."""
    one = found.nearest
    if one is None:
        yield from fold(f"no plan can be judged: {found.reason}", width, "  ")
        return
    yield from fold(
        f"nothing fits for {found.global_batch} samples a step: {one.title} with micro-batch {one.run.micro_batch}, "
        f"{one.run.checkpointing} checkpointing, {one.run.precision} comes nearest, {GIB.named(one.missing)} too much",
        width,
        "  ",
    )
    if found.more_ranks is not None:
        yield from fold(f"more GPUs: {found.more_ranks[1]} fits on {found.more_ranks[0]}", width, "  ")
    if found.shorter is not None:
        yield from fold(f"shorter: it fits with {found.shorter} tokens per sample", width, "  ")
    for each in found.suggestions:
        yield from fold(f"{each.words}: {each.candidate.title}, {GIB.named(each.candidate.total)}", width, "  ")
