"""The ZeRO budget against hand-made layouts, the ZeRO paper's table and bytes counted in runs of DeepSpeed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Batch, Layout, OptimizerPlan, Plan, Precision, Zero
from ranktop.budget.terms import MOMENTS, STATES
from ranktop.budget.zero.layout import FlatGroup, persistent, share, sub_groups
from ranktop.budget.zero.states import expected

ADAMW = OptimizerPlan(name="AdamW", count=1)


def plan(stage: int, ranks: int, rank: int = 0, *, dtype: str = "bfloat16", **changes: Any) -> Plan:
    """A plan with masters in fp32, as DeepSpeed makes them at every stage but 0 in fp32."""
    zero = changes.pop("zero", {})
    layout = (
        Layout(world_size=ranks, shard=ranks, shard_rank=rank)
        if stage
        else Layout(world_size=ranks, replicate=ranks, replicate_rank=rank)
    )
    master = "float32" if stage or dtype != "float32" else None
    return Plan(
        strategy=f"zero{stage}",
        layout=layout,
        zero=Zero(stage=stage, **zero),
        precision=Precision(parameters=dtype, master=master),
        optimizer=changes.pop("optimizer", ADAMW),
        batch=Batch(accumulation=changes.pop("accumulation", 1)),
        **changes,
    )


def inventory(*numels: int, dtype: str = "bfloat16", groups: tuple[int, ...] = ()) -> Inventory:
    marks = groups or (0,) * len(numels)
    return Inventory.of([Kind((n,), dtype, group=g) for n, g in zip(numels, marks, strict=True)])


def total(table: dict[str, dict[str, Any]], moment: str) -> int:
    return sum(table[moment][category].bytes for category in STATES)


# -- layouts by hand ---------------------------------------------------------------------------------------------------


def test_flat_group_pads_to_twice_the_ranks_and_splits_a_parameter() -> None:
    # 5 + 3 + 5 = 13 elements, padded to 16, 8 a rank: rank 0 has 5 and 3, rank 1 has 5 and 3 of padding.
    assert FlatGroup.of([5, 3, 5], 2, 0) == FlatGroup(16, 8, whole=8, touching=2, padding=0, pieces=2)
    assert FlatGroup.of([5, 3, 5], 2, 1) == FlatGroup(16, 8, whole=5, touching=1, padding=3, pieces=2)
    # 6 + 6: rank 0 holds one whole parameter in one piece only when the border is at its end.
    assert FlatGroup.of([6, 6], 2, 0) == FlatGroup(12, 6, whole=6, touching=1, padding=0, pieces=1)
    # 3 + 9 = 12: the second parameter lies on both ranks and counts whole on both.
    assert FlatGroup.of([3, 9], 2, 0).whole == 12
    assert FlatGroup.of([3, 9], 2, 1).whole == 9


def test_a_rank_beyond_all_parameters_has_padding_only() -> None:
    assert FlatGroup.of([1], 3, 2) == FlatGroup(6, 2, whole=0, touching=0, padding=2, pieces=1)


def test_round_robin_deals_parameters_out() -> None:
    # Dealt to two ranks: (4, 2) then (6, 8), that is 4 2 6 8 = 20 elements, 10 a rank; else 4 6 2 8.
    dealt = FlatGroup.of([4, 6, 2, 8], 2, 0, round_robin=True)
    assert (dealt.size, dealt.whole, dealt.touching) == (20, 12, 3)
    assert FlatGroup.of([4, 6, 2, 8], 2, 0).whole == 10


def test_aligned_parameters_leave_gaps() -> None:
    # At multiples of 8: 3 at 0, 5 at 8, 1 at 16: 17 elements, padded to 20.
    first, second = (FlatGroup.of([3, 5, 1], 2, rank, aligned_to=8) for rank in (0, 1))
    assert (first.size, first.partition, first.padding, first.pieces) == (20, 10, 5, 3)
    assert (second.whole, second.padding, second.pieces) == (6, 10 - 3 - 1, 4)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("aligned_to", [1, 8])
def test_parts_of_all_ranks_hold_every_element_once(ranks: int, aligned_to: int) -> None:
    numels = [161, 203, 29, 29, 29, 87, 3, 203, 1, 1000]
    parts = [FlatGroup.of(numels, ranks, rank, aligned_to=aligned_to) for rank in range(ranks)]
    assert sum(part.partition - part.padding for part in parts) == sum(numels)
    assert sum(part.partition for part in parts) == parts[0].size


def test_partitions_sub_groups_and_persistence() -> None:
    assert [share(n, 3) for n in (1, 3, 4, 1000)] == [1, 1, 2, 334]
    assert sub_groups([5, 5, 5, 5], 10) == [[5, 5], [5, 5]]
    assert sub_groups([5, 5, 5, 1], 10) == [[5, 5], [5, 1]]
    assert sub_groups([30, 1, 1], 10) == [[30], [1, 1]]
    assert sub_groups([5, 5], 10) == [[5, 5]]
    assert sub_groups([], 10) == []
    assert persistent([5, 20, 7, 7], threshold=10, total=15) == [True, False, True, False]


# -- moments by hand ---------------------------------------------------------------------------------------------------


def test_zero2_in_bf16_by_hand() -> None:
    table = expected(inventory(5, 3, 5), plan(2, 2, 1))
    assert table["step_start"]["parameters"].bytes == 16 * 2
    assert table["step_start"]["gradients"].bytes == 0
    assert table["step_start"]["optimizer"].bytes == 8 * 4 * 3
    assert table["backward_end"]["gradients"].bytes == table["step_end"]["gradients"].bytes == 8 * 4
    assert all(amount.slack == 0 for row in table.values() for amount in row.values())
    assert all("stage_1_and_2.py" in amount.rule for row in table.values() for amount in row.values())


def test_a_gradient_in_one_piece_is_not_copied_in_fp32() -> None:
    # 3 + 9 elements: rank 0's part is cut out of both parameters, rank 1's out of one, whose gradient is used as is.
    fp32 = inventory(3, 9, dtype="float32")
    assert expected(fp32, plan(2, 2, 0, dtype="float32"))["step_end"]["gradients"].bytes == 6 * 4
    assert expected(fp32, plan(2, 2, 1, dtype="float32"))["step_end"]["gradients"].bytes == 9 * 4


def test_groups_are_updated_one_after_another() -> None:
    # Group 0: 8 elements, 4 a rank. Group 1: 10 elements, padded to 12, 6 a rank; rank 1 has 4 and 2 of padding.
    both = inventory(8, 10, groups=(0, 1))
    rows = expected(both, plan(2, 2, 1))
    assert rows["backward_end"]["gradients"].bytes == 4 * 4 + (8 + 10) * 2 + 2 * 2
    assert rows["step_end"]["gradients"].bytes == 6 * 4


def test_accumulated_gradients_live_through_the_last_forward() -> None:
    model = inventory(3, 9)
    of_stage = {
        stage: expected(model, plan(stage, 2, 1, accumulation=2))["forward_end"]["gradients"].bytes
        for stage in (0, 1, 2, 3)
    }
    assert of_stage == {0: 24, 1: 24, 2: 18, 3: (2 + 5) * 2}


def test_the_first_step_makes_the_states() -> None:
    table = expected(inventory(5, 3, 5), plan(1, 2), first_step=True)
    assert {moment: table[moment]["optimizer"].bytes for moment in MOMENTS} == {
        "step_start": 32,
        "forward_end": 32,
        "backward_start": 32,
        "backward_end": 32,
        "step_end": 96,
    }


def test_stage_0_steps_once_at_the_start_only_with_masters() -> None:
    for dtype, bytes_before in (("bfloat16", 13 * 12), ("float32", 0)):
        table = expected(inventory(13, dtype=dtype), plan(0, 2, dtype=dtype), first_step=True)
        assert table["step_start"]["optimizer"].bytes == bytes_before


@pytest.mark.parametrize(("name", "states"), [("FusedAdam", 2), ("DeepSpeedCPUAdam", 2), ("FusedLion", 1)])
def test_deepspeeds_own_optimizers_are_known_before_their_first_step(name: str, states: int) -> None:
    own = OptimizerPlan(name=name, count=1, options={"package": "deepspeed"})
    table = expected(inventory(5, 3, 5), plan(2, 2, optimizer=own), first_step=True)
    assert table["backward_end"]["optimizer"].bytes == 8 * 4
    assert table["step_end"]["optimizer"].bytes == 8 * 4 * (1 + states)


def test_frozen_parameters_are_held_and_nothing_more() -> None:
    kinds = [Kind((13,), "bfloat16"), Kind((7,), "bfloat16", trainable=False, group=-1)]
    for stage, parameters in {0: 40, 1: 16 * 2 + 14, 2: 16 * 2 + 14, 3: (7 + 4) * 2}.items():
        settings = {"persistence_threshold": 0}
        table = expected(Inventory.of(kinds), plan(stage, 2, zero=settings), first_step=True)
        assert table["step_start"]["parameters"].bytes == parameters
        assert table["step_start"]["optimizer"].bytes == {0: 13 * 12, 1: 8 * 4, 2: 8 * 4, 3: 7 * 4}[stage]


def test_persistent_parameters_are_whole_outside_the_step() -> None:
    table = expected(inventory(5, 100), plan(3, 3, zero={"persistence_threshold": 10}))
    split = (2 + 34) * 2
    assert [table[moment]["parameters"].bytes for moment in MOMENTS] == [split + 12] * 3 + [split] * 2


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_offloaded_states_leave_a_gpu_but_not_a_host(stage: int) -> None:
    settings = {"offload_optimizer": "cpu"} | ({"offload_parameters": "cpu"} if stage == 3 else {})
    on_gpu = expected(inventory(200_000), plan(stage, 2, zero=settings))
    assert total(on_gpu, "step_end") == (0 if stage == 3 else 400_000)
    on_host = expected(inventory(200_000), plan(stage, 2, zero=settings, host=True))
    # 16-bit weights (1/2 at stage 3), then of 100,000 elements: master, two states, fp32 gradient, at stage 3 a
    # 16-bit one too; and the optimizer's step counter.
    kept = 100_000 * (16 if stage < 3 else 18) + 4
    assert total(on_host, "step_end") == kept + (200_000 if stage == 3 else 400_000)


def test_nvme_leaves_as_much_on_the_device_as_offload_to_the_host() -> None:
    live = {"not_budgeted": ("NVMe offload",), "offload_optimizer": "nvme"}
    nvme = expected(inventory(200_000), plan(3, 2, zero={**live, "offload_parameters": "nvme"}))
    cpu = expected(inventory(200_000), plan(3, 2, zero={"offload_optimizer": "cpu", "offload_parameters": "cpu"}))
    assert nvme == cpu
    on_host = expected(inventory(200_000), plan(3, 2, zero=live, host=True))
    assert all(amount.bytes is None and "NVMe" in amount.rule for row in on_host.values() for amount in row.values())


@pytest.mark.parametrize(
    ("stage", "changes", "words"),
    [
        (3, {"not_budgeted": ("ZenFlow",)}, "ZenFlow"),
        (1, {"gradient_dtype": "float32"}, "another dtype"),
    ],
)
def test_what_has_no_rule_says_so(stage: int, changes: dict[str, Any], words: str) -> None:
    table = expected(inventory(13), plan(stage, 2, zero=changes))
    for row in table.values():
        assert {amount.bytes for amount in row.values()} == {None}
        assert all(words in amount.rule for amount in row.values())


def test_bf16_optimizer_keeps_whole_fp32_gradients() -> None:
    settings = {"gradient_dtype": "float32", "wrapper": "BF16_Optimizer"}
    table = expected(inventory(13), plan(1, 2, zero=settings))
    assert table["step_start"]["gradients"].bytes == 16 * 4
    assert table["backward_end"]["gradients"].bytes == 16 * 4 + 13 * 2


# -- published numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "stage", "gigabytes"),
    [
        (4, 1, 52.5),
        (4, 2, 41.3),
        (4, 3, 30.0),
        (16, 2, 21.6),
        (16, 3, 7.5),
        (64, 1, 31.4),
        (64, 2, 16.6),
        (64, 3, 1.88),
        (256, 2, 15.4),
        (256, 3, 0.47),
        (1024, 1, 30.1),
        (1024, 2, 15.1),
    ],
)
def test_table_1_of_the_zero_paper(ranks: int, stage: int, gigabytes: float) -> None:
    """arXiv:1910.02054, 7.5 billion parameters, fp16 Adam; its gradients are what accumulation keeps."""
    numel = 7_500_000_000 // 1280
    model = Inventory.of([Kind((numel,), "float16")] * 1280)
    settings = {"persistence_threshold": 0}
    table = expected(model, plan(stage, ranks, dtype="float16", zero=settings, accumulation=2))
    # Gradients of parameters that lie on a border between ranks are kept whole, which the paper leaves out.
    border = 2 * 2 * numel if stage == 2 else 0
    assert total(table, "forward_end") / 1e9 == pytest.approx(gigabytes, rel=0.01, abs=border / 1e9)


BLOCK = [256, 256, 3 * 256 * 256, 3 * 256, 256 * 256, 256, 256, 256, 1024 * 256, 1024, 256 * 1024, 256]
GPT = [1024 * 256, 128 * 256, *BLOCK * 4, 256, 256, 1024 * 256]
"""Elements of a GPT's parameters: 4 blocks, width 256, 1024 tokens, 128 positions: 3,716,608 in all."""

