"""``ranktop status``: what every rank says now, as a table for people and as JSON for scripts.

The JSON is a public contract (schema 1, documented in the README): bytes as integers, seconds as floats, unknown as
null with a reason beside it.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any, Final

from ranktop.budget.terms import CATEGORIES, MOMENTS, NOT_BUDGETED, STATES, Amount, Memory
from ranktop.probes.reading import Collectives
from ranktop.tui.cli import FOUND, NONE, matching
from ranktop.tui.session.expected import difference
from ranktop.tui.session.rank import RankView
from ranktop.tui.session.state import Session, Snapshot
from ranktop.wire.codec import clean
from ranktop.wire.endpoints import Found, JobEntry, find_jobs
from ranktop.wire.schema import Card

SCHEMA: Final = 1

ANSWER_SECONDS: Final = 3.0
"""How long a hub is waited for."""

KEYS: Final = (*CATEGORIES, "total")

BUDGETABLE: Final = (*STATES, "activations", "buffers", "runtime")
"""Categories that a budget can speak of; what the allocator caches, others use and nobody uses is not planned."""

NO_STEP: Final = "no step has been measured yet"


def print_status(wanted: str | None, *, as_json: bool) -> int:
    """Print the state of the jobs found and return the exit code: 0, or 3 when there is none."""
    found = find_jobs()
    jobs = matching(found.jobs, wanted)
    sessions = [session for entry in jobs if (session := ask(entry)) is not None]
    for problem in found.problems:
        print(f"ranktop: {clean(problem)}", file=sys.stderr)
    if as_json:
        print(json.dumps({"schema": SCHEMA, "jobs": [job_json(s.snapshot(), s.job_id) for s in sessions]}, indent=2))
    elif sessions:
        print_table(sessions)
    else:
        print(nothing_found(found, wanted), file=sys.stderr)
    return FOUND if sessions else NONE


def nothing_found(found: Found, wanted: str | None) -> str:
    """Return the line that says that there is no job, and what to do."""
    if wanted is not None and found.jobs:
        names = ", ".join(f"{entry.id} ({clean(entry.name)})" for entry in found.jobs)
        return f"ranktop: no job {wanted!r} on this machine; there are: {names}"
    return "ranktop: no job on this machine; start one with: torchrun ... -m ranktop.agent train.py"


class Asked(Session):
    """A session that was filled by one question to a hub."""

    job_id: str = ""


def ask(entry: JobEntry) -> Asked | None:
    """Return the present state of a job, or None when its hub doesn't answer (told on standard error)."""
    from ranktop.tui.session.receiver import HubSource

    source = HubSource(entry.directory)
    session = Asked()
    session.job_id = entry.id
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        while time.monotonic() < deadline:
            source.poll(0.1)
            session.feed(source.drain())
            if session.job is not None and session.ranks:
                return session
    finally:
        source.close()
    if session.job is not None:
        return session
    detail = source.link().detail or f"its hub did not answer within {ANSWER_SECONDS:.0f} s"
    print(f"ranktop: job {entry.id} ({clean(entry.name)}): {clean(detail)}", file=sys.stderr)
    return None


# -- JSON ------------------------------------------------------------------------------------------------------------


def job_json(snapshot: Snapshot, job_id: str = "") -> dict[str, Any]:
    """Return one job in the documented form."""
    job = snapshot.job
    return {
        "id": job.id if job else job_id,
        "name": job.name if job else None,
        "state": snapshot.state,
        "world_size": job.world_size if job else None,
        "strategy": strategy_json(snapshot),
        "step": snapshot.step,
        "step_seconds": snapshot.step_seconds,
        "ranks": [rank_json(view) for view in snapshot.ranks],
    }


