"""Seconds beside the computation, by hand: what is sent at which link, copied, computed again, waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranktop.budget.collective import Collective
from ranktop.budget.fitting import cost
from ranktop.budget.fitting.cost import Speeds, Work, speeds, work
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.model import Model
from ranktop.budget.plan import Batch, Fsdp, Layout, Pipeline, Plan, Precision, Zero

AT = Speeds(link=10e9, node_link=100e9, host_link=20e9, flops=1e12)
ONE = Inventory.of([Kind(shape=(1000, 1000), dtype="bfloat16")])
"""A million parameters."""


def reduce(axis: str, group: int) -> Collective:
    return Collective(kind="all_reduce", group=group, bytes=8 * 10**9, axis=axis)


@pytest.mark.parametrize(
    ("layout", "axis", "group", "seconds"),
    [
        # 2 x 7/8 x 8 GB = 14 GB from every GPU.
        (Layout(world_size=8, replicate=8), "replicate", 8, 0.14),
        (Layout(world_size=16, replicate=2, shard=8), "shard", 8, 0.14),
        (Layout(world_size=64, replicate=8, tensor=8), "tensor", 8, 0.14),
        # Every eighth rank: over eight nodes, at the slow link.
        (Layout(world_size=64, replicate=8, tensor=8), "replicate", 8, 1.4),
        # Four of each node: all their links.
        (Layout(world_size=16, shard=8, tensor=2), "shard", 8, 0.35),
        # Replicas of one stage share a node: the stages are what lies on several.
        (Layout(world_size=16, replicate=8, pipeline=2), "replicate", 8, 0.14),
        # 2 x 63/64 x 8 GB by eight links of 10 GB/s from every node, which are no slower than the node itself.
        (Layout(world_size=64, replicate=64), "replicate", 64, 2 * 63 / 64 * 8 / 80),
    ],
)
def test_a_group_within_a_node_sends_at_its_speed(layout: Layout, axis: str, group: int, seconds: float) -> None:
    assert cost.sending(Plan(layout=layout), [reduce(axis, group)], AT, 8) == pytest.approx(seconds)


def test_stages_of_a_pipeline_lie_on_different_nodes_when_there_are_several() -> None:
    send = Collective(kind="p2p", group=2, bytes=10**9, axis="pipeline")
    assert cost.sending(Plan(layout=Layout(world_size=8, pipeline=8)), [send], AT, 8) == pytest.approx(0.01)
    assert cost.sending(Plan(layout=Layout(world_size=16, pipeline=2)), [send], AT, 8) == pytest.approx(0.1)


def test_of_stages_that_share_a_node_the_last_one_sends_one_way_over_the_link() -> None:
    plan = Plan(layout=Layout(world_size=16, pipeline=16))
    ways = [Collective(kind="p2p", group=2, bytes=10**9, axis="pipeline", phase=way) for way in ("forward", "backward")]
    assert cost.sending(plan, ways, AT, 8) == pytest.approx(0.1 + 0.01)


def test_an_all_to_all_sends_what_leaves_the_node_over_one_link() -> None:
    one = Collective(kind="all_to_all", group=16, bytes=16 * 10**9, axis="expert")
    assert cost.sending(Plan(layout=Layout(world_size=16, expert=16)), [one], AT, 8) == pytest.approx(0.8)


def test_recomputing_repeats_the_forward_of_the_blocks() -> None:
    per_token = Work(blocks=2e9, whole=3e9)
    plan = Plan(checkpointing="full", batch=Batch(micro_batch=2, sequence_length=1000, accumulation=4))
    assert cost.recomputing(plan, per_token, 8, AT) == pytest.approx(2e9 * 8 * 1000 / 1e12)
    assert cost.recomputing(replace(plan, checkpointing="selective"), per_token, 8, AT) == pytest.approx(1.6)
    assert cost.recomputing(replace(plan, checkpointing="none"), per_token, 8, AT) == 0
    split = replace(plan, layout=Layout(world_size=8, tensor=4, pipeline=2))
    assert cost.recomputing(split, per_token, 8, AT) == pytest.approx(2.0)


def test_a_pipeline_waits_for_its_other_stages() -> None:
    per_token = Work(blocks=2e9, whole=3e9)
    plan = Plan(layout=Layout(world_size=4, pipeline=4), pipeline=Pipeline(micro_batches=12),
                batch=Batch(micro_batch=1, sequence_length=1000))  # fmt: skip
    computing = 3 * 3e9 * 12 * 1000 / 4 / 1e12
    assert cost.waiting(plan, per_token, 12, AT) == pytest.approx(computing * 3 / 12)
    twice = replace(plan, pipeline=Pipeline(schedule="interleaved", micro_batches=12, virtual=2))
    assert cost.waiting(twice, per_token, 12, AT) == pytest.approx(computing * 3 / 24)
    assert cost.waiting(replace(plan, pipeline=None), per_token, 12, AT) == 0
    # Ten layers on four stages: two of them have three, which takes 3/2.5 of the time.
    uneven = cost.waiting(plan, replace(per_token, layers=10), 12, AT)
    assert uneven == pytest.approx(computing * (1.25 * 1.2 - 1))


def test_offloading_copies_and_steps_on_the_cpu() -> None:
    held = Plan(precision=Precision(parameters="bfloat16"), layout=Layout(world_size=2, shard=2),
                batch=Batch(micro_batch=1, accumulation=3))  # fmt: skip
    step = 28 * 500_000 / cost.ASSUMED_HOST_MEMORY
    once = Zero(stage=1, offload_optimizer="cpu")
    # Half a million parameters: gradients down and weights up, 2 bytes each.
    assert cost.copying(replace(held, zero=once), ONE, AT) == pytest.approx(2e6 / 20e9 + step)
    # Stage 2: gradients in each of three micro-batches.
    assert cost.copying(replace(held, zero=replace(once, stage=2)), ONE, AT) == pytest.approx(4e6 / 20e9 + step)
    # Stage 3 with its weights: up for forward and for backward of each.
    third = Zero(stage=3, offload_optimizer="cpu", offload_parameters="cpu")
    assert cost.copying(replace(held, zero=third), ONE, AT) == pytest.approx(9e6 / 20e9 + step)
    disk = replace(third, offload_optimizer="nvme", offload_parameters="nvme", max_in_cpu=0)
    swapped = (28 * 500_000 + 2 * 500_000 * 6) / cost.ASSUMED_DISK
    assert cost.copying(replace(held, zero=disk), ONE, AT) == pytest.approx(9e6 / 20e9 + step + swapped)
    full = replace(held, fsdp=Fsdp(cpu_offload=True), precision=Precision(parameters="float32", compute="bfloat16"))
    assert cost.copying(full, ONE, AT) == pytest.approx(18e6 / 20e9 + step)
    assert cost.copying(replace(held, zero=Zero(stage=3)), ONE, AT) == 0


def test_operations_of_a_token() -> None:
    dense = Model(family="llama", layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=128, vocab=1000)
    weights = 2 * (4 * 64 * 64 + 3 * 64 * 128)
    scores = 2 * 256 * 64 * 2
    found = work(dense, 256)
    norms = 2 * (2 * 2 * 64)
    assert found.blocks == pytest.approx(2 * weights + norms + scores)
    assert found.whole == pytest.approx(found.blocks + 2 * (1000 * 64 + 64))
    assert work(replace(dense, tied=True), 256).whole == pytest.approx(found.whole)
    assert work(Model(count=10**6), 256) == Work(2e6, 2e6)


def test_only_the_experts_that_a_token_is_sent_to_compute() -> None:
    shape = Model(family="llama", layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=128, vocab=1000,
                  experts=8, experts_per_token=2, options={"expert_ffn": 128})  # fmt: skip
    two = work(shape, 256).blocks
    four = work(replace(shape, experts_per_token=4), 256).blocks
    assert four - two == pytest.approx(2 * 2 * 2 * 3 * 64 * 128)


def test_speeds_of_a_gpu_by_name() -> None:
    known = speeds(None, "NVIDIA H100 80GB HBM3")
    assert (known.device, known.node_link, known.link) == ("h100", 450e9, cost.ASSUMED_LINK)
    assert known.flops == pytest.approx(0.4 * 989e12)
    assert speeds(25e9, "h100").link == 25e9
    assert speeds(25e9, "h100", several_nodes=False).node_link == 25e9
    assert speeds(None, "a machine of my own") == Speeds()
    assert speeds(None, "").words(True).startswith("400 Gb/s between nodes, 300 GB/s within a node")
    assert "between nodes" not in speeds(None, "").words(False)
