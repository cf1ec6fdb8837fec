"""When the collectives' positions are looked at, and what becomes of a look that comes too late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ranktop.agent.looks import GROUPS, LATE, WAITING, Looks
from ranktop.probes.collectives import CollectiveProbe
from ranktop.wire.look_times import slot_at, time_of
from ranktop.wire.schema import LOOK_SECONDS, Look


class Job:
    """Groups that advance as the test says, on a clock that the test moves."""

    def __init__(self, now: float = 99.99) -> None:
        self.now = now
        self.groups: dict[str, int | None] = {"0": 5, "1": None}
        self.asked = 0
        self.asking_takes = 0.0

    def to_look_at(self, most: int) -> tuple[str, ...]:
        assert most == GROUPS
        return tuple(self.groups)

    def enqueued(self) -> tuple[int | None, ...]:
        self.asked += 1
        self.now += self.asking_takes
        return tuple(self.groups.values())

    def clock(self) -> float:
        return self.now


FIRST, SECOND, THIRD = (time_of(slot) for slot in (400, 401, 402))


def test_looks_are_taken_at_the_same_times_whatever_the_start() -> None:
    for early in (0.13, 0.05, 0.001):
        job = Job(FIRST - early)
        looks = Looks(job, job.clock)
        assert looks.due() == FIRST
        looks.look()
        assert job.asked == 0, "too early"
        for job.now in (FIRST + 0.001, FIRST + 0.05, SECOND + 0.012):
            looks.look()
        assert looks.take(["0", "1"]) == (Look(400, (5, None)), Look(401, (5, None)))
        assert looks.due() == THIRD
        assert looks.take(["0", "1"]) == ()


def test_the_slot_is_that_of_its_time() -> None:
    job = Job()
    looks = Looks(job, job.clock)
    for late in (0.0, LATE / 2, LATE):
        job.now = (looks.due() or 0.0) + late
        looks.look()
        assert looks.take(["0", "1"])[-1].slot == slot_at(job.now)


def test_times_and_slots_are_each_others_inverse_and_rise() -> None:
    for slot in (*range(2000), *range(4 * 10**8, 4 * 10**8 + 50)):
        due, following = time_of(slot), time_of(slot + 1)
        assert slot * LOOK_SECONDS <= due < (slot + 1) * LOOK_SECONDS
        assert due < following
        assert slot_at(due) == slot == slot_at((due + following) / 2)
        assert slot_at(due - 1e-7) == slot - 1


@pytest.mark.parametrize("step", [0.125, 0.25, 0.5, 0.75, 1.0, 2.0, 1.25, 0.1545, 0.4045, 0.618])
def test_looks_see_all_parts_of_a_step_that_takes_always_as_long(step: float) -> None:
    """In half a minute each tenth of the step gets its share of 120 looks, give or take."""
    seen = [int(10 * (time_of(slot) / step % 1.0)) for slot in range(1000, 1120)]
    assert all(4 <= seen.count(part) <= 24 for part in range(10)), [seen.count(part) for part in range(10)]


@pytest.mark.parametrize(("late", "asking"), [(LATE + 0.001, 0.0), (0.3, 0.0), (0.0, LATE + 0.001), (LATE, 0.001)])
def test_a_late_look_is_dropped_and_the_next_one_is_not(late: float, asking: float) -> None:
    job = Job()
    looks = Looks(job, job.clock)
    job.now, job.asking_takes = FIRST + late, asking
    looks.look()
    assert looks.take(["0", "1"]) == ()
    job.asking_takes = 0.0
    due = looks.due()
    assert due is not None
    assert due > FIRST + late
    job.now = due
    looks.look()
    assert len(looks.take(["0", "1"])) == 1


def test_the_last_looks_wait_for_a_sample() -> None:
    job = Job()
    looks = Looks(job, job.clock)
    for count in range(3 * WAITING):
        job.groups["0"] = count
        job.now = looks.due() or 0.0
        looks.look()
    taken = looks.take(["0", "1"])
    assert [look.positions[0] for look in taken] == list(range(2 * WAITING, 3 * WAITING))


def test_without_groups_nothing_is_due_and_nothing_is_asked() -> None:
    job = Job()
    job.groups = {}
    looks = Looks(job, job.clock)
    assert looks.due() is None
    job.now = FIRST
    looks.look()
    assert job.asked == 0
    job.groups = {"0": 1}
    assert looks.due() == SECOND, "a group that comes is looked at from then on"
    job.now = SECOND
    looks.look()
    job.groups = {}
    job.now = THIRD
    looks.look()
    assert looks.due() is None, "and not after its end"
    assert looks.take([]) == (), "positions of what is gone belong to no group"


def test_positions_are_in_the_order_of_the_samples_groups() -> None:
    job = Job()
    looks = Looks(job, job.clock)
    job.now = FIRST
    looks.look()
    job.groups = {"1": 3, "0": 6, "2": 0}
    job.now = SECOND
    looks.look()
    assert looks.take(["1", "0", "2"]) == (Look(400, (None, 5, None)), Look(401, (3, 6, 0)))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_a_group_of_one_rank_is_not_looked_at(group: None) -> None:
    probe = CollectiveProbe()
    assert probe.to_look_at(GROUPS) == ()
    assert CollectiveProbe().enqueued() == ()


def test_groups_are_followed_as_they_come_and_go(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # One process cannot make groups of several ranks; it can say that a group is one.
    monkeypatch.setattr("ranktop.probes.collectives._or_none", lambda call: 2 if call.__name__ == "size" else call())
    probe = CollectiveProbe()
    for _ in range(5):
        dist.new_group([0])
    names = [each.name for each in probe.read().groups]
    assert len(names) == 6
    assert list(probe.to_look_at(4)) == names
    dist.all_reduce(torch.ones(1))
    read = [each.enqueued for each in probe.read().groups]
    assert list(probe.enqueued()) == [*read[:4], None, None]
    assert read[0] == 1
    dist.destroy_process_group()
    assert probe.enqueued() == (None,) * 6, "nothing is asked of a group that is gone"
    assert probe.to_look_at(4) == ()
