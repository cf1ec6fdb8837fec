"""The collectives of one step in their order, from the rules of every parallel axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ranktop.budget.collective import PHASES, Collective
from ranktop.budget.communication import deepspeed, model_parallel, replicated, sharded
from ranktop.budget.communication.step import Step
from ranktop.budget.inventory import Inventory
from ranktop.budget.model import Model
from ranktop.budget.plan import Plan

_MODEL_AXES: Final = (
    ("tensor", model_parallel.tensor_parallel),
    ("context", model_parallel.context),
    ("expert", model_parallel.expert),
    ("pipeline", model_parallel.pipeline),
)


def collectives(inventory: Inventory, plan: Plan, model: Model | None = None) -> tuple[Collective, ...]:
    """Return what one rank takes part in during one optimizer step: by phase, within one model axes first.

    Bytes are of whole tensors; ``Collective.sent`` gives what a ring sends. Groups of one rank make no call. What the
    axes inside the model send needs the model's shape and the batch: without them it is missing (``left_out`` says
    what). Building the model (its first broadcast) is no part of a step, and numbers of a few bytes (norms, overflow
    flags) are not listed.
    """
    step = Step(inventory, plan, model)
    found = [*_inside(step), *_data(step)]
    kept = [one for one in found if one.group > 1 and one.bytes > 0 and one.calls > 0]
    return tuple(sorted(kept, key=lambda one: PHASES.index(one.phase)))


def left_out(inventory: Inventory, plan: Plan, model: Model | None = None) -> tuple[str, ...]:
    """Say, one line each, which messages ``collectives`` cannot size, and why."""
    step = Step(inventory, plan, model)
    used = [name for name, _ in _MODEL_AXES if getattr(plan.layout, name) > 1]
    if plan.strategy == "dp" and plan.layout.replicate > 1:
        used.append("data")
    if not used or (step.sections and step.tokens is not None):
        return ()
    why = "the model's shape is not known" if not step.sections else "the batch is not known"
    words = {"data": "the outputs that DataParallel gathers"}
    return tuple(f"{words.get(name, f'what {name} parallel sends')}: {why}" for name in used)


def time_at_least(
    sent: Iterable[Collective], link_bytes_per_s: float, by_axis: Mapping[str, float] | None = None
) -> float:
    """Return the seconds that one rank's messages take if nothing overlaps and the link is always full.

    ``by_axis`` gives axes a link of their own (tensor parallel within a node, data parallel between nodes). Raises
    ValueError for a speed that is not positive.
    """
    total = 0.0
    for one in sent:
        speed = (by_axis or {}).get(one.axis, link_bytes_per_s)
        if not speed > 0:
            raise ValueError(f"a link must be faster than {speed} bytes per second")
        total += one.sent / speed
    return total


def _inside(step: Step) -> Iterator[Collective]:
    tokens = step.tokens
    rules = [rule for name, rule in _MODEL_AXES if getattr(step.plan.layout, name) > 1]
    if step.model is None or tokens is None or not rules or not step.sections:
        return
    for rule in rules:
        yield from rule(step, step.model, tokens)


def _data(step: Step) -> Iterator[Collective]:
    """Return what the data-parallel axis sends, whatever runs inside of it."""
    plan = step.plan
    if plan.zero is not None or (plan.strategy.startswith("zero") and plan.strategy[4:].isdigit()):
        return deepspeed.zero(step)
    if plan.fsdp is not None or plan.strategy in ("fsdp1", "fsdp2"):
        return sharded.fsdp(step)
    if plan.strategy == "dp":
        return replicated.data_parallel(step)
    if plan.strategy == "ps":
        return replicated.parameter_server(step)
    if plan.zero_redundancy or plan.strategy == "zero-redundancy":
        return replicated.zero_redundancy(step)
    if plan.layout.shard > 1:
        return replicated.distributed_optimizer(step)
    return replicated.ddp(step)
