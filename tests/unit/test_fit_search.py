"""The search for plans that fit: against every plan of a small grid, and what it promises of each plan it lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, product

import pytest

from ranktop.budget.fit import CHECKPOINTING, Candidate, Fit, Search, fit, global_batch, speeds
from ranktop.budget.fitting.judge import Judge, Present, samples
from ranktop.budget.model import BadInput, Model, NoRule
from ranktop.budget.models.catalogue import find
from ranktop.budget.plan import Fsdp
from ranktop.budget.project import project
from ranktop.budget.run import Run
from ranktop.budget.strategies import plan_of
from ranktop.budget.terms import Amount

G = 2**30
SMALL = Model(name="small", family="llama", layers=8, hidden=512, heads=8, kv_heads=4, head_dim=64, ffn=1408,
              vocab=32000, positions=1024)  # fmt: skip
BATCH = 16
GRID = ("ddp", "zero1", "zero2", "zero2-offload", "zero3", "zero3-offload", "fsdp-full", "tp", "pp-1f1b", "3d")
EIGHT_BILLION = Run(model=find("llama-3-8b"), world_size=8, sequence_length=4096, device_memory=int(79.1 * G))


def small(memory: int = 40 * G, **changes: object) -> Run:
    run = Run(model=SMALL, world_size=4, gpus_per_node=4, sequence_length=1024, device_memory=memory)
    return replace(run, **changes)  # type: ignore[arg-type]


def layouts() -> Iterator[tuple[str, Run]]:
    """Every strategy of the grid with every size of its axes, without asking the product which those are."""
    for strategy in GRID:
        if strategy.startswith("fsdp"):
            for away in (False, True):
                yield strategy, small(fsdp=Fsdp(cpu_offload=away))
            yield from ((strategy, small(tensor=size, fsdp=Fsdp(cpu_offload=False))) for size in (2, 4))
        elif strategy == "tp":
            yield from ((strategy, small(tensor=size)) for size in (2, 4))
        elif strategy == "pp-1f1b":
            yield from ((strategy, small(pipeline=size)) for size in (2, 4))
        elif strategy == "3d":
            yield strategy, small(tensor=2, pipeline=2)
        else:
            yield strategy, small()
            if strategy in ("zero1", "zero3"):
                yield from ((strategy, small(tensor=size)) for size in (2, 4))
            if strategy == "zero1":
                yield from ((strategy, small(pipeline=size)) for size in (2, 4))


@lru_cache(maxsize=1)
def every_plan() -> tuple[Candidate, ...]:
    """All plans of the grid for the batch, judged with all their ranks by ``project``."""
    judge = Judge(small(), Present(small(), "ddp", "ddp"), BATCH, Search(small()).answer().speeds)
    found = []
    for (strategy, run), checkpointing in product(layouts(), CHECKPOINTING):
        each = BATCH // plan_of(run, strategy).layout.data
        for micro in (n for n in range(1, each + 1) if each % n == 0):
            asked = replace(run, checkpointing=checkpointing, micro_batch=micro, accumulation=each // micro)
            try:
                one = judge.judge(asked, strategy)
            except NoRule:
                continue  # a pipeline of one micro-batch
            whole = project(asked, strategy)
            assert one is not None
            assert whole.rank is not None
            assert one.total == whole.rank.total, f"{one.title}: the worst rank is among those that were judged"
            found.append(one)
    return tuple(found)


def within(memory: int) -> list[Candidate]:
    """The plans of the grid on devices of another size."""
    return [
        replace(one, projection=replace(one.projection, fits=one.total <= memory, headroom=memory - one.total))
        for one in every_plan()
    ]


def searched(memory: int, present: str = "ddp") -> Fit:
    return fit(small(memory), batch=BATCH, strategies=GRID, present=present)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.6, 1.0])
def test_the_best_plan_is_the_best_of_all(share: float) -> None:
    sizes = sorted(one.total for one in every_plan())
    memory = sizes[min(len(sizes) - 1, int(share * len(sizes)))]
    found = searched(memory)
    best = min((one for one in within(memory) if one.fits), key=lambda one: one.order)
    first = found.fitting[0]
    assert (first.title, first.run.checkpointing, first.run.micro_batch) == (
        best.title,
        best.run.checkpointing,
        best.run.micro_batch,
    )
    assert first.cost == best.cost
    assert found.tried < len(every_plan()), "without looking at all of them"


def test_every_strategy_that_fits_is_listed_with_its_best_plan() -> None:
    sizes = sorted(one.total for one in every_plan())
    memory = sizes[len(sizes) // 3]
    fitting = [one for one in within(memory) if one.fits]
    listed = {name for one in searched(memory).fitting for name in (one.title, *one.also)}
    for strategy in GRID:
        own = [one for one in fitting if one.title == strategy]
        if own and not strategy.endswith("-offload"):
            assert strategy in listed or any(title.startswith(f"{strategy} ") for title in listed)


def test_when_nothing_fits_the_nearest_is_nearest() -> None:
    least = min(one.total for one in every_plan())
    found = searched(least - 2**20)
    assert not found.fitting
    assert found.nearest is not None
    assert (found.nearest.total, found.nearest.missing) == (least, 2**20)


def test_every_listed_plan_fits_when_it_is_projected_again_and_keeps_the_batch() -> None:
    found = fit(EIGHT_BILLION, batch=48, present="ddp")
    assert len(found.fitting) > 5
    for one in found.fitting:
        again = project(one.run, one.strategy)
        assert again.fits
        assert again.headroom == one.projection.headroom
        assert again.rank is not None
        assert samples(again.rank.plan) == 48
        assert again.rank.plan.layout.world_size == 8


def test_plans_are_listed_cheapest_first() -> None:
    costs = [float(f"{one.cost:.1e}") for one in fit(EIGHT_BILLION, batch=48).fitting]
    assert costs == sorted(costs)


def test_checkpointing_and_offload_are_there_only_where_they_help() -> None:
    roomy = searched(40 * G).fitting
    assert {one.run.checkpointing for one in roomy} == {"none"}
    assert not any("offload" in one.title or "cpu" in one.title for one in roomy)
    tight = fit(replace(EIGHT_BILLION, world_size=2, device_memory=int(23.5 * G)), batch=16).fitting
    assert tight
    assert all("offload" in one.title or "cpu" in one.title for one in tight)
    assert {one.run.checkpointing for one in tight} == {"full"}


def test_a_plan_with_less_room_than_its_error_is_marked_and_a_roomier_one_stands_by() -> None:
    found = fit(replace(EIGHT_BILLION, world_size=2, device_memory=int(23.5 * G)), batch=16).fitting
    for one in found:
        assert one.tight == ((one.projection.headroom or 0) < one.margin)
    for tight in (one for one in found if one.tight):
        others = [one for one in found if one.strategy == tight.strategy and not one.tight]
        assert all(one.order > tight.order for one in others)


def test_what_runs_now_is_no_change() -> None:
    found = searched(40 * G, present="zero1")
    assert found.present is None or found.present.changes == ()
    run = small(micro_batch=2, accumulation=2)
    now = fit(run, strategies=GRID, present="ddp")
    assert now.global_batch == 16
    assert now.present is not None
    assert now.present.changes == ()
    own = next(one for one in now.fitting if one.title == "ddp")
    assert own.changes == (), "costs nothing more, so nothing need be changed"
    other = next(one for one in now.fitting if one.title == "zero1")
    assert other.changes == ("ddp → zero1",)


def test_a_present_that_does_not_fit_says_what_is_missing() -> None:
    found = fit(replace(EIGHT_BILLION, accumulation=4), present="ddp")
    assert found.present is not None
    whole = project(replace(EIGHT_BILLION, accumulation=4), "ddp")
    assert found.present.missing == -(whole.headroom or 0) > 0


def test_the_batch_of_a_run_is_that_of_its_strategy() -> None:
    run = replace(EIGHT_BILLION, micro_batch=2, accumulation=4)
    assert global_batch(run, "zero3") == 64
    assert global_batch(replace(run, tensor=2), "tp") == 32
    assert global_batch(replace(run, pipeline=4, micro_batch=1, accumulation=8), "pp-1f1b") == 16


def test_less_precision_is_the_last_resort_and_is_told() -> None:
    run = replace(EIGHT_BILLION, precision="fp32", sequence_length=8192)
    names = ("zero3",)
    roomy = fit(run, batch=16, strategies=names)
    assert {one.run.precision for one in roomy.fitting} == {"fp32"}
    assert roomy.less_precise == ""
    least = min(
        project(replace(run, checkpointing=checkpointing, accumulation=2, tensor=size), "zero3").rank.total  # type: ignore[union-attr,type-var]
        for checkpointing in CHECKPOINTING
        for size in (None, 2, 4, 8)
    )
    found = fit(replace(run, device_memory=int(least or 0) - 2 * G), batch=16, strategies=names)
    assert found.fitting
    assert found.less_precise in ("amp-bf16", "bf16-master")
    assert all(f"precision fp32 → {found.less_precise}" in one.changes for one in found.fitting)


def test_when_nothing_fits_more_ranks_and_shorter_samples_are_computed() -> None:
    run = replace(EIGHT_BILLION, world_size=1, sequence_length=8192, device_memory=int(20 * G))
    names = ("zero2", "zero3")
    found = fit(run, batch=64, strategies=names)
    assert not found.fitting
    assert found.more_ranks is not None
    ranks, _ = found.more_ranks
    assert fit(replace(run, world_size=ranks), batch=64, strategies=names).fitting
    tight = replace(run, world_size=2, device_memory=int(12.5 * G))
    near = fit(tight, batch=16, strategies=("zero3-offload",))
    assert near.nearest is not None
    assert near.shorter is not None
    assert near.shorter % 128 == 0
    assert project(replace(near.nearest.run, sequence_length=near.shorter), "zero3-offload").fits
    assert not project(replace(near.nearest.run, sequence_length=near.shorter + 128), "zero3-offload").fits


def test_another_optimizer_is_only_suggested_when_nothing_else_fits() -> None:
    run = replace(EIGHT_BILLION, world_size=1, sequence_length=1024, device_memory=int(130 * G))
    found = fit(run, batch=4, strategies=("single",))
    assert not found.fitting
    assert any("8-bit Adam" in one.words for one in found.suggestions)
    for one in found.suggestions:
        assert project(one.candidate.run, one.candidate.strategy).fits
        changed = one.candidate.run
        assert (changed.optimizer.name, changed.precision) != (run.optimizer.name, run.precision)
    assert fit(replace(run, device_memory=200 * G), batch=4, strategies=("single",)).suggestions == ()


def test_bad_questions() -> None:
    with pytest.raises(BadInput, match="--device-memory or --gpu"):
        fit(replace(EIGHT_BILLION, device_memory=None))
    with pytest.raises(BadInput, match="at least 1, not 0"):
        fit(EIGHT_BILLION, batch=0)
    with pytest.raises(BadInput, match="7 samples cannot be shared out over 8 data-parallel ranks"):
        fit(EIGHT_BILLION, batch=7, strategies=("ddp", "zero2"))


def test_without_a_shape_it_says_why_nothing_can_be_judged() -> None:
    found = fit(Run(model=Model(name="x", count=10**9), world_size=2, device_memory=80 * G))
    assert not found.fitting
    assert found.nearest is None
    assert found.reason.split(":")[0] in ("activations", "buffers")


def test_a_huge_batch_is_no_long_wait() -> None:
    found = fit(small(), batch=2**29, strategies=("ddp", "zero3"))
    assert found.fitting
    for one in found.fitting:
        assert one.run.micro_batch * one.run.accumulation * one.plan.layout.data == 2**29


def test_a_search_can_be_asked_before_it_is_done() -> None:
    search = Search(EIGHT_BILLION, batch=48, present="zero2")
    seen = [search.answer()]
    seen.extend(search.answer() for _ in search)
    assert seen[0].fitting == ()
    assert len(seen) > 50, "small pieces"
    counts = [answer.tried for answer in seen]
    assert counts == sorted(counts)
    assert max(later - earlier for earlier, later in pairwise(counts)) <= 1
    assert search.done
    assert search.answer().fitting == fit(EIGHT_BILLION, batch=48, present="zero2").fitting


def test_what_a_live_job_splits_is_no_wish() -> None:
    run = replace(EIGHT_BILLION, tensor=2, data=4, accumulation=4)
    bound = fit(run, present="tp").fitting
    free = fit(run, present="tp", free=True).fitting
    assert {one.plan.layout.tensor for one in bound} == {2}
    assert {one.plan.layout.tensor for one in free} > {1, 2}
    own = [one for one in free if one.title == "tp2"]
    assert not own or own[0].changes == ()


def test_on_one_device_nothing_is_shared_out() -> None:
    found = fit(replace(small(), world_size=1), batch=4)
    assert [one.title for one in found.fitting] == ["single"]
    assert found.fitting[0].cost == 0
    less = fit(replace(small(memory=found.fitting[0].total // 3), world_size=1), batch=4)
    assert all(one.offloads for one in less.fitting)


def test_a_job_on_cpus_is_reckoned_with_speeds_of_cpus() -> None:
    demo = Model(name="demo", family="gpt", layers=6, hidden=256, heads=8, kv_heads=8, head_dim=32, ffn=1024,
                 vocab=256, positions=128)  # fmt: skip
    run = Run(model=demo, world_size=2, micro_batch=8, sequence_length=128, precision="fp32", device_memory=12 * G,
              host=True, runtime=Amount(300 * 2**20, "measured"))  # fmt: skip
    found = fit(run, present="fsdp-full", free=True)
    assert found.fitting[0].strategy == "ddp", "the fewest bytes that do not wait for another rank"
    assert not any(one.offloads for one in found.fitting), "the device is where offloading would go"
    assert all(one.cost > 1e-3 for one in found.fitting), "nothing is as quick as on a GPU"
    words = found.speeds.words(False)
    assert "the speeds of a CPU job are not known" in words
    assert "NVMe" not in words
    assert speeds(5e9, host=True).node_link == 5e9, "a link that is given is taken"