def strategy_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return the strategy that the first rank with a model reports, by name and in words."""
    plan = next((v.card.plan for v in snapshot.ranks if v.card is not None and v.card.plan is not None), None)
    if plan is None:
        return {"name": None, "reason": "no rank has run a model yet"}
    from ranktop.budget.words import strategy_words

    layout = plan.layout
    return {
        "name": plan.strategy,
        "words": strategy_words(plan),
        "sharding": plan.fsdp.sharding if plan.fsdp else None,
        "data_parallel": layout.data,
        "shard": layout.shard,
        "replicate": layout.replicate,
        "tensor_parallel": layout.tensor,
        "pipeline_parallel": layout.pipeline,
        "precision": {
            "parameters": plan.precision.parameters,
            "gradients": plan.precision.gradients or plan.precision.parameters,
            "compute": plan.precision.compute or plan.precision.parameters,
            "reduce": plan.precision.reduce or plan.precision.gradients or plan.precision.parameters,
            "autocast": plan.precision.autocast,
            "master": plan.precision.master,
        },
        "optimizer": plan.optimizer.name or None,
        "micro_batch": plan.batch.micro_batch,
        "sequence_length": plan.batch.sequence_length,
        "accumulation": plan.batch.accumulation,
        "checkpointing": plan.checkpointing,
    }


def rank_json(view: RankView) -> dict[str, Any]:
    """Return one rank in the documented form."""
    card, sample = view.card, view.sample
    moments = sample.table.moments if sample and sample.table else {}
    measured = moments.get(view.peak) if view.peak else None
    amounts = view.budget.at(view.peak) if view.budget and view.peak else {}
    now = sample.now if sample else None
    return {
        "rank": view.rank,
        "local_rank": card.local_rank if card else None,
        "node": card.node if card else None,
        "pid": card.pid if card else None,
        "restart": view.restart,
        "device": device_json(card),
        "moment": view.peak,
        "moments_step": sample.table.step if sample and sample.table else None,
        "measured": memory_json(measured),
        "expected": expected_json(amounts, measured),
        "rules": {category: amount.rule for category, amount in amounts.items() if amount.bytes is not None},
        "tolerance": {category: amount.tolerance for category, amount in amounts.items() if amount.bytes is not None},
        "now": memory_json(now),
        "moments": {name: memory_json(moments.get(name)) for name in MOMENTS},
        "reasons": reasons(view, measured, amounts),
        "step": step_json(view),
        "collectives": collectives_json(sample.collectives if sample else None),
        "utilization": sample.device.utilization if sample else None,
        "power": sample.device.power if sample else None,
        "temperature": sample.device.temperature if sample else None,
        "agent": {
            "cpu_seconds": sample.cost.cpu_s if sample else None,
            "hook_seconds": sample.cost.hook_s if sample else None,
            "dropped": sample.cost.dropped if sample else None,
            "errors": sample.cost.errors if sample else None,
        },
        "age": view.age,
        "state": view.state,
        "end": {"how": view.end.how, "code": view.end.code, "detail": view.end.detail} if view.end else None,
    }


def device_json(card: Card | None) -> dict[str, Any]:
    """Return which device a rank computes on."""
    device = card.device if card else None
    known = device is not None and device.kind in {"cuda", "host"}
    return {
        "kind": device.kind if device and known else None,
        "uuid": device.uuid if device else None,
        "name": (device.name or None) if device else None,
        "total": device.total if device else None,
        "torch_index": device.torch_index if device else None,
        "nvml_index": device.nvml_index if device else None,
    }


def memory_json(memory: Memory | None) -> dict[str, int | None]:
    """Return bytes by category and the total; all null without a reading."""
    return memory.as_dict() if memory is not None else dict.fromkeys(KEYS)


def expected_json(amounts: dict[str, Amount], measured: Memory | None) -> dict[str, int | None]:
    """Return the budget in the same keys; the total is the device's, so that both sides share one scale."""
    found: dict[str, int | None] = {key: amounts[key].bytes if key in amounts else None for key in CATEGORIES}
    found["total"] = measured.total if measured is not None else None
    return found


def reasons(view: RankView, measured: Memory | None, amounts: dict[str, Amount]) -> dict[str, str]:
    """Return for each key that is null anywhere why it is, naming the side where they differ."""
    sample = view.sample
    found: dict[str, str] = {}
    for key in KEYS:
        parts: list[str] = []
        now_missing = sample is None or getattr(sample.now, key) is None
        if measured is None:
            parts.append(f"measured: {NO_STEP}")
        elif getattr(measured, key) is None:
            parts.append(f"measured: {_why(view, key)}")
        if now_missing:
            parts.append(f"now: {_why(view, key)}")
        if key != "total" and (key not in amounts or amounts[key].bytes is None):
            parts.append(f"expected: {_why_not_expected(view, key, amounts)}")
        if parts:
            found[key] = "; ".join(parts)
    return {**found, **_other_reasons(view)}


def _other_reasons(view: RankView) -> dict[str, str]:
    """Say why readings of the device beside its memory are null."""
    found: dict[str, str] = {}
    device = view.card.device if view.card else None
    if device is None or device.uuid is None:
        known = device is not None and device.kind == "host"
        found["uuid"] = "a host has none" if known else _why(view, "uuid")
    for name in ("utilization", "power", "temperature"):
        if view.sample is None or getattr(view.sample.device, name) is None:
            found[name] = _why(view, name)
    return found


def _why(view: RankView, key: str) -> str:
    if view.sample is None:
        return "this rank has not reported yet" if view.state in {"missing", "starting"} else "no sample"
    return view.sample.reasons.get(key) or view.sample.device.reasons.get(key) or "not reported"


