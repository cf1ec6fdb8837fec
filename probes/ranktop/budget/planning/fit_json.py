"""The search for plans that fit as JSON, a public contract (schema 1, documented in docs/planning.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ranktop.budget.planning.as_json import SCHEMA, model_json, run_json

if TYPE_CHECKING:
    from ranktop.budget.fit import Candidate, Fit
    from ranktop.budget.planning.request import Request


def fit_json(request: Request, found: Fit) -> dict[str, Any]:
    """Return the answer in the documented form."""
    more = found.more_ranks
    at = found.speeds
    return {
        "schema": SCHEMA,
        "model": model_json(request),
        "run": run_json(request),
        "fit": {
            "global_batch": found.global_batch,
            "layouts": found.layouts,
            "tried": found.tried,
            "speeds": at.words(request.run.world_size > request.run.gpus_per_node),
            "fitting": [candidate_json(one) for one in found.fitting],
            "present": candidate_json(found.present) if found.present else None,
            "nearest": candidate_json(found.nearest) if found.nearest else None,
            "less_precise": found.less_precise or None,
            "more_ranks": {"world_size": more[0], "plan": more[1]} if more else None,
            "shorter_sequence": found.shorter,
            "suggestions": [{"words": one.words, **candidate_json(one.candidate)} for one in found.suggestions],
            "reason": found.reason or None,
        },
    }


def candidate_json(one: Candidate) -> dict[str, Any]:
    """Return one plan: every key is there, whether it fits or not."""
    from ranktop.budget.fitting.lines import beside, lines_of

    cost, axes, budget = one.seconds, one.plan.layout, one.projection.ranks[one.projection.worst].budget
    lines = lines_of(one)
    return {
        "name": one.strategy,
        "plan": one.title,
        "also": list(one.also),
        "layout": {"data": axes.data, "replicate": axes.replicate, "shard": axes.shard, "tensor": axes.tensor,
                   "pipeline": axes.pipeline, "context": axes.context, "expert": axes.expert},
        "precision": one.run.precision,
        "checkpointing": one.run.checkpointing,
        "micro_batch": one.run.micro_batch,
        "accumulation": one.run.accumulation,
        "total": one.total,
        "headroom": one.projection.headroom,
        "missing": one.missing,
        "margin": one.margin,
        "tight": one.tight,
        "host_bytes": budget.host.bytes,
        "nvme_bytes": budget.nvme.bytes,
        "sent": one.sent,
        "seconds": {
            "sending": cost.sending,
            "copying": cost.copying,
            "recomputing": cost.recomputing,
            "waiting": cost.waiting,
            "total": cost.total,
        },
        "changes": list(one.changes),
        "configs": {kind: "\n".join(text) for kind, text in lines.items()},
        "beside": {kind: beside(one, kind) for kind in lines},
        "assumptions": list(one.projection.assumptions),
    }  # fmt: skip
