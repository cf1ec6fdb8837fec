"""Which steps of two runs are compared, what is kept of a run, and when a difference is more than noise."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from compared_runs import Run, fsdp2

from ranktop.budget.terms import Memory
from ranktop.probes.reading import StepTimes
from ranktop.tui.compare.align import align
from ranktop.tui.compare.gather import MOST_STEPS, Gathered, Life, Peaks, RankLife
from ranktop.tui.compare.spread import differ, spread
from ranktop.wire.schema import Header, Sample, Table


def life(numbers: Sequence[int], finished: int | None = None) -> Life:
    made = Life()
    rank = made.ranks[0] = RankLife(Peaks())
    rank.steps = finished if finished is not None else max(numbers, default=0)
    made.time(rank, [StepTimes(index=number, seconds=1.0) for number in numbers])
    return made


def test_the_same_steps_are_compared_without_the_warm_up() -> None:
    window = align([life(range(1, 401)), life(range(1, 301))])
    assert (window.first, window.last, window.warm_up) == (6, 300, 5)
    assert window.common == frozenset(range(6, 301))
    assert window.words() == "steps 6-300; the first 5 are warm-up"


def test_of_a_short_run_no_more_than_a_fourth_is_warm_up() -> None:
    window = align([life(range(1, 9)), life(range(1, 100))])
    assert (window.first, window.last) == (3, 8)


def test_a_run_that_was_watched_from_its_middle_has_no_earlier_step_to_compare() -> None:
    window = align([life(range(100, 200)), life(range(1, 150))])
    assert (window.first, window.last) == (100, 149)


def test_with_too_few_steps_in_common_the_range_is_compared_and_that_is_said() -> None:
    odd, even = life(range(1, 200, 2)), life(range(2, 200, 2))
    window = align([odd, even])
    assert window.common is None
    assert len(window.steps(odd)) == 96
    assert "each run's own" in window.words()
    some = align([life(range(1, 200)), life(range(1, 200, 3))])
    assert "(65 of them timed in every run)" in some.words()


def test_a_person_chooses_the_steps() -> None:
    window = align([life(range(1, 50)), life(range(1, 50))], 3, 9)
    assert (window.first, window.last) == (3, 9)
    assert "warm-up" not in window.words()


def test_runs_without_a_common_step_have_none() -> None:
    window = align([life(range(1, 9)), life(range(20, 30))])
    assert window.steps(life(range(1, 9))) == []
    assert window.words() == "no step that all of them have finished"


def test_a_step_is_counted_once_however_often_it_is_told() -> None:
    gathered = Gathered()
    for at in range(3):
        step = StepTimes(index=7, seconds=2.0)
        gathered.take(Header("sample", 0, 10, 0, at), Sample(rank=0, step=7, steps=(step,)))
    assert gathered.longest().steps[7].mean("seconds") == 2.0
    gathered.take(Header("sample", 1, 11, 0, 0), Sample(rank=1, step=7, steps=(StepTimes(index=7, seconds=4.0),)))
    assert gathered.longest().steps[7].mean("seconds") == 3.0
    assert gathered.longest().steps[7].mean("tokens") is None


def test_a_restarted_run_is_compared_in_its_longest_life() -> None:
    gathered = Gathered()
    for restart, pid, last in ((0, 10, 30), (0, 12, 5), (1, 13, 90), (2, 14, 8)):
        steps = tuple(StepTimes(index=number, seconds=1.0) for number in range(1, last + 1))
        gathered.take(Header("sample", 0, pid, restart, 0), Sample(rank=0, step=last, steps=steps))
    # A late message of a life that is over opens no other one.
    gathered.take(Header("sample", 0, 10, 0, 9), Sample(rank=0, step=31, steps=(StepTimes(index=31, seconds=1.0),)))
    assert [one.last for one in gathered.lives] == [31, 5, 90, 8]
    assert gathered.longest().last == 90


def test_two_long_runs_keep_the_same_steps() -> None:
    lives = [life(range(1, MOST_STEPS * 2 + extra)) for extra in (2, 30_000)]
    assert all(len(one.steps) <= MOST_STEPS for one in lives)
    assert len(align(lives).common or ()) > MOST_STEPS // 4


def test_memory_is_bounded_and_the_largest_peak_stays() -> None:
    peaks = Peaks(64)
    for step in range(1, 5000):
        size = 10_000 + (7_000_000 if step == 1234 else step % 97)
        peaks.add(Table(step=step, moments={"forward_end": Memory(parameters=100, activations=size, runtime=5)}))
    kept = peaks.within(1, 5000)
    assert len(kept) < 200
    most = max(kept, key=lambda peak: peak.held)
    assert (most.step, most.tensors, most.held) == (1234, 7_010_100, 7_010_105)
    assert [peak.step for peak in peaks.within(6, 20)] == [*range(6, 21)], "the first steps are not thinned"


def test_what_the_running_peak_and_the_collectives_say_is_kept() -> None:
    gathered = Gathered()
    run = Run(fsdp2(), steps=20, peak=123)
    for at, (_, rank, body) in enumerate(run.told()):
        kind = type(body).__name__.lower()
        if kind == "sample":
            assert isinstance(body, Sample)
            body = msgspec.structs.replace(body, peak_allocated=min(body.step, 9) * 1000)
        gathered.take(Header(kind, rank, 100 + rank, 0, at), body)
    rank0 = gathered.longest().ranks[0]
    assert rank0.peak_until(20) == (9000, 9)
    assert rank0.peak_until(4) == (4000, 4)
    assert rank0.peak_until(0) is None
    for step in range(10, 5000):
        rank0.rise(step, step * 1000)
    assert len(rank0.rises) <= 512
    assert rank0.peak_until(5000) == (4_999_000, 4999)
    assert rank0.calls_per_step() == pytest.approx(226.0)


def noisy(seed: int, count: int, jitter: float, together: float, usual: float = 1.0) -> list[float]:
    """Steps with jitter that lasts (``together``: correlation of neighbours), and now and then a long one."""
    luck = random.Random(seed)
    own = jitter * (1 - together**2) ** 0.5
    state, steps = luck.gauss(0, jitter), []
    for _ in range(count):
        state = together * state + luck.gauss(0, own)
        steps.append(usual * (1 + state) + (luck.random() < 0.02) * luck.random())
    return steps


@pytest.mark.parametrize(("count", "jitter", "together"), [(20, 0.02, 0.5), (60, 0.1, 0.5), (400, 0.05, 0.9)])
def test_the_same_job_run_twice_is_hardly_ever_told_to_differ(count: int, jitter: float, together: float) -> None:
    wrong = 0
    for seed in range(200):
        pair = [spread(noisy(2 * seed + at, count, jitter, together)) for at in (0, 1)]
        found = differ(pair[0], pair[1])
        assert found is not None
        wrong += found.real
    assert wrong <= 8


def test_nine_percent_is_found_beyond_the_jitter_of_a_usual_job() -> None:
    found = 0
    for seed in range(100):
        base, value = spread(noisy(seed, 60, 0.02, 0.5)), spread(noisy(seed + 500, 60, 0.02, 0.5, usual=1.09))
        away = differ(base, value)
        assert away is not None
        assert away.share == pytest.approx(0.09, abs=0.04)
        found += away.real
    assert found >= 97


def test_one_spike_moves_nothing_and_few_steps_say_nothing() -> None:
    calm = [1.0 + 0.001 * (at % 5) for at in range(100)]
    away = differ(spread(calm), spread([*calm[:-1], 900.0]))
    assert away is not None
    assert not away.real
    assert differ(spread(calm), spread(calm[:9])) is None
    assert spread([]) is None
