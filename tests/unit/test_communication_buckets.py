"""How gradients are grouped into messages, against torch's own assignment."""

from __future__ import annotations

import random

import pytest
import torch

from ranktop.budget.communication import collectives
from ranktop.budget.communication.fetches import modules_of
from ranktop.budget.communication.step import closed_at, closed_before
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Ddp, Layout, Plan

MIB = 1 << 20


@pytest.mark.parametrize("cap_mb", [1, 3, 25])
@pytest.mark.parametrize("seed", range(20))
def test_ddp_closes_buckets_as_the_reducer_does(seed: int, cap_mb: int) -> None:
    """Mixed dtypes; frozen parameters take no room; the last parameter comes first."""
    choose = random.Random(seed)
    kinds = [
        Kind((choose.randint(1, 3_000_000),), choose.choice(["float32", "bfloat16"]), trainable=choose.random() > 0.1)
        for _ in range(choose.randint(1, 40))
    ]
    tensors = [
        torch.empty(kind.shape, dtype=getattr(torch, kind.dtype), device="meta") for kind in kinds if kind.trainable
    ]
    limits = [MIB, cap_mb * MIB] if cap_mb == 25 else [cap_mb * MIB]
    buckets, _ = torch._C._distributed_c10d._compute_bucket_assignment_by_size(tensors[::-1], limits)
    plan = Plan(strategy="ddp", layout=Layout(world_size=2, replicate=2), ddp=Ddp(bucket_cap_mb=cap_mb))
    found = [one for one in collectives(Inventory.of(kinds), plan) if one.kind == "all_reduce"]
    assert sum(one.calls for one in found) == len(buckets)
    assert sum(one.bytes for one in found) == sum(tensor.nbytes for tensor in tensors)


def test_a_live_reducer_knows_its_buckets() -> None:
    inventory = Inventory.of([Kind((100,), "float32") for _ in range(3)])
    plan = Plan(strategy="ddp", layout=Layout(world_size=2, replicate=2), ddp=Ddp(bucket_bytes=(400, 800)))
    assert [one.calls for one in collectives(inventory, plan)] == [2]


@pytest.mark.parametrize(
    ("sizes", "limit", "closing", "before"),
    [
        ([], 10, 0, 0),
        ([4], 10, 1, 1),
        ([10], 10, 1, 1),
        ([5, 5, 5], 10, 2, 2),
        ([6, 6, 6], 10, 2, 3),
        ([30, 1], 10, 2, 2),
        ([1, 30], 10, 1, 2),
        ([1, 30, 1], 10, 2, 3),
    ],
)
def test_two_ways_to_close(sizes: list[int], limit: int, closing: int, before: int) -> None:
    assert closed_at(sizes, limit) == closing
    assert closed_before(sizes, limit) == before


def test_modules_by_shape() -> None:
    shapes = [(11, 7), (13, 7), (13,), (13,), (13,), (13,), (7, 13), (7,), (11, 7)]
    kinds = [Kind(shape, "float32") for shape in shapes]
    assert modules_of(kinds) == ((0,), (1, 2), (3, 4), (5,), (6, 7), (8,))