BUCKET = 1_000_000
BF16_BUCKET = 2 * BUCKET
COUNTED: dict[str, tuple[int, int, dict[str, Any], str, int, int]] = {
    "zero1, 2 ranks": (1, 2, {}, "step_start", 0, 29_734_912),
    "zero2, 2 ranks": (2, 2, {}, "step_start", 0, 29_734_912),
    "zero2, 4 ranks": (2, 4, {}, "step_start", 0, 18_585_088),
    "zero3, 2 ranks": (3, 2, {}, "step_start", BF16_BUCKET, 31_735_808),
    "zero3, 4 ranks": (3, 4, {}, "step_start", BF16_BUCKET, 16_869_888),
    "zero3, persistent": (3, 2, {"persistence_threshold": 100_000}, "step_start", BF16_BUCKET, 32_353_280),
    "zero3, offload": (3, 2, {"offload_optimizer": "cpu"}, "step_start", BF16_BUCKET, 39_169_024),
    # Beside the bucket of the backward pass: a 16-bit copy of a rank's part, and twice the largest parameter.
    "zero2, offload": (2, 2, {"offload_optimizer": "cpu"}, "step_start", 3_716_608 + 4 * 262_144, 41_946_112),
}
"""Stage, ranks, options, moment, bytes of buffers -> all live bytes of rank 0."""


@pytest.mark.parametrize("name", COUNTED)
def test_bytes_counted_in_runs_of_deepspeed(name: str) -> None:
    """Live tensors of DeepSpeed 0.19.8 between steps (bf16, AdamW), each storage rounded up to 512 bytes."""
    stage, ranks, options, moment, buffers, counted = COUNTED[name]
    settings = {"persistence_threshold": 0, **options}
    table = expected(inventory(*GPT), plan(stage, ranks, zero=settings, host=True))
    assert 0 <= counted - buffers - total(table, moment) <= 32 * 512


# -- the probe without DeepSpeed ---------------------------------------------------------------------------------------


def test_the_probe_imports_neither_torch_nor_deepspeed() -> None:
    code = (
        "import sys; from ranktop.probes import deepspeed as probe; assert probe.find(object()) is None; "
        "print(sorted({'torch', 'deepspeed'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
