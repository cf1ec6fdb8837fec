"""A run under every strategy: what fits, the largest micro-batch, which ranks stand for all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranktop.budget.model import BadInput
from ranktop.budget.models.catalogue import find
from ranktop.budget.plan import Layout
from ranktop.budget.project import _between, places, project
from ranktop.budget.run import STRATEGIES, Run

GIB = 2**30
RUN = Run(
    model=find("llama-3-8b"), world_size=8, sequence_length=2048, device_memory=80 * GIB, checkpointing="full",
    precision="bf16-master",
)  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("memory", [24 * GIB, 80 * GIB, 192 * GIB])
def test_the_largest_micro_batch_fits_and_one_more_does_not(strategy: str, memory: int) -> None:
    run = replace(RUN, device_memory=memory)
    most = project(run, strategy).max_micro_batch
    assert most is not None
    assert most == 0 or project(replace(run, micro_batch=most), strategy).fits
    assert project(replace(run, micro_batch=most + 1), strategy).fits is False


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp-full", "tp", "pp-1f1b"])
def test_the_largest_micro_batch_does_not_depend_on_the_one_that_was_asked_for(strategy: str) -> None:
    found = {project(replace(RUN, micro_batch=size), strategy).max_micro_batch for size in (1, 3, 8, 40)}
    assert len(found) == 1


@pytest.mark.parametrize(("low", "high", "answer"), [(0, 1, 0), (0, 9, 8), (0, 9, 3), (4, 5000, 4), (4, 5000, 1777)])
def test_halving_ends_at_the_last_that_fits(low: int, high: int, answer: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= answer

    assert _between(low, high, fits) == answer
    assert len(asked) <= 40


def test_every_rank_stands_for_somebody_and_none_twice() -> None:
    layout = Layout(world_size=64, shard=4, tensor=2, pipeline=8)
    ranks = [rank for _, members in places(layout, "3d") for rank in members]
    assert sorted(ranks) == list(range(64))


def test_a_strategy_that_cannot_run_it_says_why_and_bad_numbers_are_the_users() -> None:
    assert "one node" in project(replace(RUN, world_size=16), "dp").refused
    with pytest.raises(BadInput, match="does not divide the 32 heads"):
        project(replace(RUN, world_size=10, tensor=5), "tp")
