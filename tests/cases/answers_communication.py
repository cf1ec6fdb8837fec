"""Answers of the product to the cases that counted collectives."""

from __future__ import annotations

import re
from typing import Any, Final

from case_table import Case, NotAsked, answers

from ranktop.budget.communication import collectives
from ranktop.budget.model import Model
from ranktop.budget.models.place import inventory
from ranktop.budget.plan import Fsdp, Layout, OptimizerPlan, Plan, Precision

REFERENCE: Final = Model(family="gpt", layers=4, hidden=256, heads=4, kv_heads=4, head_dim=64, ffn=1024, vocab=1024,
                         positions=128)  # fmt: skip

_OPERATORS: Final = {
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
}

_STRATEGIES: Final[dict[str, dict[str, Any]]] = {
    "full_shard": {},
    "full_shard_ckpt": {"checkpointing": "full"},
    "raf_False (SHARD_GRAD_OP)": {"fsdp": Fsdp(sharding="grad-op")},
    "mp_bf16_fp32red": {"precision": Precision(compute="bfloat16", reduce="float32")},
    "hsdp2x2": {"fsdp": Fsdp(sharding="hybrid"), "layout": Layout(world_size=4, replicate=2, shard=2)},
}


@answers("own collective counter, FSDP2")
def counted(case: Case) -> float:
    operator = re.search(r"c10d::(\w+)", case.case)
    kind = _OPERATORS.get(operator[1]) if operator else None
    strategy = _STRATEGIES.get(case.inputs["strategy"])
    if kind is None or strategy is None:
        raise NotAsked(f"no such wrapper or operator is budgeted: {case.case}")
    ranks = case.inputs["N"]
    options: dict[str, Any] = {"fsdp": Fsdp(), "layout": Layout(world_size=ranks, shard=ranks), **strategy}
    plan = Plan(strategy="fsdp2", optimizer=OptimizerPlan(name="AdamW", count=1), **options)
    placed = inventory(REFERENCE, plan)
    if placed.numel != case.inputs["params"]:
        raise NotAsked(f"counted on a model of {case.inputs['params']} parameters, not the reference's {placed.numel}")
    return sum(one.bytes for one in collectives(placed, plan, REFERENCE) if one.kind == kind)
