"""The comparison as JSON, a public contract (schema 1, documented in docs/planning.md).

Sizes are bytes (integers), times seconds (floats); what is not known is null, with a reason beside it.
"""

from __future__ import annotations

from typing import Any, Final

from ranktop.budget.collective import KINDS, Collective
from ranktop.budget.model import Model
from ranktop.budget.planning import bands
from ranktop.budget.planning.answer import Answer, Row
from ranktop.budget.planning.request import Request
from ranktop.budget.run import WITHOUT_PEAK, Projection, RankBudget
from ranktop.budget.terms import ALL_MOMENTS, BUDGETED, Amount

SCHEMA: Final = 1

NO_DEVICE: Final = "no device given: --device-memory or --gpu"
NO_LINK: Final = "no link speed given: --link"
NO_SHAPE: Final = "only the number of parameters is known"


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return the whole answer in the documented form."""
    return {
        "schema": SCHEMA,
        "model": model_json(answer.request),
        "run": run_json(answer.request),
        "best": answer.best,
        "strategies": [row_json(row) for row in answer.rows],
    }


def model_json(request: Request) -> dict[str, Any]:
    """Return the model: its exact number of parameters and its shape."""
    model = request.run.model
    shape: dict[str, int | None] = {name: getattr(model, name) or None for name in _SHAPE}
    return {
        "name": model.name or None,
        "family": model.family or None,
        "parameters": request.parameters,
        **shape,
        "tied": model.tied if model.family else None,
        "experts": model.experts if model.family else None,
        "experts_per_token": model.experts_per_token if model.family else None,
        "reasons": {name: _why_no_shape(model) for name, size in {"family": model.family, **shape}.items() if not size}
        | ({} if model.name else {"name": "given by numbers"}),
    }


_SHAPE: Final = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "positions")


def _why_no_shape(model: Model) -> str:
    return "this family has none" if model.family else NO_SHAPE


def run_json(request: Request) -> dict[str, Any]:
    """Return the run as it was asked for; null = left to each strategy."""
    run = request.run
    length = run.sequence_length or run.model.positions or None
    reasons = {}
    if length is None:
        reasons["sequence_length"] = "neither the flags nor the model say it"
    if run.device_memory is None:
        reasons["device_memory"] = NO_DEVICE
    if run.link is None:
        reasons["link"] = NO_LINK
    return {
        "world_size": run.world_size,
        "gpus_per_node": run.gpus_per_node,
        "dp": run.data,
        "tp": run.tensor,
        "pp": run.pipeline,
        "cp": run.context,
        "ep": run.expert,
        "sequence_parallel": run.sequence_parallel or None,
        "virtual_stages": run.virtual,
        "precision": run.precision,
        "optimizer": request.optimizer,
        "micro_batch": run.micro_batch,
        "sequence_length": length,
        "accumulation": run.accumulation,
        "global_batch": request.global_batch,
        "checkpointing": run.checkpointing,
        "checkpoint_every": run.checkpoint_every,
        "attention": run.attention,
        "loss": run.loss,
        "stack": run.stack,
        "lora_rank": run.lora.rank if run.lora else None,
        "quantized": run.lora.quantized if run.lora else None,
        "device": request.device if run.device_memory is not None else None,
        "device_memory": run.device_memory,
        "link": run.link,
        "own_strategy": request.own,
        "notes": list(request.notes),
        "assumptions": list(request.assumed),
        "reasons": reasons,
    }


def row_json(row: Row) -> dict[str, Any]:
    """Return one strategy: every key is there, also when the strategy is refused."""
    projection = row.projection
    rank = projection.rank
    reasons = _reasons(row)
    return {
        "name": row.name,
        "refused": projection.refused or None,
        "bytes": {**bytes_json(row.amounts), "total": row.total},
        "at_least": row.at_least if rank else None,
        "host_bytes": rank.budget.host.bytes if rank else None,
        "nvme_bytes": rank.budget.nvme.bytes if rank else None,
        "per_rank": [rank_json(each) for each in projection.ranks],
        "worst_rank": rank.ranks[0] if rank else None,
        "fits": row.fits,
        "headroom": projection.headroom,
        "max_micro_batch": projection.max_micro_batch,
        "comm_bytes_per_step": _sent(projection),
        "seconds_at_least": row.seconds,
        "collectives": [_collective(one) for one in projection.collectives],
        "peak_moment": row.moment if row.total is not None else None,
        "moment": row.moment,
        "moments": {moment: bytes_json(rank.budget.at(moment)) for moment in ALL_MOMENTS} if rank else {},
        "layout": _layout(rank) if rank else None,
        "confidence": _confidence(row),
        "rules": {name: amount.rule for name, amount in row.amounts.items() if amount.bytes is not None},
        "parts": {name: _parts(amount) for name, amount in row.amounts.items() if amount.parts},
        "assumptions": list(projection.assumptions),
        "reasons": reasons,
    }


def bytes_json(amounts: dict[str, Amount]) -> dict[str, int | None]:
    """Return the bytes of every category and their total; null where one is not known."""
    found = {name: amounts[name].bytes if name in amounts else None for name in BUDGETED}
    known = [size for size in found.values() if size is not None]
    return {**found, "total": sum(known) if len(known) == len(BUDGETED) else None}


def rank_json(rank: RankBudget) -> dict[str, Any]:
    """Return what ranks of one kind hold at their own peak, and which they are."""
    peak = rank.budget.peak()
    return {
        "ranks": list(rank.ranks),
        "stage": rank.stage,
        "bytes": bytes_json(rank.budget.at(peak or WITHOUT_PEAK)),
        "host_bytes": rank.budget.host.bytes,
        "nvme_bytes": rank.budget.nvme.bytes,
        "peak_moment": peak,
    }


def _reasons(row: Row) -> dict[str, str]:
    """Return for every key that is null why it is."""
    projection, rank = row.projection, row.projection.rank
    if projection.refused or rank is None:
        keys = ("bytes", "at_least", "host_bytes", "nvme_bytes", "worst_rank", "fits", "headroom", "max_micro_batch",
                "comm_bytes_per_step", "seconds_at_least", "peak_moment", "moment", "layout")  # fmt: skip
        return dict.fromkeys(keys, projection.refused or "no rank")
    found = row.unknown()
    unknown = f"not known: {', '.join(found)}" if found else ""
    if unknown:
        found.update(total=unknown, peak_moment=unknown)
    for name, amount in (("host_bytes", rank.budget.host), ("nvme_bytes", rank.budget.nvme)):
        if amount.bytes is None:
            found[name] = amount.rule
    device = NO_DEVICE if row.run.device_memory is None else unknown
    for name in ("fits", "headroom", "max_micro_batch"):
        if (row.fits if name == "fits" else getattr(projection, name)) is None:
            found[name] = device or "more than anybody asks for"
    if row.run.link is None:
        found["seconds_at_least"] = NO_LINK
    return found


def _sent(projection: Projection) -> dict[str, int | None]:
    """Return the bytes that the busiest GPU sends per optimizer step by operation, in ring terms."""
    if projection.rank is None:
        return dict.fromkeys((*KINDS, "total"))
    found: dict[str, int | None] = {
        kind: sum(one.sent for one in projection.collectives if one.kind == kind) for kind in KINDS
    }
    return {**found, "total": projection.sent}


def _collective(one: Collective) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "group": one.group,
        "calls": one.calls,
        "bytes": one.bytes,
        "sent": one.sent,
        "axis": one.axis,
        "phase": one.phase,
        "what": one.what,
        "rule": one.rule,
    }


def _layout(rank: RankBudget) -> dict[str, int]:
    axes = rank.plan.layout
    names = ("world_size", "replicate", "shard", "tensor", "pipeline", "context", "expert")
    return {name: getattr(axes, name) for name in names}


def _confidence(row: Row) -> dict[str, dict[str, Any]]:
    """Return the error band of every category and of the total."""
    found = {name: _band(bands.of(amount)) for name, amount in row.amounts.items()}
    if row.amounts:
        found["total"] = _band(bands.of_sum(row.amounts))
    return found


def _band(band: bands.Band) -> dict[str, Any]:
    return {"within": band.within, "guessed_bytes": band.guessed, "slack_bytes": band.slack, "words": band.words()}


def _parts(amount: Amount) -> list[dict[str, Any]]:
    return [{"name": part.name, "bytes": part.bytes} for part in amount.parts]
