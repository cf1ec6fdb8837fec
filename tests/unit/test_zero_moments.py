"""ZeRO over a whole step: by hand on small layouts, against runs of DeepSpeed, and what must hold for any plan."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import answers_deepspeed
import case_table
import pytest

from ranktop.budget.activations.saved import Activations
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.model import Model
from ranktop.budget.models.place import inventory
from ranktop.budget.plan import Batch, Layout, OptimizerPlan, Plan, Precision, Zero
from ranktop.budget.terms import ALL_MOMENTS, BUDGETED, MOMENTS, STATES, Amount
from ranktop.budget.zero import states as zero
from ranktop.budget.zero.gather import Limits, gathered
from ranktop.budget.zero.moments import between, moments, off_device

ALIVE = Activations(
    layers=4, layer=1000, blocks=4000, outside=300, after=100, logits=700, inputs=10, loss_forward=500,
    loss_backward=800, block_backward=200, boundary=50, within=0.01, rule="made up",
)  # fmt: skip

FREE = Zero(stage=3, persistence_threshold=0, prefetch_bucket_size=0, max_live_parameters=0, max_reuse_distance=0)


def plan(stage: int, ranks: int = 2, rank: int = 0, **changes: Any) -> Plan:
    options = changes.pop("zero", {})
    small = {"reduce_bucket_size": 100, **options}
    return Plan(
        strategy=f"zero{stage}",
        layout=Layout(world_size=ranks, shard=ranks, shard_rank=rank),
        zero=Zero(stage=stage, **small),
        precision=changes.pop("precision", Precision(parameters="bfloat16", master="float32")),
        optimizer=changes.pop("optimizer", OptimizerPlan(name="FusedAdam", count=1)),
        batch=Batch(micro_batch=1, accumulation=changes.pop("accumulation", 1)),
        **changes,
    )


def model(*numels: int) -> Inventory:
    return Inventory.of([Kind((n,), "bfloat16") for n in numels], buffer_bytes=7)


def four_blocks() -> Inventory:
    """An embedding, four blocks of two matrices and a norm, a final norm, a head: 1,000 + 4 x 1,264 + 16 + 1,000."""
    block = [Kind((16, 40), "bfloat16"), Kind((40, 15), "bfloat16"), Kind((24,), "bfloat16")]
    ends = Kind((100, 10), "bfloat16")
    return Inventory.of([ends, *block * 4, Kind((16,), "bfloat16"), ends])


def size(row: dict[str, Amount]) -> int:
    return sum(amount.bytes or 0 for amount in row.values())


def named(amount: Amount, word: str) -> int:
    """Bytes of the parts whose name holds a word."""
    return sum(part.bytes for part in amount.parts if word in part.name)


# -- against DeepSpeed -------------------------------------------------------------------------------------------------


def test_counted_runs_of_deepspeed() -> None:
    assert answers_deepspeed.REFERENCE.layers == 4
    rows = list(case_table.rows("own run of deepspeed"))
    assert len(rows) >= 109
    print(case_table.table(rows))
    errors = [row.error for row in rows if row.error is not None]
    assert len(errors) == len(rows)
    assert all(row.inside for row in rows)
    assert statistics.median(errors) < 0.0002


@pytest.mark.parametrize(
    "source", ["DeepSpeed estimate_zero", "DeepSpeed docs", "HF transformers docs/source/en/deepspeed", "ZeRO, arXiv",
               "LLaMA-Factory"],
)  # fmt: skip
def test_published_numbers(source: str) -> None:
    rows = list(case_table.rows(source))
    assert rows
    assert all(row.inside is not False for row in rows), case_table.table(rows, only_bad=True)
    assert all("older formula" in row.reason for row in rows if row.inside is None)


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_stage_2_holds_its_bucket_and_one_copy_in_backward_alone() -> None:
    # 60 + 60 elements on 2 ranks; the bucket of 100 takes one of them at a time, each within one rank's half.
    parameters = model(60, 60)
    table = moments(parameters, plan(2), replace(ALIVE, loss_backward=0, logits=0))
    assert table["step_start"]["buffers"].bytes == 7
    assert named(table["backward"]["buffers"], "gradient buckets") == 100 * 2
    assert named(table["backward"]["buffers"], "copy of the bucket") == 0
    twice = moments(parameters, plan(2, zero={"overlap_comm": True}), ALIVE)
    heavier = moments(parameters, plan(2, zero={"overlap_comm": True, "reduce_bucket_size": 100_000}), ALIVE)
    assert named(heavier["backward"]["buffers"], "gradient buckets") == 2 * 100_000 * 2
    assert size(twice["backward_end"]) == size(table["backward_end"])


def test_a_bucket_over_both_ranks_is_copied_to_be_reduced() -> None:
    # 120 elements in one bucket of 1,000: it holds parts of both ranks and is flattened anew.
    table = moments(model(60, 60), plan(2, zero={"reduce_bucket_size": 1000}), Activations(layers=1, layer=0, blocks=0))
    assert named(table["backward"]["buffers"], "copy of the bucket") == 120 * 2
    assert named(table["backward"]["buffers"], "gradient buckets") == 1000 * 2
    alone = moments(model(60, 60), plan(2, ranks=1, zero={"reduce_bucket_size": 1000}), None)
    assert named(alone["backward"]["buffers"], "copy of the bucket") == 0


def test_scattered_gradients_need_no_bucket() -> None:
    table = moments(model(60, 60), plan(2, zero={"contiguous_gradients": False}), ALIVE)
    assert named(table["backward"]["buffers"], "gradient buckets") == 0


def test_stage_1_keeps_its_bucket_while_it_accumulates() -> None:
    one, more = (moments(model(60, 60), plan(1, accumulation=n), ALIVE)["forward_end"] for n in (1, 2))
    assert named(one["buffers"], "gradient buckets") == 0
    assert named(more["buffers"], "gradient buckets") == 100 * 2
    assert (one["gradients"].bytes, more["gradients"].bytes) == (0, 120 * 2)


def test_stage_1_with_offload_leaves_earlier_gradients_on_the_device() -> None:
    table = moments(model(60, 60), plan(1, accumulation=2, zero={"offload_optimizer": "cpu"}), ALIVE)
    assert table["forward_end"]["gradients"].bytes == 120 * 2
    assert table["backward_end"]["gradients"].bytes == 0
    assert table["step_start"]["optimizer"].bytes == 0


def test_the_step_of_stage_2_by_hand() -> None:
    # Rank 0 has the first 60 of 120 elements, in one piece: a view of the buffer of 60 16-bit gradients becomes fp32.
    table = moments(model(60, 60), plan(2), ALIVE)
    step = table["optimizer_step"]
    assert step["optimizer"].bytes == 60 * 12
    assert step["gradients"].bytes == 60 * 2
    assert named(step["activations"], "fp64") == 60 * 8
    foreach = plan(2, optimizer=OptimizerPlan(name="AdamW", count=1, options={"foreach": True}))
    later = moments(model(60, 60), foreach, ALIVE)["optimizer_step"]
    assert size(later) >= size(step)


def test_stage_3_keeps_one_bucket_and_copies_it_to_reduce() -> None:
    parameters = four_blocks()
    table = moments(parameters, plan(3, zero={"reduce_bucket_size": 2000, "persistence_threshold": 30}), ALIVE)
    for moment in MOMENTS:
        assert named(table[moment]["buffers"], "gradient bucket") == 2000 * 2
    without = moments(parameters, plan(3, zero={"contiguous_gradients": False}), ALIVE)
    assert named(without["step_start"]["buffers"], "gradient bucket") == 0


def test_saving_gathers_the_largest_module_when_asked() -> None:
    saving = plan(3, zero={"gather_weights_on_save": True})
    table = moments(four_blocks(), saving, ALIVE)
    assert named(table["checkpoint_save"]["buffers"], "gather_16bit_weights_on_model_save") == 1000 * 2
    on_host = moments(four_blocks(), replace(saving, host=True), ALIVE)["checkpoint_save"]
    assert named(on_host["buffers"], "gather_16bit_weights_on_model_save") == four_blocks().numel * 2
    plainly = moments(four_blocks(), plan(3), ALIVE)
    assert named(plainly["checkpoint_save"]["buffers"], "gather_16bit_weights_on_model_save") == 0


# -- gathering ---------------------------------------------------------------------------------------------------------

MODULES = tuple((index,) for index in range(6))
NUMELS = (10, 20, 30, 30, 20, 10)


def limits(**changes: Any) -> Limits:
    return Limits(**{"ranks": 2, "prefetch": 0, "live": 0, "reuse": 0, **changes})


def test_without_any_room_one_module_is_whole_at_a_time() -> None:
    found = gathered(MODULES, NUMELS, limits())
    assert found.live == (*NUMELS, *reversed(NUMELS))
    assert set(found.flat) == {0}
    assert found.between == 0


def test_the_first_pass_prefetches_nothing() -> None:
    found = gathered(MODULES, NUMELS, limits(prefetch=1000, live=1000, reuse=1000, traced=False))
    assert found.live == (*NUMELS, *reversed(NUMELS))


def test_with_all_room_everything_is_gathered_at_once_and_stays() -> None:
    found = gathered(MODULES, NUMELS, limits(prefetch=1000, live=1000, reuse=1000))
    assert found.live[0] == found.between == sum(NUMELS)
    assert found.flat[:6] == (sum(NUMELS),) * 6
    assert found.flat[6:] == (0,) * 6
    assert found.running[-1] == 10


def test_max_live_parameters_ends_prefetching() -> None:
    tight, wide = (gathered(MODULES, NUMELS, limits(prefetch=1000, live=n)) for n in (40, 120))
    assert max(tight.live) < max(wide.live)
    # What is needed now is gathered whatever the limit says.
    assert max(gathered(MODULES, NUMELS, limits(prefetch=1000, live=1)).live) >= max(NUMELS)


def test_reuse_distance_keeps_what_is_used_again_soon() -> None:
    # After forward 10 is used again at once, 20 behind it after 10 more elements, 30 after 30 more.
    assert gathered(MODULES, NUMELS, limits(reuse=1)).between == 10
    assert gathered(MODULES, NUMELS, limits(reuse=31)).between == 30
    assert gathered(MODULES, NUMELS, limits(reuse=61)).between == 60


def test_a_coalesced_gather_holds_its_buffer_beside_the_copies() -> None:
    found = gathered(((0, 1),), (40, 3), limits())
    assert (found.live[0], found.flat[0]) == (43, 44)
    assert found.running[0] == 43


# -- off the device ----------------------------------------------------------------------------------------------------


def test_zero_offload_on_the_host_by_hand() -> None:
    parameters = model(600, 600)
    host, nvme = off_device(parameters, plan(2, zero={"offload_optimizer": "cpu"}))
    # Of 600 elements: master, gradient and two states in fp32, a 16-bit copy; one whole gradient of the largest.
    assert host.bytes == 600 * (4 + 4 + 8 + 2) + 600 * 2
    assert nvme.bytes == 0
    assert "page-locked" in host.rule
    assert (
        "not page-locked"
        in off_device(parameters, plan(2, zero={"offload_optimizer": "cpu", "pin_memory": False}))[0].rule
    )
    sums = off_device(parameters, plan(2, accumulation=2, zero={"offload_optimizer": "cpu"}))[0]
    assert sums.bytes == (host.bytes or 0) + 600 * 2


def test_zero_infinity_by_hand() -> None:
    parameters = model(600, 600)
    options = {"offload_optimizer": "nvme", "offload_parameters": "nvme", "max_in_cpu": 200, "nvme_buffer_size": 50}
    host, nvme = off_device(parameters, plan(3, zero=options))
    # Disk: master, two states, gradients, and the 400 elements of weights beyond max_in_cpu.
    assert nvme.bytes == 600 * 16 + 400 * 2
    # Host: gradient partitions, 4 buffers of the one sub-group in fp32, weights up to max_in_cpu, 5 swap buffers.
    assert host.bytes == 600 * 2 + 4 * 600 * 4 + 200 * 2 + 5 * 50 * 2
    cpu = off_device(parameters, plan(3, zero={"offload_optimizer": "cpu", "offload_parameters": "cpu"}))
    assert (cpu[0].bytes, cpu[1].bytes) == (600 * 20, 0)


def test_nothing_is_off_the_device_without_offloading() -> None:
    assert [amount.bytes for amount in off_device(model(600), plan(3))] == [0, 0]


def test_an_optimizer_without_a_rule_is_unknown_not_zero() -> None:
    strange = plan(2, optimizer=OptimizerPlan(name="Strange", count=1), zero={"offload_optimizer": "cpu"})
    assert off_device(model(600), strange)[0].bytes is None


# -- what holds for any plan -------------------------------------------------------------------------------------------

ANY = [
    plan(stage, ranks, accumulation=accumulation, host=host, zero=options)
    for stage in (1, 2, 3)
    for ranks in (1, 2, 5)
    for accumulation in (1, 3)
    for host in (False, True)
    for options in ({}, {"offload_optimizer": "cpu"}, {"overlap_comm": True, "round_robin_gradients": True})
]


@pytest.mark.parametrize("each", ANY, ids=range(len(ANY)))
def test_every_moment_speaks_and_parts_add_up(each: Plan) -> None:
    for first in (False, True):
        table = moments(four_blocks(), each, ALIVE, first_step=first)
        assert list(table) == list(ALL_MOMENTS)
        states = zero.expected(four_blocks(), each, first_step=first)
        for moment, row in table.items():
            assert set(row) == set(BUDGETED) - {"runtime"}
            for amount in row.values():
                assert amount.bytes is not None
                assert amount.bytes >= 0
                assert amount.rule
                assert not amount.parts or sum(part.bytes for part in amount.parts) == amount.bytes
            if moment in MOMENTS:
                assert {name: row[name] for name in STATES} == states[moment]
        assert size(table["forward"]) >= size(table["forward_end"])
        assert size(table["backward"]) >= size(table["backward_start"])
        assert size(table["optimizer_step"]) + 64 >= size(table["step_end"])


@pytest.mark.parametrize("each", ANY[::5], ids=range(len(ANY[::5])))
def test_unknown_activations_are_unknown_and_nothing_else_is(each: Plan) -> None:
    table = moments(four_blocks(), each, None)
    for moment in ("forward", "forward_end", "backward_start", "backward"):
        assert table[moment]["activations"].bytes is None
        assert table[moment]["buffers"].bytes is not None
    assert table["optimizer_step"]["activations"].bytes is not None


@pytest.mark.parametrize("moment", ["step_start", "between"])
def test_a_higher_stage_never_holds_more_states(moment: str) -> None:
    totals = []
    for stage in (1, 2, 3):
        each = plan(stage, 4, zero={"persistence_threshold": 0})
        row = between(four_blocks(), each) if moment == "between" else moments(four_blocks(), each, ALIVE)[moment]
        totals.append(sum(row[name].bytes or 0 for name in ("parameters", "optimizer")))
    # Partitions are padded parameter by parameter.
    assert totals[2] <= totals[1] + 16 * len(four_blocks())
    assert totals[1] <= totals[0]


def test_a_bare_number_of_parameters_is_divided_evenly() -> None:
    own = plan(2, 8, zero={"reduce_bucket_size": 500_000_000})
    row = between(inventory(Model(count=8_000_000_000), own), own)
    assert row["gradients"].bytes == pytest.approx(8e9 / 8 * 2, rel=0.01)
    assert row["parameters"].bytes == pytest.approx(16e9, rel=1e-6)


def test_what_has_no_rule_says_so_everywhere() -> None:
    table = moments(four_blocks(), plan(3, zero={"not_budgeted": ("ZenFlow",)}), ALIVE)
    assert all(amount.bytes is None and "ZenFlow" in amount.rule for row in table.values() for amount in row.values())
    assert off_device(four_blocks(), plan(3, zero={"not_budgeted": ("ZenFlow",)}))[0].bytes is None


def test_frozen_partitions_are_offloaded_with_the_others() -> None:
    frozen = Inventory.of([Kind((600,), "bfloat16"), Kind((400,), "bfloat16", trainable=False, group=-1)])
    options = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
    host, _ = off_device(frozen, plan(3, zero=options))
    # Of 300 elements master, gradient and two states in fp32 and a 16-bit gradient; all 500 elements of weights.
    assert host.bytes == 300 * 18 + 500 * 2


def test_fp32_models_have_master_weights_from_stage_1_on() -> None:
    fp32 = Inventory.of([Kind((600,), "float32")])
    for stage in (1, 2, 3):
        without = plan(stage, precision=Precision(parameters="float32"))
        table = moments(fp32, without, ALIVE)
        assert table["step_start"]["optimizer"].bytes == 300 * 12
        assert table == moments(fp32, plan(stage, precision=Precision(parameters="float32", master="float32")), ALIVE)


def test_the_live_side_sees_buckets_and_staging_but_not_gathers_and_copies() -> None:
    waiting = moments(model(60, 60), plan(1, accumulation=2), ALIVE)["forward_end"]["buffers"]
    assert {part.name: part.seen for part in waiting.parts} == {
        "module buffers": True,
        "gradient buckets, reduce_bucket_size": True,
    }
    staging = moments(model(60, 60), plan(2, zero={"offload_optimizer": "cpu"}), ALIVE)["step_start"]["buffers"]
    assert all(part.seen for part in staging.parts)
    whole = moments(four_blocks(), plan(3, zero={"persistence_threshold": 0}), ALIVE)["forward_end"]["buffers"]
    assert {part.seen for part in whole.parts if "gathered" in part.name} == {False}
    assert {part.seen for part in whole.parts if "bucket" in part.name} == {True}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_loading_comes_before_any_step(stage: int) -> None:
    load = moments(four_blocks(), plan(stage), ALIVE)["load"]
    assert load == moments(four_blocks(), plan(stage), ALIVE, first_step=True)["load"]
    states = zero.expected(four_blocks(), plan(stage), first_step=True)["step_start"]
    assert load["optimizer"] == states["optimizer"]
    # Masters alone; stages 1 and 2 pad the whole to a multiple of 4, stage 3 every parameter to one of 2.
    assert load["optimizer"].bytes == pytest.approx(four_blocks().numel / 2 * 4, rel=0.01)


def test_each_rank_takes_the_norm_of_its_own_largest_piece() -> None:
    # 300 + 60 + 60 + 180 on 2 ranks: the first has the 300 whole, the second at most 180 in one piece.
    first, second = (
        moments(model(300, 60, 60, 180), plan(2, rank=rank), ALIVE)["optimizer_step"]["activations"] for rank in (0, 1)
    )
    assert (named(first, "fp64"), named(second, "fp64")) == (300 * 8, 0)
    wide = plan(2, rank=1, precision=Precision(parameters="bfloat16", master="bfloat16"))
    assert named(moments(model(300, 60, 60, 180), wide, ALIVE)["optimizer_step"]["activations"], "fp64") == 180 * 8
