"""A plan in words, computed once per plan and never a reason for an exception."""

from __future__ import annotations

from collections.abc import Callable

from ranktop.budget.plan import Plan

_words: dict[tuple[str, int], tuple[Plan, str]] = {}


def _cached(kind: str, plan: Plan, make: Callable[[Plan], str], fallback: str) -> str:
    found = _words.get((kind, id(plan)))
    if found is not None and found[0] is plan:
        return found[1]
    try:
        text = make(plan)
    except Exception:  # words are for people; a plan that has none is still named
        text = fallback
    if len(_words) > 8192:
        _words.clear()
    _words[kind, id(plan)] = (plan, text)
    return text


def strategy(plan: Plan) -> str:
    """Return the plan in one line, e.g. ``FSDP2 full shard · dp 8 · bf16/fp32 · AdamW``."""
    from ranktop.budget.words import strategy_words

    return _cached("strategy", plan, strategy_words, plan.strategy)


def precision(plan: Plan) -> str:
    """Return the dtypes that matter, e.g. ``bf16/fp32``."""
    from ranktop.budget.words import precision_words

    return _cached("precision", plan, lambda plan: precision_words(plan.precision), plan.precision.parameters)


def optimizer(plan: Plan) -> str:
    """Return the optimizers by name; empty when there is none."""
    from ranktop.budget.words import optimizer_words

    return _cached("optimizer", plan, optimizer_words, plan.optimizer.name)


def place(plan: Plan) -> str:
    """Return a rank's place on a mesh of several axes, e.g. ``stage 0 of 2, shard 1 of 2``; empty on one axis."""
    layout = plan.layout
    axes = (
        ("stage", layout.pipeline_rank, layout.pipeline),
        ("replica", layout.replicate_rank, layout.replicate),
        ("shard", layout.shard_rank, layout.shard),
        ("tensor rank", layout.tensor_rank, layout.tensor),
    )
    found = [f"{name} {rank} of {size}" for name, rank, size in axes if size > 1]
    return ", ".join(found) if len(found) > 1 or layout.pipeline > 1 or layout.tensor > 1 else ""
