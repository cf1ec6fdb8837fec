"""A simulated job's clock: ranks work and wait for each other, so that waiting is where the work is not."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from ranktop.agent.simulation.faults import Fault, parse
from ranktop.agent.simulation.job import Setup
from ranktop.agent.simulation.timing import Step, Timeline
from ranktop.agent.simulation.voice import Job, Voice
from ranktop.wire.look_times import slot_at
from ranktop.wire.schema import Sample

SLOW = Fault("straggler", rank=5, by=0.1)


def steps(setup: Setup, number: int = 20) -> tuple[Timeline, list[Step]]:
    timeline = Timeline(setup)
    while not timeline.steps or timeline.steps[-1].index < number:
        timeline.until(max(timeline.steps[-1].ended) if timeline.steps else 0.0)
    return timeline, list(timeline.steps)


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
def test_all_ranks_take_as_long_however_unlike_their_work(strategy: str) -> None:
    _, made = steps(Setup(ranks=16, strategy=strategy, faults=(SLOW,)))
    for step in made:
        taken = [end - start for start, end in zip(step.start, step.ended, strict=True)]
        assert max(taken) - min(taken) < 0.02 * min(taken)
        own = [step.own(rank) for rank in range(16)]
        assert own[5] == max(own)
        assert own[5] > 1.05 * median(own)


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
def test_the_slow_rank_waits_least(strategy: str) -> None:
    _, made = steps(Setup(ranks=16, strategy=strategy, faults=(SLOW,)))
    waited = [median(step.waited(rank) for step in made) for rank in range(16)]
    assert min(waited) == waited[5] > 0
    assert median(waited) > waited[5] + 0.05


def test_the_job_is_as_slow_as_its_slowest_rank() -> None:
    healthy = steps(Setup(ranks=16))[1]
    slowed = steps(Setup(ranks=16, faults=(SLOW,)))[1]
    longer = [b.ended[0] - b.start[0] - (a.ended[0] - a.start[0]) for a, b in zip(healthy, slowed, strict=True)]
    # It computes for 0.95 of a step; its peers' slowest was in front of it before.
    assert 0.06 < median(longer) < 0.1


def test_nobody_waits_where_there_is_only_one() -> None:
    _, made = steps(Setup(ranks=1))
    for step in made:
        assert step.waited(0) == pytest.approx(0.03, abs=0.001), "communication alone"


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
def test_positions_rise_and_the_slow_rank_lags(strategy: str) -> None:
    timeline, made = steps(Setup(ranks=8, strategy=strategy, faults=(SLOW,)))
    step = made[-2]
    behind = ahead = 0
    last = [0] * 8
    for tick in range(200):
        t = step.start[0] + tick / 200 * (step.ended[0] - step.start[0])
        at = [timeline.position(found, rank, t) for rank in range(8) if (found := timeline.step_at(rank, t))]
        enqueued = [one[0] for one in at]
        assert all(done <= begun for begun, done in at)
        assert all(new >= old for new, old in zip(enqueued, last, strict=True))
        last = enqueued
        others = median(enqueued[:5] + enqueued[6:])
        behind += enqueued[5] < others
        ahead += enqueued[5] > others
    assert behind > 10
    assert ahead <= 2
    assert last[0] <= step.index * timeline.per_step


def test_a_step_ends_with_all_its_collectives() -> None:
    for strategy in ("fsdp2", "ddp"):
        timeline, made = steps(Setup(ranks=4, strategy=strategy))
        step = made[-1]
        assert timeline.position(step, 0, step.finished) == (step.index * timeline.per_step,) * 2
        assert timeline.position(made[-2], 0, made[-2].finished)[0] == (step.index - 1) * timeline.per_step
        assert timeline.position(step, 0, step.loaded[0] - 1e-6)[0] == (step.index - 1) * timeline.per_step


def test_the_same_seed_gives_the_same_job_and_another_one_another() -> None:
    one, same, other = (steps(Setup(ranks=8, seed=seed))[1] for seed in (3, 3, 4))
    assert one == same
    assert [step.ended for step in one] != [step.ended for step in other]


def test_a_fault_leaves_the_luck_of_everyone_else_alone() -> None:
    healthy = steps(Setup(ranks=8))[1]
    for name in ("straggler", "data", "tokens", "starved", "pcie", "throttle"):
        faulty = steps(Setup(ranks=8, faults=(parse(f"{name}:rank=5"),)))[1]
        for before, after in zip(healthy, faulty, strict=True):
            assert after.own(5) > before.own(5) + 0.05
            assert [before.own(rank) for rank in range(8) if rank != 5] == [
                after.own(rank) for rank in range(8) if rank != 5
            ]


def test_a_fault_begins_with_its_step() -> None:
    healthy, faulty = (steps(Setup(ranks=4, faults=faults))[1] for faults in ((), (replace(SLOW, rank=1, start=12),)))
    for before, after in zip(healthy, faulty, strict=True):
        assert (after.own(1) > before.own(1)) == (before.index >= 12)


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
def test_all_wait_for_the_rank_that_leaves_out_a_collective(strategy: str) -> None:
    setup = Setup(ranks=8, strategy=strategy, faults=(Fault("hang", rank=2, start=4),))
    timeline = Timeline(setup)
    timeline.until(60.0)
    assert timeline.steps[-1].index == 4
    at = [timeline.position(timeline.steps[-1], rank, 60.0)[0] for rank in range(8)]
    assert at[2] < min(at[:2] + at[3:])
    assert len(set(at)) == 2


def test_the_steps_and_looks_that_are_told_have_no_gap() -> None:
    job = Job(Setup(ranks=2, seconds=0.3))
    voice = Voice(job, 1, pid=1)
    indexes: list[int] = []
    slots: list[int] = []
    for second in range(12):
        for said in voice.speak(second + 0.37, 5000.0 + second + 0.37):
            if isinstance(said, Sample):
                indexes += [step.index for step in said.steps if step.index not in indexes]
                slots += [look.slot for look in said.looks]
                assert said.step == (said.steps[-1].index if said.steps else 0)
    assert indexes == list(range(1, indexes[-1] + 1))
    assert indexes[-1] > 30
    assert slots == list(range(slots[0], slots[-1] + 1))
    assert slots[-1] == slot_at(5011.37)
