"""The smallest changes of a plan that would have made room, from the budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from ranktop.budget.naming import own_strategy
from ranktop.budget.optimizers.names import by_name
from ranktop.budget.plan import OptimizerPlan
from ranktop.budget.project import rank_budget
from ranktop.budget.run import Run
from ranktop.budget.strategies import plan_of
from ranktop.budget.terms import Memory
from ranktop.budget.whatif import Job, as_run
from ranktop.wire.schema import Card

MOST: Final = 3
"""Changes that are named."""

_LIMIT: Final = 128
_Key = tuple[str, int, int, int, int, int]
_cache: dict[_Key, tuple[Card, list[tuple[str, int]]]] = {}

_SHARDED: Final = {"fsdp-full", "fsdp-hybrid", "zero3", "zero3-offload", "zero-infinity"}
_ADAM: Final = ("adam", "adamw")


def remedies(card: Card, need: int, moments: Mapping[str, Memory] | None = None) -> list[tuple[str, int]]:
    """Return (change in words, bytes it saves at the peak), those that make room for ``need`` bytes, smallest first.

    When no single change does, those that save the most. ``moments`` are the last step's, for a model that the budget
    does not know by its shapes. Empty when the card says too little. Takes some tens of milliseconds once.
    """
    key = (card.job.id, card.rank, card.restart, card.pid, card.revision, need)
    found = _cache.get(key)
    if found is None or found[0] is not card:
        if len(_cache) >= _LIMIT:
            _cache.clear()
        found = _cache[key] = (card, _remedies(card, need, moments or {}))
    return found[1]


def _remedies(card: Card, need: int, moments: Mapping[str, Memory]) -> list[tuple[str, int]]:
    if card.plan is None or card.inventory is None:
        return []
    try:
        job = Job(inventory=card.inventory, plan=card.plan, name=card.model, moments=moments)
        # The same on both sides, so that it does not matter how much it is.
        run, own = as_run(job, runtime=0), own_strategy(card.plan)
    except Exception:  # a plan that the budget cannot read has no remedies
        return []
    stage = card.plan.layout.pipeline_rank
    before = _total(run, own, stage)
    if before is None:
        return []
    saved: list[tuple[str, int]] = []
    for words, changed, strategy in _changes(run, own):
        after = _total(changed, strategy, stage)
        if after is not None and after < before:
            saved.append((words, before - after))
    enough = [one for one in saved if one[1] >= need]
    return (enough or sorted(saved, key=lambda one: -one[1]))[:MOST]


def _total(run: Run, strategy: str, stage: int) -> int | None:
    """Return the bytes at the peak of a rank in that pipeline stage, or in the last; None without a rule."""
    try:
        plan = plan_of(run, strategy)
        place = replace(plan.layout, pipeline_rank=min(stage, plan.layout.pipeline - 1))
        budget = rank_budget(run, replace(plan, layout=place))
    except Exception:  # one change that cannot be computed must not take the others with it
        return None
    peak = budget.peak()
    return None if peak is None else budget.total(peak)


def _changes(run: Run, own: str) -> Iterator[tuple[str, Run, str]]:
    """Yield (words, run, strategy), what changes least of the training first."""
    batch = run.micro_batch
    for size in (batch // 2, batch // 4):
        if size >= 1:
            times = batch // size * run.accumulation
            words = f"micro-batch {size} instead of {batch} (accumulate {times})"
            yield words, replace(run, micro_batch=size, accumulation=times), own
    if run.checkpointing != "full":
        yield "activation checkpointing", replace(run, checkpointing="full"), own
    if run.world_size > 1 and own not in _SHARDED:
        if run.zero is not None:
            yield "ZeRO stage 3", run, "zero3"
        elif own in ("ddp", "dp", "single", "fsdp-grad-op"):
            yield "FSDP full shard instead of " + ("DDP" if own == "ddp" else own), run, "fsdp-full"
    if run.optimizer.name.lower() in _ADAM:
        yield "8-bit AdamW", replace(run, optimizer=_optimizer("adamw8bit")), own
    if run.precision == "fp32":
        yield "bf16 autocast", replace(run, precision="amp-bf16"), own
    if run.sequence_length > 1:
        half = run.sequence_length // 2
        yield f"sequences of {half} instead of {run.sequence_length}", replace(run, sequence_length=half), own


def _optimizer(name: str) -> OptimizerPlan:
    return by_name(name)
