"""Laws that hold for every model: shards cover the whole, padding is bounded, more ranks never cost a rank more."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.budget.activations.saved import Activations
from ranktop.budget.expected import expected
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Ddp, Fsdp, Layout, OptimizerPlan, Plan, Precision, Zero
from ranktop.budget.states import expected_states
from ranktop.budget.terms import ALL_MOMENTS, BUDGETED, STATES, Amount, Budget
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
        ddp=Ddp() if strategy in ("ddp", "zero-redundancy") else None,
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


def activations_of(inventory: Inventory, layers: int, checkpointed: bool = False) -> Activations:
    """Made-up activations that fit together: a block keeps a multiple of its output."""
    boundary = 512 * max(1, len(inventory))
    layer = 16 * boundary
    return Activations(
        layers=layers,
        layer=layer,
        blocks=layers * (boundary if checkpointed else layer),
        recomputed=layer - boundary if checkpointed else 0,
        outside=3 * boundary,
        logits=2 * boundary,
        inputs=512,
        loss_forward=boundary,
        loss_backward=4 * boundary,
        block_backward=5 * boundary,
        boundary=boundary,
        after=2 * boundary,
        within=0.01,
        rule="made up",
    )


SIZED = st.sampled_from(["single", "dp", "ps", "ddp", "zero-redundancy", "fsdp1", "fsdp2"])
BUFFERS = 3
"""Whole copies of the model that communication may need beside it on one device: buckets, gathered, reduced."""


def whole(inventory: Inventory, of: Plan, checkpointed: bool = False) -> Budget:
    alive = activations_of(inventory, 2, checkpointed)
    return expected(inventory, of, alive, runtime=Amount(0, "none"))


@given(inventories(), SIZED, st.integers(1, 6), st.booleans())
def test_parts_add_up_and_nothing_is_missing(inventory: Inventory, strategy: str, ranks: int, first: bool) -> None:
    of = plan(strategy, ranks, 0)
    found = expected(inventory, of, activations_of(inventory, 2), first_step=first, runtime=Amount(0, "none"))
    assert tuple(found.moments) == ALL_MOMENTS
    for table in found.moments.values():
        assert set(table) == set(BUDGETED)
        for amount in table.values():
            assert amount.bytes is not None
            assert amount.bytes >= 0
            assert amount.rule
            assert all(part.bytes > 0 for part in amount.parts)
            if amount.parts:
                assert sum(part.bytes for part in amount.parts) == amount.bytes


@given(inventories(), SIZED, st.integers(1, 6))
def test_unknown_activations_leave_the_rest_known(inventory: Inventory, strategy: str, ranks: int) -> None:
    found = expected(inventory, plan(strategy, ranks, 0), None, runtime=Amount(0, "none"))
    assert found.at("backward")["activations"].bytes is None
    assert found.at("backward")["activations"].rule
    assert found.at("backward")["buffers"].bytes is not None
    assert found.peak() in ("optimizer_step", None)


@given(inventories(), st.sampled_from(["single", "ddp", "zero-redundancy", "fsdp1", "fsdp2"]), st.integers(1, 6))
def test_checkpointing_never_adds(inventory: Inventory, strategy: str, ranks: int) -> None:
    of = plan(strategy, ranks, 0)
    alive, less = whole(inventory, of), whole(inventory, of, checkpointed=True)
    for moment in ALL_MOMENTS:
        assert (less.total(moment) or 0) <= (alive.total(moment) or 0)


@given(inventories(), st.sampled_from(["ddp", "fsdp2"]), st.integers(1, 6))
def test_more_ranks_never_cost_a_rank_more(inventory: Inventory, strategy: str, ranks: int) -> None:
    """But for padding: FSDP2 pads every parameter to a full row for each rank, gathered and reduced.

    (ZeroRedundancyOptimizer deals whole parameters: with another number of ranks one may get more.)
    """
    fewer, more = (whole(inventory, plan(strategy, n, 0)) for n in (ranks, ranks + 1))
    row = sum(prod(kind.shape[1:]) * 4 * (ranks + 1) for kind in inventory) if strategy == "fsdp2" else 0
    # From one rank to two, FSDP2 begins to gather: the outputs of the all-gather appear.
    gathers = 2 * sum(kind.numel * kind.itemsize for kind in inventory) if strategy == "fsdp2" and ranks == 1 else 0
    for moment in ALL_MOMENTS:
        assert (more.total(moment) or 0) <= (fewer.total(moment) or 0) + 4 * row + gathers


@given(inventories(frozen=False), SIZED)
def test_one_gpu_makes_all_strategies_equal_but_for_named_buffers(inventory: Inventory, strategy: str) -> None:
    alone, other = whole(inventory, plan("single", 1, 0)), whole(inventory, plan(strategy, 1, 0))
    padding = (16 * len(inventory) + 512) * len(BUDGETED) if strategy == "fsdp1" else 0
    for moment in ("step_start", "forward_end", "backward_end", "step_end", "optimizer_step"):
        one, two = alone.at(moment), other.at(moment)
        for category in ("parameters", "gradients", "optimizer"):
            assert abs((one[category].bytes or 0) - (two[category].bytes or 0)) <= padding
        extra = (two["buffers"].bytes or 0) - (one["buffers"].bytes or 0)
        assert extra == sum(part.bytes for part in two["buffers"].parts) - sum(p.bytes for p in one["buffers"].parts)
        size = sum(kind.numel * kind.itemsize for kind in inventory)
        assert 0 <= extra <= BUFFERS * size + padding


@given(inventories(), SIZED, st.integers(1, 6))
def test_the_stretches_are_as_high_as_the_moments_in_them(inventory: Inventory, strategy: str, ranks: int) -> None:
    found = whole(inventory, plan(strategy, ranks, 0))
    assert (found.total("backward") or 0) >= (found.total("forward_end") or 0)
    assert (found.total("forward") or 0) >= (found.total("forward_end") or 0)
    assert (found.total("optimizer_step") or 0) >= (found.total("backward_end") or 0)


@given(st.integers(2, 64), st.integers(1, 200))
def test_zero_never_costs_more_than_the_stage_below_in_states(ranks: int, rows: int) -> None:
    """ZeRO-3 <= ZeRO-2 <= ZeRO-1 <= DDP, where the parameters divide and none is kept whole.

    On a single rank ZeRO-3's flat buffer of 16-bit gradients comes on top of the rest: there is nothing to win.
    """
    inventory = Inventory.of([Kind((rows * ranks * 8, 16), "bfloat16"), Kind((ranks * 16,), "bfloat16")])
    sums = []
    for stage in (3, 2, 1, None):
        of = Plan(
            strategy="ddp" if stage is None else f"zero{stage}",
            layout=Layout(world_size=ranks, **{"replicate" if stage is None else "shard": ranks}),
            zero=None if stage is None else Zero(stage=stage, persistence_threshold=0),
            precision=Precision(parameters="bfloat16", master="float32"),
            optimizer=ADAM,
        )
        kinds = inventory if stage is not None else Inventory.of([replace(kind, group=-1) for kind in inventory])
        amounts = expected_states(kinds, of).at("backward_end")
        # Masters have gradients of their own while the optimizer steps: DDP's script decides when, a slack there.
        sums.append(sum((amounts[name].bytes or 0) + amounts[name].slack for name in STATES))
    assert sums == sorted(sums)
