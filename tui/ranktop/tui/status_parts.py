"""Objects that stand in several places of ``ranktop status --json``: memory by category, process groups, calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ranktop.budget.terms import CATEGORIES, Memory
from ranktop.probes.reading import Collectives
from ranktop.wire.schema import Call, Card

KEYS: Final = (*CATEGORIES, "total")


def memory_json(memory: Memory | None) -> dict[str, int | None]:
    """Return bytes by category and the total; all null without a reading."""
    return memory.as_dict() if memory is not None else dict.fromkeys(KEYS)


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


def mesh_json(card: Card | None) -> dict[str, int] | None:
    """Return a rank's place on every axis of its job's mesh; None before its model has been seen."""
    if card is None or card.plan is None:
        return None
    layout = card.plan.layout
    return {
        "replicate": layout.replicate_rank,
        "shard": layout.shard_rank,
        "tensor": layout.tensor_rank,
        "pipeline": layout.pipeline_rank,
    }


def calls_json(calls: Iterable[Call]) -> list[dict[str, Any]]:
    """Return the calls of a stack, the innermost last."""
    return [{"file": call.file, "line": call.line, "function": call.function} for call in calls]
