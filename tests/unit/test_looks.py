"""When the collectives' positions are looked at, and what becomes of a look that comes too late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ranktop.agent.looks import GROUPS, LATE, WAITING, Looks
from ranktop.probes.collectives import CollectiveProbe
from ranktop.wire.schema import LOOK_SECONDS, Look


class Job:
    """Groups that advance as the test says, on a clock that the test moves."""

    def __init__(self, now: float = 100.1) -> None:
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


def test_looks_are_taken_as_the_clock_passes_multiples_whatever_the_start() -> None:
    for start in (100.01, 100.1, 100.24):
        job = Job(start)
        looks = Looks(job, job.clock)
        assert looks.due() == 100.25
        looks.look()
        assert job.asked == 0, "too early"
        for job.now in (100.251, 100.3, 100.512):
            looks.look()
        assert looks.take(["0", "1"]) == (Look(401, (5, None)), Look(402, (5, None)))
        assert looks.due() == 100.75
        assert looks.take(["0", "1"]) == ()


def test_the_slot_is_the_rounded_time() -> None:
    job = Job()
    looks = Looks(job, job.clock)
    for late in (0.0, LATE / 2, LATE):
        job.now = (looks.due() or 0.0) + late
        looks.look()
        assert looks.take(["0", "1"])[-1].slot == round(job.now / LOOK_SECONDS)


@pytest.mark.parametrize(("late", "asking"), [(LATE + 0.001, 0.0), (0.3, 0.0), (0.0, LATE + 0.001), (LATE, 0.001)])
def test_a_late_look_is_dropped_and_the_next_one_is_not(late: float, asking: float) -> None:
    job = Job()
    looks = Looks(job, job.clock)
    job.now, job.asking_takes = 100.25 + late, asking
    looks.look()
    assert looks.take(["0", "1"]) == ()
    job.asking_takes = 0.0
    due = looks.due()
    assert due is not None
    assert due > 100.25 + late
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
    job.now = 100.25
    looks.look()
    assert job.asked == 0
    job.groups = {"0": 1}
    assert looks.due() == 100.5, "a group that comes is looked at from then on"
    job.now = 100.5
    looks.look()
    job.groups = {}
    job.now = 100.75
    looks.look()
    assert looks.due() is None, "and not after its end"
    assert looks.take([]) == (), "positions of what is gone belong to no group"


def test_positions_are_in_the_order_of_the_samples_groups() -> None:
    job = Job()
    looks = Looks(job, job.clock)
    job.now = 100.25
    looks.look()
    job.groups = {"1": 3, "0": 6, "2": 0}
    job.now = 100.5
    looks.look()
    assert looks.take(["1", "0", "2"]) == (Look(401, (None, 5, None)), Look(402, (3, 6, 0)))


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
