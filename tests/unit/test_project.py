"""A run under every strategy: what fits, the largest micro-batch, which ranks stand for all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranktop.budget.model import BadInput
from ranktop.budget.models.catalogue import find
from ranktop.budget.plan import Fsdp, Layout, Zero
from ranktop.budget.project import _between, collectives_of, places, project
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


def test_what_is_sent_is_what_the_busiest_stage_sends() -> None:
    """A stage in the middle sends both ways; the embeddings are small enough not to outweigh that."""
    run = replace(RUN, model=replace(RUN.model, vocab=64), data=1, pipeline=8)
    found = project(run, "pp-1f1b")
    each = [sum(one.sent for one in collectives_of(run, rank.plan)) for rank in found.ranks]
    assert len(each) == 8
    assert found.sent == max(each) == 2 * each[0] > 0
    assert sum(one.sent for one in found.collectives) == found.sent


def test_every_rank_stands_for_somebody_and_none_twice() -> None:
    layout = Layout(world_size=64, shard=4, tensor=2, pipeline=8)
    ranks = [rank for _, members in places(layout, "3d") for rank in members]
    assert sorted(ranks) == list(range(64))


def test_a_strategy_that_cannot_run_it_says_why_and_bad_numbers_are_the_users() -> None:
    assert "one node" in project(replace(RUN, world_size=16), "dp").refused
    with pytest.raises(BadInput, match="does not divide the 32 heads"):
        project(replace(RUN, world_size=10, tensor=5), "tp")


def test_another_stage_of_the_same_config_runs_its_own_optimizer() -> None:
    """Stage 1 with bf16 weights and fp32 gradients is BF16_Optimizer, with whole fp32 gradients; stage 2 is not."""
    first = replace(RUN, zero=Zero(stage=1, gradient_dtype="float32", wrapper="BF16_Optimizer"))
    second = replace(RUN, zero=Zero(stage=2, gradient_dtype="float32"))
    for strategy, whole in (("zero1", True), ("zero2", False)):
        sizes = set()
        for run in (first, second):
            rank = project(run, strategy).rank
            assert rank is not None
            sizes.add(rank.budget.at("backward_end")["gradients"].bytes)
        (size,) = sizes
        assert size is not None
        assert (size > 3 * 8_030_261_248) == whole


def test_what_a_config_reduces_in_is_what_is_sent() -> None:
    half = replace(RUN, fsdp=Fsdp(reduce_dtype="bfloat16"))
    sent = {
        name: sum(one.sent for one in project(run, "fsdp-full").collectives if one.kind == "reduce_scatter")
        for name, run in (("fp32", RUN), ("bf16", half))
    }
    assert sent["fp32"] == 2 * sent["bf16"] > 0


def test_the_loss_is_the_models_own_unless_somebody_says_otherwise() -> None:
    found = {
        (name, strategy): project(replace(RUN, model=find(name), loss="auto", sequence_length=512), strategy)
        for name in ("llama-3-8b", "bert-base") for strategy in ("ddp", "tp", "3d")
    }  # fmt: skip
    losses = {key: one.rank.plan.loss for key, one in found.items() if one.rank is not None}
    assert losses["llama-3-8b", "ddp"] == "hf"
    assert losses["llama-3-8b", "tp"] == "upcast"
    assert losses["llama-3-8b", "3d"] == "megatron"
    assert losses["bert-base", "ddp"] == "upcast"
