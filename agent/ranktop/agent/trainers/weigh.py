"""What a trainer says, laid over what was seen of the live model: the measured wins, and a note tells of the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ranktop.agent.trainers import Told
from ranktop.budget.plan import Plan

_HALVES: Final = ("bfloat16", "float16")


def weigh(plan: Plan, told: Told | None, largest: int = 0) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan with what was only told filled in, and notes where what was seen is different.

    ``largest`` is the largest micro-batch seen so far, 0 for none: the last one of an epoch is often smaller, which is
    no contradiction.
    """
    if told is None:
        return plan, ()
    batch, notes = plan.batch, []
    if largest and told.micro_batch is not None and largest != told.micro_batch:
        notes.append(_note(told, f"a micro-batch of {told.micro_batch}", f"the model gets {largest}"))
    if told.accumulation is not None and batch.accumulation not in (None, told.accumulation):
        notes.append(_note(told, f"an accumulation of {told.accumulation}", f"{batch.accumulation} were counted"))
    if told.sequence_length is not None and (batch.sequence_length or 0) > told.sequence_length:
        notes.append(_note(told, f"{told.sequence_length} tokens at most", f"the model gets {batch.sequence_length}"))
    if told.checkpointing is not None and plan.checkpointing not in (None, "selective", told.checkpointing):
        notes.append(
            _note(told, f"{told.checkpointing} checkpointing", f"the model's own switch is {plan.checkpointing}")
        )
    computes, precision = computes_in(plan), plan.precision
    if told.precision in _HALVES and computes == "float32" and precision.compute is None:
        # Accelerate and Fabric enter autocast within the forward, where nothing is seen of it: no contradiction.
        precision = replace(precision, autocast=told.precision)
    elif told.precision in _HALVES and computes != told.precision:
        notes.append(_note(told, f"it computes in {told.precision}", f"the model computes in {computes}"))
    batch = replace(
        batch,
        micro_batch=batch.micro_batch if batch.micro_batch is not None else told.micro_batch,
        accumulation=batch.accumulation if batch.accumulation is not None else told.accumulation,
        sequence_length=batch.sequence_length if batch.sequence_length is not None else told.sequence_length,
    )
    checkpointing = plan.checkpointing if plan.checkpointing is not None else told.checkpointing
    return replace(plan, batch=batch, checkpointing=checkpointing, precision=precision), tuple(notes)


def computes_in(plan: Plan) -> str:
    """Return the dtype name that a live model's forward computes in."""
    precision = plan.precision
    return precision.autocast or precision.compute or precision.parameters


def _note(told: Told, said: str, seen: str) -> str:
    return f"{told.trainer} says {said}, but {seen}: what was seen counts"
