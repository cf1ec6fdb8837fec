"""One job as ``ranktop status --json`` prints it: a public contract (schema 1, ``docs/status.md``).

Bytes as integers, seconds as floats, unknown as null with a reason beside it.
"""

from __future__ import annotations

from typing import Any, Final

from ranktop.budget.terms import CATEGORIES, MOMENTS, NOT_BUDGETED, STATES, Amount, Memory
from ranktop.tui.session.nodes import host_of
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.status_device import allocator_json, device_json, strays_json
from ranktop.tui.status_findings import box_json, finding_json, stack_json
from ranktop.tui.status_parts import KEYS, collectives_json, memory_json, mesh_json
from ranktop.tui.status_progress import job_progress_json, job_rate_json, rank_progress_json, rank_rate_json
from ranktop.tui.view.label import simulated
from ranktop.wire.codec import clean

__all__ = ["BUDGETABLE", "KEYS", "NO_STEP", "job_json", "rank_json", "strategy_json"]

BUDGETABLE: Final = (*STATES, "activations", "buffers", "runtime")
"""Categories that a budget can speak of; what the allocator caches, others use and nobody uses is not planned."""

NO_STEP: Final = "no step has been measured yet"


def job_json(snapshot: Snapshot, job_id: str = "") -> dict[str, Any]:
    """Return one job in the documented form."""
    job = snapshot.job
    return {
        "id": job.id if job else job_id,
        "name": job.name if job else None,
        "simulated": simulated(view.card for view in snapshot.ranks),
        "state": snapshot.state,
        "world_size": snapshot.world_size if job else None,
        "strategy": strategy_json(snapshot),
        "step": snapshot.step,
        "step_seconds": snapshot.step_seconds,
        "progress": job_progress_json(snapshot),
        "rate": job_rate_json(snapshot),
        "nodes": nodes_json(snapshot),
        "ranks": [rank_json(view, snapshot) for view in snapshot.ranks],
        "findings": [finding_json(finding, snapshot) for finding in snapshot.findings],
        "findings_off": {**dict.fromkeys(sorted(snapshot.limits.off), "never"), **snapshot.limits.floors},
        "recording": None,
    }


def nodes_json(snapshot: Snapshot) -> list[dict[str, Any]] | None:
    """Return the nodes as the hub that was asked sees them; None for a job of one."""
    if not snapshot.nodes:
        return None
    return [
        {
            "node_rank": node.node_rank,
            "host": node.host or None,
            "state": node.state,
            "since_s": max(0.0, snapshot.now - node.since),
            "ranks": list(node.ranks),
            "missed": node.missed,
            "detail": node.detail,
        }
        for node in snapshot.nodes
    ]


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


def rank_json(view: RankView, snapshot: Snapshot) -> dict[str, Any]:
    """Return one rank in the documented form."""
    card, sample = view.card, view.sample
    moments = sample.table.moments if sample and sample.table else {}
    measured = moments.get(view.peak) if view.peak else None
    amounts = view.budget.at(view.peak) if view.budget and view.peak else {}
    now = sample.now if sample else None
    return {
        "rank": view.rank,
        "local_rank": card.local_rank if card else None,
        "node": host_of(card) if card else None,
        "node_rank": card.node_rank if card else None,
        "pid": card.pid if card else None,
        "pids": list(card.pids or (card.pid,)) if card else None,
        "restart": view.restart,
        "mesh": mesh_json(card),
        "device": device_json(view, snapshot),
        "allocator": allocator_json(view),
        "strays": strays_json(view, snapshot),
        "moment": view.peak,
        "moments_step": sample.table.step if sample and sample.table else None,
        "measured": memory_json(measured),
        "expected": expected_json(amounts, measured),
        "rules": {category: amount.rule for category, amount in amounts.items() if amount.bytes is not None},
        "tolerance": {category: amount.tolerance for category, amount in amounts.items() if amount.bytes is not None},
        "now": memory_json(now),
        "moments": {name: memory_json(moments.get(name)) for name in MOMENTS},
        "reasons": reasons(view, measured, amounts),
        "notes": notes(view, measured),
        "step": step_json(view),
        "progress": rank_progress_json(view),
        "rate": rank_rate_json(view),
        "activity": (clean(sample.activity) or None) if sample and view.end is None else None,
        "trainer": (clean(card.trainer) or None) if card else None,
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
        "process": view.process or None,
        "stack": stack_json(view, snapshot.now),
        "box": box_json(view, snapshot.now),
    }


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


def notes(view: RankView, measured: Memory | None) -> dict[str, str]:
    """Return for each category that has a value how it was come by, where that was not the plain way."""
    if view.sample is None:
        return {}
    said, now = view.sample.reasons, view.sample.now
    known = (key for key in KEYS if getattr(now, key) is not None and getattr(measured or now, key) is not None)
    return {key: said[key] for key in known if said.get(key)}


def _other_reasons(view: RankView) -> dict[str, str]:
    """Say why what the rank says of itself and readings of the device beside its memory are null."""
    found: dict[str, str] = {}
    if view.card is None:
        found.update(
            dict.fromkeys(("local_rank", "node", "node_rank", "pid", "pids"), "this rank has not reported yet")
        )
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
