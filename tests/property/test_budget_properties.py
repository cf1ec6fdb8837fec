"""Laws that hold for every model: shards cover the whole, padding is bounded, more ranks never cost a rank more."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Ddp, Fsdp, Layout, OptimizerPlan, Plan
from ranktop.budget.states import expected_states
from ranktop.budget.zero_redundancy import assignment

ADAM = OptimizerPlan(name="Adam", count=1)

shapes = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)


@st.composite
def inventories(draw: st.DrawFn, frozen: bool = True) -> Inventory:
    """Up to a dozen parameters in up to three units, one dtype."""
    dtype = draw(st.sampled_from(["float32", "bfloat16"]))
    trainable = st.booleans() if frozen else st.just(True)
    kinds = [
        Kind(shape, dtype, trainable=draw(trainable), unit=draw(st.integers(0, 2)))
        for shape in draw(st.lists(shapes, min_size=1, max_size=12))
    ]
    return Inventory.of(kinds)


def plan(strategy: str, ranks: int, rank: int, original: bool = True) -> Plan:
    sharded = strategy.startswith("fsdp")
    layout = (
        Layout(world_size=ranks, shard=ranks, shard_rank=rank)
        if sharded
        else Layout(world_size=ranks, replicate=ranks, replicate_rank=rank)
    )
    return Plan(
        strategy=strategy,
        layout=layout,
        ddp=None if sharded else Ddp(),
        fsdp=Fsdp(version=int(strategy[-1]), use_orig_params=original) if sharded else None,
        zero_redundancy=strategy == "zero-redundancy",
        optimizer=ADAM,
    )


def states(inventory: Inventory, of: Plan) -> dict[str, int]:
    amounts = expected_states(inventory, of).at("step_end")
    found = {name: amounts[name].bytes for name in ("parameters", "gradients", "optimizer")}
    return {name: size for name, size in found.items() if size is not None}


def per_rank(inventory: Inventory, strategy: str, ranks: int, original: bool = True) -> list[dict[str, int]]:
    return [states(inventory, plan(strategy, ranks, rank, original)) for rank in range(ranks)]


sharding = st.sampled_from([("fsdp2", True), ("fsdp1", True)])


@given(inventories(), sharding, st.integers(1, 9))
def test_shards_of_all_ranks_cover_the_model(inventory: Inventory, how: tuple[str, bool], ranks: int) -> None:
    whole = states(inventory, plan("ddp", 1, 0))
    parts = per_rank(inventory, how[0], ranks, how[1])
    for name in ("parameters", "gradients"):
        assert sum(part[name] for part in parts) >= whole[name]
    # Optimizer states are never padded: every element has its state on exactly one rank.
    assert sum(part["optimizer"] for part in parts) == whole["optimizer"]


@given(inventories(frozen=False), st.integers(1, 9))
def test_a_flat_optimizer_updates_its_padding_too(inventory: Inventory, ranks: int) -> None:
    whole = states(inventory, plan("ddp", 1, 0))["optimizer"]
    parts = [part["optimizer"] for part in per_rank(inventory, "fsdp1", ranks, original=False)]
    item = 2 * inventory.kinds[0].itemsize
    assert len(set(parts)) == 1
    assert whole <= sum(parts) <= whole + item * (ranks - 1) * len(inventory.units())


@given(inventories(), st.integers(1, 9))
def test_the_padding_of_fsdp2_is_less_than_a_row_for_each_parameter(inventory: Inventory, ranks: int) -> None:
    held = states(inventory, plan("fsdp2", ranks, 0))["parameters"]
    padding = sum(prod(kind.shape[1:]) * kind.itemsize for kind in inventory)
    whole = sum(kind.numel * kind.itemsize for kind in inventory)
    assert whole <= held * ranks < whole + padding * ranks


@given(inventories(), st.integers(1, 8))
def test_fsdp2_never_costs_a_rank_more_with_more_ranks_nor_more_than_ddp(inventory: Inventory, ranks: int) -> None:
    whole = states(inventory, plan("ddp", ranks, 0))
    fewer, more = (states(inventory, plan("fsdp2", n, 0)) for n in (ranks, ranks + 1))
    for name in ("parameters", "gradients", "optimizer"):
        assert more[name] <= fewer[name] <= whole[name]


@given(inventories(), st.integers(1, 8))
def test_fsdp1_costs_more_than_ddp_by_its_alignment_alone(inventory: Inventory, ranks: int) -> None:
    whole = states(inventory, plan("ddp", ranks, 0))["parameters"]
    held = states(inventory, plan("fsdp1", ranks, 0))["parameters"]
    item = inventory.kinds[0].itemsize
    assert held <= whole + 16 * len(inventory) + item * (ranks + 1) * len(inventory.units())


@given(inventories(), st.integers(1, 9))
def test_zero_redundancy_deals_every_parameter_once_and_fairly(inventory: Inventory, ranks: int) -> None:
    dealt = assignment(inventory, ranks)
    assert sorted(kind.numel for part in dealt for kind in part) == sorted(kind.numel for kind in inventory)
    loads = [sum(kind.numel for kind in part) for part in dealt]
    assert max(loads) - min(loads) <= max(kind.numel for kind in inventory)
    whole = states(inventory, plan("ddp", 1, 0))["optimizer"]
    parts = per_rank(inventory, "zero-redundancy", ranks)
    assert sum(part["optimizer"] for part in parts) == whole


@given(inventories(), st.sampled_from(["ddp", "fsdp1", "fsdp2", "zero-redundancy"]), st.integers(1, 5))
def test_a_frozen_model_has_parameters_alone(inventory: Inventory, strategy: str, ranks: int) -> None:
    frozen = Inventory.of([replace(kind, trainable=False) for kind in inventory])
    found = states(frozen, plan(strategy, ranks, 0))
    assert found["parameters"] > 0
    assert (found["gradients"], found["optimizer"]) == (0, 0)


@settings(max_examples=50)
@given(inventories(), st.integers(1, 5), st.permutations(range(12)))
def test_the_order_of_the_parameters_does_not_matter_to_fsdp2(
    inventory: Inventory, ranks: int, order: list[int]
) -> None:
    kinds = list(inventory)
    shuffled = Inventory.of([kinds[i] for i in order if i < len(kinds)])
    assert per_rank(shuffled, "fsdp2", ranks) == per_rank(inventory, "fsdp2", ranks)
