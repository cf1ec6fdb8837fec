"""Plans in words."""

from __future__ import annotations

import pytest

from ranktop.budget.plan import Ddp, Fsdp, Layout, OptimizerPlan, Plan, Precision, Zero
from ranktop.budget.words import strategy_words

ADAMW = OptimizerPlan(name="AdamW", count=1)
SGD = OptimizerPlan(name="SGD", count=1, options={"momentum": 0.9})
BF16 = Precision(parameters="float32", compute="bfloat16")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(), "one device · fp32"),
        (
            Plan(strategy="fsdp2", fsdp=Fsdp(), layout=Layout(shard=8), precision=BF16, optimizer=ADAMW),
            "FSDP2 full shard · dp 8 · bf16/fp32 · AdamW",
        ),
        (
            Plan(strategy="ddp", ddp=Ddp(), layout=Layout(replicate=2), optimizer=SGD),
            "DDP · dp 2 · fp32 · SGD momentum",
        ),
        (
            Plan(
                strategy="zero3",
                zero=Zero(stage=3, offload_optimizer="cpu", offload_parameters="nvme"),
                layout=Layout(shard=4, tensor=2, pipeline=2),
                precision=Precision(parameters="bfloat16", master="float32"),
                optimizer=ADAMW,
            ),
            "ZeRO-3 offloaded to cpu+nvme · dp 4 · tp 2 · pp 2 · bf16 + fp32 master · AdamW",
        ),
        (
            Plan(
                strategy="fsdp1",
                fsdp=Fsdp(version=1, sharding="hybrid", cpu_offload=True),
                layout=Layout(replicate=2, shard=8),
                precision=Precision(autocast="bfloat16"),
                groups=(SGD, ADAMW, SGD),
            ),
            "FSDP1 hybrid shard offloaded · dp 2×8 · fp32 autocast bf16 · SGD momentum + AdamW",
        ),
        (Plan(strategy="pp", layout=Layout(pipeline=4, context=2, expert=8)), "PP · pp 4 · cp 2 · ep 8 · fp32"),
    ],
)
def test_a_plan_in_one_line(plan: Plan, words: str) -> None:
    assert strategy_words(plan) == words