def _why_not_expected(view: RankView, key: str, amounts: dict[str, Amount]) -> str:
    if key in amounts:
        return amounts[key].rule or NOT_BUDGETED
    if key not in BUDGETABLE:
        return "not part of a budget"
    return NO_STEP if view.budget is not None or view.sample is None else "no model has been seen yet"


def step_json(view: RankView) -> dict[str, Any]:
    """Return the last finished step and its phases."""
    last = view.steps[-1] if view.steps else None
    return {
        "index": last.index if last else (view.sample.step if view.sample else None),
        "seconds": last.seconds if last else None,
        "data": last.data if last else None,
        "forward": last.forward if last else None,
        "backward": last.backward if last else None,
        "optimizer": last.optimizer if last else None,
        "micro_batches": last.micro_batches if last else None,
        "phase": view.sample.phase or None if view.sample and view.end is None else None,
        "age": _step_age(view),
    }


def _step_age(view: RankView) -> float | None:
    """Seconds since the last step finished: as the sample said, and the sample's own age."""
    if view.sample is None or view.sample.step_age is None:
        return None
    return view.sample.step_age + (view.age or 0.0)


def collectives_json(collectives: Collectives | None) -> dict[str, Any]:
    """Return the position of every process group."""
    if collectives is None:
        return {"groups": [], "reason": "this rank has not reported yet"}
    groups = [
        {
            "name": group.name,
            "description": group.description,
            "size": group.size,
            "enqueued": group.enqueued,
            "completed": group.completed,
        }
        for group in collectives.groups
    ]
    return {"groups": groups, "reason": collectives.reason}


# -- table -----------------------------------------------------------------------------------------------------------


def print_table(sessions: list[Session] | list[Asked]) -> None:
    """Print a table per job, wide enough for its columns."""
    from rich.console import Console
    from rich.table import Table

    width = max(shutil.get_terminal_size().columns, 118)
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    for session in sessions:
        snapshot = session.snapshot()
        console.print(job_line(snapshot))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in {"node", "moment", "state"} else "right", no_wrap=True)
        for view in snapshot.ranks:
            table.add_row(*table_row(view))
        console.print(table)
        for view in snapshot.ranks:
            if view.end is not None and view.state != "ended":
                console.print(end_line(view), soft_wrap=True)
        console.print(f"{FOOTNOTE}\n")


FOOTNOTE: Final = (
    "MiB at each rank's peak moment; Δ: measured - expected, over what is budgeted; 0: within the rules' error"
)

COLUMNS: Final = (
    *("rank", "node", "param", "grad", "optim", "activ", "buffers", "cache", "runtime", "Δ", "util", "step", "s/step"),
    *("moment", "state"),
)


def job_line(snapshot: Snapshot) -> str:
    """Return one line about the job."""
    job = snapshot.job
    if job is None:
        return "a job that has said nothing yet"
    words = strategy_json(snapshot).get("words") or "no model seen yet"
    seen = sum(view.state != "missing" for view in snapshot.ranks)
    ranks = f"{seen}/{snapshot.world_size} ranks"
    return clean(f"{job.name} ({job.id})  {words}  {ranks}  step {snapshot.step}  {snapshot.state}")


def table_row(view: RankView) -> list[str]:
    """Return the cells of one rank."""
    memory = view.memory(view.peak)
    amounts = view.budget.at(view.peak) if view.budget and view.peak else {}
    deltas = [difference(getattr(memory, name), amounts.get(name)) for name in BUDGETABLE] if memory else []
    known = [delta for delta in deltas if delta is not None]
    last = view.steps[-1] if view.steps else None
    sample = view.sample
    parts = (*STATES, "activations", "buffers", "cache", "runtime")
    return [
        str(view.rank),
        clean(view.card.node)[:20] if view.card else "–",
        *(_mib(getattr(memory, name) if memory else None) for name in parts),
        _mib(sum(known), signed=True) if known else "–",
        f"{sample.device.utilization}%" if sample and sample.device.utilization is not None else "–",
        str(sample.step) if sample else "–",
        f"{last.seconds:.3g}" if last and last.seconds is not None else "–",
        (view.peak or "–").replace("_", " "),
        view.state + _age(view),
    ]


def end_line(view: RankView) -> str:
    """Return one line about how a rank ended."""
    from ranktop.tui.view.status import what_went_wrong

    assert view.end is not None
    code = "" if view.end.code is None else f" (code {view.end.code})"
    detail = what_went_wrong(view.end.detail)
    return clean(f"rank {view.rank} {view.state}{code}{': ' + detail if detail else ''}")


def _age(view: RankView) -> str:
    return f", {view.age:.0f} s old" if view.stale and view.age is not None else ""


def _mib(size: int | None, *, signed: bool = False) -> str:
    if size is None:
        return "–"
    return f"{size / 2**20:{'+' if signed and size else ''}.1f}"
