"""Memory that is kept after each step: a leak and its forecast, and what looks like one and is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_job import GIB, H100, MIB
from memory_lab import ALIVE, Change, Lab, ddp_plan, gpt

from ranktop.tui.session.findings.trend import theil_sen, trend
from ranktop.wire.schema import History, Point


def leak(rank: int, size: int, since: int = 1, category: str = "activations") -> Change:
    def change(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        if rank in (who, -1) and step > since:
            held[category] = held.get(category, 0) + (step - since) * size

    return change


def test_a_leak_is_found_with_its_rate_and_when_the_device_is_full() -> None:
    lab = Lab(changes=[leak(2, 4 * MIB)]).run(50)
    (found,) = lab.found("growth")
    assert (found.ranks, found.subject, found.severity) == ((2,), "activations", "warning")
    told = "rank 2 keeps 4.0 MiB more after every step (activations; 156.0 MiB since step 11)"
    assert found.sentence.startswith(told)
    left = next(one.value for one in found.evidence if one.name == "steps until the memory is full")
    sample = lab.snapshot().ranks[2].sample
    assert sample is not None
    assert sample.table is not None
    free = min((memory.free or 0) + (memory.cache or 0) for memory in sample.table.moments.values())
    assert left == free // (4 * MIB)
    assert f"its device is full in {left:,} steps" in found.sentence
    assert found.step == 11


def test_a_leak_that_fills_the_device_soon_is_critical() -> None:
    (found,) = Lab(changes=[leak(2, 250 * MIB)]).run(32).found("growth")
    assert found.severity == "critical"
    (found,) = Lab(changes=[leak(2, 64 * MIB)], seconds=0.3).run(32).found("growth")
    assert found.severity == "critical", "a few minutes"


def test_a_leak_on_all_ranks_is_one_finding() -> None:
    (found,) = Lab(changes=[leak(-1, 8 * MIB)]).run(40).found("growth")
    assert found.ranks == tuple(range(8))
    assert found.sentence.startswith("all 8 ranks keep 8.0 MiB more after every step")


@pytest.mark.parametrize("category", ["parameters", "gradients", "optimizer", "buffers"])
def test_what_grows_is_named(category: str) -> None:
    (found,) = Lab(changes=[leak(1, 8 * MIB, category=category)]).run(40).found("growth")
    assert found.subject == category


def test_too_few_steps_tell_nothing() -> None:
    assert Lab(changes=[leak(2, 4 * MIB)]).run(28).found("growth") == []


def test_what_ends_is_no_leak() -> None:
    def warming(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        held["activations"] += 50 * MIB * min(step, 20)

    assert Lab(changes=[warming]).run(50).found("growth") == []


def test_a_step_up_is_no_leak() -> None:
    def once(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        held["activations"] += 2 * GIB * (step > 25 and who == 1)

    assert Lab(changes=[once]).run(45).found("growth") == []


def test_a_saw_is_no_leak() -> None:
    def saw(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        held["activations"] += 30 * MIB * (step % 9)

    lab = Lab(changes=[saw])
    for _ in range(60):
        assert lab.run(1).found("growth") == []


@pytest.mark.parametrize("since", [20, 40, 100])
def test_a_leak_that_begins_within_the_window_is_told_with_its_own_rate_and_beginning(since: int) -> None:
    lab = Lab(changes=[leak(2, 3 * MIB, since)]).run(since)
    assert lab.found("growth") == []
    for _ in range(30):
        for found in lab.run(1).found("growth"):
            kept = 3 * (lab.step - since)
            told = f"keeps 3.0 MiB more after every step (activations; {kept}.0 MiB since step {since})"
            assert told in found.sentence
            assert found.step == since
    assert lab.found("growth")


def test_a_leak_that_is_mended_is_not_told_for_long() -> None:
    def mended(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        held["activations"] += 3 * MIB * min(step, 300) * (who == 1)

    lab = Lab(2, changes=[mended]).run(300)
    assert lab.found("growth")
    assert lab.run(45).found("growth") == []


def test_what_is_collected_for_each_epoch_is_told_in_the_first_one_only() -> None:
    def epochs(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        held["activations"] += 2 * MIB * (step % 60)

    lab = Lab(2, changes=[epochs]).run(50)
    assert lab.found("growth"), "that it will come down again can't be known"
    lab.run(12)
    for _ in range(120):
        assert lab.run(1).found("growth") == []


def test_ever_longer_sequences_are_no_leak_and_a_leak_beside_them_is() -> None:
    def tokens(rank: int, step: int) -> int:
        return 1024 + 64 * step

    def outputs(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        # The script holds the last logits: what rests follows the length.
        if moment not in ALIVE:
            held["activations"] += 256_000 * tokens(who, step)

    lab = Lab(tokens=tokens, changes=[outputs]).run(45)
    assert lab.found("growth") == []
    lab = Lab(tokens=tokens, changes=[outputs, leak(3, 200 * MIB)]).run(45)
    (found,) = lab.found("growth")
    assert found.ranks == (3,)


def test_a_growing_peak_alone_is_no_leak() -> None:
    lab = Lab(tokens=lambda rank, step: 1024 + 64 * step).run(45)
    assert lab.found("growth") == []


def test_a_cache_that_grows_is_no_leak_but_worth_knowing() -> None:
    def cache(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        held["cache"] = 300 * MIB * step * (who == 4)

    lab = Lab(changes=[cache]).run(40)
    assert lab.found("growth") == []
    (found,) = lab.found("fragmentation")
    assert (found.severity, found.subject, found.ranks) == ("info", "cache", (4,))
    assert "while its tensors did not grow" in found.sentence


def test_hosts_need_more() -> None:
    def lab(size: int) -> Lab:
        plan = replace(ddp_plan(2), host=True)
        return Lab(
            2, plan, gpt(), activations=100 * MIB, host=True, runtime=400 * MIB, changes=[leak(1, size)]
        ).run(50)  # fmt: skip

    assert lab(MIB // 4).found("growth") == [], "10 MiB in 39 steps are Python's"
    (found,) = lab(4 * MIB).found("growth")
    assert found.ranks == (1,)
    assert "its memory is full in" in found.sentence


def test_a_slow_leak_is_seen_in_the_history() -> None:
    lab = Lab(2, changes=[leak(1, MIB // 8)])
    assert lab.run(40).found("growth") == [], "5 MiB"
    points = tuple(
        Point(float(second), second, 1.0, H100 // 2, None, None, None, None, None, None,
              after=8 * GIB + second * (MIB // 8) * (rank == 1))
        for rank in (0, 1) for second in range(1000)
    )  # fmt: skip
    lab = Lab(2, first_step=1001, changes=[leak(1, MIB // 8)])
    lab.send([], [History(rank=rank, points=points[1000 * rank : 1000 * rank + 1000]) for rank in (0, 1)])
    (found,) = lab.run(20).found("growth")
    assert found.ranks == (1,)
    assert found.sentence.startswith("rank 1 keeps 128.0 KiB more after every step (activations; 12")


def test_slopes_by_hand() -> None:
    assert theil_sen([1, 2, 3, 4], [10.0, 12.0, 14.0, 100.0]) == pytest.approx(16.0, abs=15)
    assert theil_sen([1, 2, 3, 4, 5], [1.0, 2.0, 90.0, 4.0, 5.0]) == 1.0
    assert theil_sen([1, 1], [3.0, 4.0]) == 0.0
    line = [(step, 5.0 * step, float(step)) for step in range(1, 31)]
    found = trend(line, 100.0)
    assert found is not None
    assert (found.slope, found.growth, found.first, found.last) == (5.0, 145.0, 1, 30)
    assert trend(line, 200.0) is None
    assert trend(line[:5], 1.0) is None
    assert trend([(step, 100.0, 0.0) for step in range(30)], 1.0) is None
