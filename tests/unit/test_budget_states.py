"""Budgets of small models against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Batch, Ddp, Fsdp, Layout, OptimizerPlan, Plan, Precision
from ranktop.budget.states import expected_states
from ranktop.budget.terms import MOMENTS, NOT_BUDGETED, Amount

ADAMW = OptimizerPlan(name="AdamW", count=1)
SGD = OptimizerPlan(name="SGD", count=1, options={"momentum": 0.9})

# 7x13 + 13, a frozen 5x5, 13x3: 156 trainable elements in 12 + 91 + ... as spelled out in each test.
MODEL = Inventory.of(
    [
        Kind((13, 7), "float32"),
        Kind((13,), "float32"),
        Kind((5, 5), "float32", trainable=False),
        Kind((3, 13), "float32"),
    ]
)


def states(inventory: Inventory, plan: Plan, moment: str = "step_end", **options: Any) -> list[int | None]:
    amounts = expected_states(inventory, plan, **options).at(moment)
    return [amounts[name].bytes for name in ("parameters", "gradients", "optimizer")]


def test_one_gpu_with_adamw_keeps_its_step_counters_on_the_host() -> None:
    # 91 + 13 + 25 + 39 = 168 elements, 143 of them trainable.
    assert states(MODEL, Plan(optimizer=ADAMW)) == [168 * 4, 143 * 4, 143 * 8]


def test_a_host_job_counts_the_step_counters_and_fused_keeps_them_on_the_device() -> None:
    assert states(MODEL, Plan(optimizer=ADAMW, host=True))[2] == 143 * 8 + 3 * 4
    fused = replace(ADAMW, options={"fused": True})
    assert states(MODEL, Plan(optimizer=fused))[2] == 143 * 8 + 3 * 4


def test_sgd_keeps_momentum_or_nothing() -> None:
    assert states(MODEL, Plan(optimizer=SGD))[2] == 143 * 4
    assert states(MODEL, Plan(optimizer=replace(SGD, options={})))[2] == 0


def test_a_bf16_model_has_bf16_gradients_and_states() -> None:
    half = Inventory.of([replace(kind, dtype="bfloat16") for kind in MODEL])
    assert states(half, Plan(optimizer=ADAMW)) == [168 * 2, 143 * 2, 143 * 4]


def test_ddp_holds_everything_on_every_rank_whatever_the_bucket_views() -> None:
    for view in (False, True):
        plan = Plan(
            strategy="ddp",
            ddp=Ddp(gradient_as_bucket_view=view),
            layout=Layout(world_size=8, replicate=8),
            optimizer=ADAMW,
        )
        assert states(MODEL, plan) == [168 * 4, 143 * 4, 143 * 8]


@pytest.mark.parametrize(
    ("rank", "own"),
    # Rows of 13, 13, 3 over 4 ranks go in chunks of 4, 4, 1: rank 3 has 1 row, 1 element and no row.
    [(0, 4 * 7 + 4 + 13), (1, 4 * 7 + 4 + 13), (2, 4 * 7 + 4 + 13), (3, 1 * 7 + 1 + 0)],
)
def test_fsdp2_pads_parameters_and_gradients_but_not_states(rank: int, own: int) -> None:
    plan = Plan(
        strategy="fsdp2",
        fsdp=Fsdp(version=2),
        layout=Layout(world_size=4, shard=4, shard_rank=rank),
        optimizer=ADAMW,
    )
    # The frozen 5x5 goes in chunks of 2 rows.
    trainable = 4 * 7 + 4 + 13
    assert states(MODEL, plan) == [(trainable + 2 * 5) * 4, trainable * 4, own * 8]


def test_fsdp2_of_another_dimension_or_another_mesh() -> None:
    inventory = Inventory.of([Kind((3, 8), "float32", shard_dim=1), Kind((9,), "float32", shards=3, shard_rank=1)])
    plan = Plan(strategy="fsdp2", layout=Layout(world_size=2, shard=2), optimizer=SGD)
    assert states(inventory, plan) == [(3 * 4 + 3) * 4] * 3


def test_a_parameter_that_no_unit_holds_stays_whole() -> None:
    inventory = Inventory.of([Kind((8,), "float32"), Kind((5,), "float32", unit=-1)])
    for strategy in ("fsdp1", "fsdp2"):
        fsdp = Fsdp(version=int(strategy[-1]), use_orig_params=False)
        plan = Plan(strategy=strategy, fsdp=fsdp, layout=Layout(world_size=4, shard=4), optimizer=SGD)
        assert states(inventory, plan) == [(2 + 5) * 4] * 3


def fsdp1(sharding: str, original: bool, rank: int, **precision: str) -> Plan:
    whole = sharding == "none"
    return Plan(
        strategy="fsdp1",
        fsdp=Fsdp(version=1, sharding=sharding, use_orig_params=original),
        layout=Layout(world_size=2, replicate=2 if whole else 1, shard=1 if whole else 2, shard_rank=rank),
        precision=Precision(**precision),
        optimizer=SGD,
    )


FLAT = Inventory.of([Kind((5,), "float32"), Kind((3,), "float32", trainable=False), Kind((2, 3), "float32")])


def test_fsdp1_flattens_and_pads_to_the_ranks() -> None:
    unit = Inventory.of([Kind((5,), "float32"), Kind((2, 3), "float32")])
    # 11 elements over 2 ranks: 6 each, the last one is padding, which the flat optimizer updates too.
    for rank in (0, 1):
        assert states(unit, fsdp1("full", False, rank)) == [6 * 4] * 3


@pytest.mark.parametrize(("rank", "updated"), [(0, 5), (1, 6)])
def test_fsdp1_with_original_parameters_aligns_each_to_16_bytes(rank: int, updated: int) -> None:
    # 5 at 0, 3 at 8, 6 at 12, end 18: 9 each. Rank 0 updates 0..5, rank 1 updates 12..18.
    assert states(FLAT, fsdp1("full", True, rank)) == [9 * 4, 9 * 4, updated * 4]


def test_fsdp1_aligns_in_the_dtype_it_computes_in() -> None:
    # 8 elements of bf16 are 16 bytes: 5 at 0, 3 at 8, 6 at 16, end 22: 11 each.
    assert states(FLAT, fsdp1("full", True, 0, compute="bfloat16"))[0] == 11 * 4


def test_fsdp1_without_sharding_holds_the_padded_whole() -> None:
    assert states(FLAT, fsdp1("none", True, 0)) == [18 * 4, 18 * 4, 11 * 4]
    unit = Inventory.of([Kind((5,), "float32"), Kind((2, 3), "float32")])
    assert states(unit, fsdp1("none", False, 0)) == [11 * 4] * 3


def test_fsdp1_low_precision_gradients() -> None:
    assert states(FLAT, fsdp1("full", True, 0, gradients="bfloat16"))[1] == 9 * 2


def test_offloaded_fsdp_leaves_nothing_on_the_device() -> None:
    plan = Plan(strategy="fsdp2", fsdp=Fsdp(cpu_offload=True), layout=Layout(world_size=2, shard=2))
    assert states(MODEL, plan) == [0, 0, 0]


@pytest.mark.parametrize(("rank", "updated"), [(0, 91), (1, 39 + 13)])
def test_zero_redundancy_deals_whole_parameters_largest_first(rank: int, updated: int) -> None:
    # 91 to rank 0; then 39, 25 (frozen, weighs but keeps nothing) and 13 all to rank 1, the less loaded.
    plan = Plan(
        strategy="zero-redundancy",
        ddp=Ddp(),
        zero_redundancy=True,
        layout=Layout(world_size=2, replicate=2, replicate_rank=rank),
        optimizer=ADAMW,
    )
    assert states(MODEL, plan) == [168 * 4, 143 * 4, updated * 8]


def test_an_uneven_tensor_parallel_split_keeps_its_padding() -> None:
    # 13 rows over 2: this rank has 6 of them in a storage of 7. Columns are cut into a new tensor.
    inventory = Inventory.of(
        [
            Kind((6, 7), "float32", tensor_parallel="S(0)", split_size=13),
            Kind((7, 6), "float32", tensor_parallel="S(1)", split_size=13),
            Kind((7,), "float32", tensor_parallel="R"),
        ]
    )
    plan = Plan(strategy="tp", layout=Layout(world_size=2, tensor=2, tensor_rank=1), optimizer=SGD)
    assert states(inventory, plan) == [(49 + 42 + 7) * 4, (42 + 42 + 7) * 4, (42 + 42 + 7) * 4]


def test_what_exists_when() -> None:
    plan = Plan(optimizer=ADAMW)
    budget = expected_states(MODEL, plan)
    gradients = [budget.at(moment)["gradients"].bytes for moment in MOMENTS]
    assert gradients == [0, 0, 0, 572, 572]
    kept = expected_states(MODEL, replace(plan, gradients_at=MOMENTS), first_step=True)
    assert [kept.at(moment)["gradients"].bytes for moment in MOMENTS] == [0, 0, 0, 572, 572]
    assert [kept.at(moment)["optimizer"].bytes for moment in MOMENTS] == [0, 0, 0, 0, 1144]
    accumulating = replace(plan, gradients_at=MOMENTS, batch=Batch(accumulation=4))
    first = expected_states(MODEL, accumulating, first_step=True)
    assert [first.at(moment)["gradients"].bytes for moment in MOMENTS] == [0, 572, 572, 572, 572]


def test_adagrad_has_its_state_before_any_step_for_frozen_parameters_too() -> None:
    plan = Plan(optimizer=OptimizerPlan(name="Adagrad", count=1))
    assert states(MODEL, plan, "step_start", first_step=True)[2] == 168 * 4


def test_what_is_not_budgeted_says_so() -> None:
    for amounts in expected_states(MODEL, Plan(optimizer=ADAMW)).moments.values():
        for name in ("activations", "buffers", "runtime"):
            assert amounts[name] == Amount(None, NOT_BUDGETED)
    strange = expected_states(MODEL, Plan(strategy="fully-wild")).at("step_end")["parameters"]
    assert strange == Amount(None, "no rule for the strategy 'fully-wild'")


def test_every_number_names_its_rule() -> None:
    for strategy in ("single", "dp", "ddp", "zero-redundancy", "fsdp1", "fsdp2", "tp", "pp"):
        plan = Plan(strategy=strategy, optimizer=ADAMW)
        for amounts in expected_states(MODEL, plan).moments.values():
            assert all(amount.rule for amount in amounts.values())


def test_fsdp2_without_gradient_sync_holds_whole_gradients() -> None:
    """Counted on live jobs of two ranks: 33x129 and 129x17 linears with biases, reduced in fp32 and in bf16."""
    shapes = ((129, 33), (129,), (17, 129), (17,))
    inventory = Inventory.of([Kind(shape, "float32", unit=i // 2) for i, shape in enumerate(shapes)])
    for reduce, gradients in (("float32", 26384), ("bfloat16", 13192)):
        plan = Plan(
            strategy="fsdp2",
            layout=Layout(world_size=2, shard=2, shard_rank=1),
            fsdp=Fsdp(),
            precision=Precision(compute="bfloat16", reduce=reduce),
            gradients_at=("forward_end", "backward_start", "backward_end", "step_end"),
            unsharded_gradients_at=("forward_end", "backward_start"),
        )
        budget = expected_states(inventory, plan)
        assert budget.at("forward_end")["gradients"].bytes == gradients
        assert "without gradient sync" in budget.at("forward_end")["gradients"].rule
        assert budget.at("backward_end")["gradients"].bytes == 13520
        assert budget.at("step_start")["gradients"].bytes == 0
