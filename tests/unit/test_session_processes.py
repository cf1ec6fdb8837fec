"""What the session knows of devices: their states, their detail, and whose the processes on them are."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from fake_device import CONTEXT
from fake_gpu_jobs import mig_job, stray_job
from fake_job import FakeClock, FakeJob, FakeSource, fsdp_job

from ranktop.probes.reading import AllocatorReading, DeviceDetail, DeviceIdentity, DeviceProcess, DeviceReading
from ranktop.tui.session.processes import Occupant, Stray, abroad, occupants, owners, strays
from ranktop.tui.session.source import Received
from ranktop.tui.session.state import Session, Snapshot
from ranktop.wire.schema import Body, Card, Device, Header, Job, Sample

JOB = Job(id="j", name="job", world_size=4)
GIB = 1 << 30


def message(rank: int, body: Body, *, age: float = 0.0, restart: int = 0, pid: int = 100) -> Received:
    return Received(Header(type(body).__name__.lower(), rank, pid + rank, restart, 0), body, age, 0)


def playing(job: FakeJob) -> tuple[Session, FakeSource, FakeClock]:
    clock = FakeClock()
    source = FakeSource(job, clock)
    session = Session(clock, budget_slice=0.0)
    session.feed(source.drain())
    clock.advance(3.0)
    session.feed(source.drain())
    return session, source, clock


def snapshot(job: FakeJob) -> Snapshot:
    return playing(job)[0].snapshot()


def test_device_states_that_are_trouble_are_states_of_the_rank() -> None:
    session = Session(FakeClock())
    gpu, host = DeviceIdentity(kind="cuda", uuid="GPU-1"), DeviceIdentity(kind="host")
    words = ["lost", "reset required", "no answer", "unavailable", "pending", "ok"]
    for rank, word in enumerate(words):
        session.feed([message(rank, Card(job=JOB, rank=rank, device=gpu))])
        session.feed([message(rank, Sample(rank=rank, step=3, device=DeviceReading(state=word)))])
    assert [session.ranks[rank].state() for rank in range(6)] == [
        "device lost", "device reset required", "device no answer", "device unavailable", "ok", "ok",
    ]  # fmt: skip
    # Nobody has been to the device yet, and a host has none that could be away.
    unavailable = DeviceReading(state="unavailable")
    session.feed([message(6, Sample(rank=6, step=0, device=DeviceReading(state="pending")))])
    session.feed([message(7, Card(job=JOB, rank=7, device=host)), message(7, Sample(rank=7, device=unavailable))])
    session.feed([message(8, Sample(rank=8, device=unavailable))])
    assert [session.ranks[rank].state() for rank in (6, 7, 8)] == ["starting"] * 3
    session.feed([message(0, Sample(rank=0, step=4, device=DeviceReading()))])
    assert session.ranks[0].state() == "ok", "a condition that ends, ends here too"


def test_the_device_message_is_kept_with_its_age_until_the_next_life() -> None:
    clock = FakeClock()
    session = Session(clock)
    detail = DeviceDetail(performance_state=2, ages={"performance_state": 4.0})
    allocator = AllocatorReading(allocated=1, reserved=2, backend="native")
    session.feed([message(0, Card(job=JOB, rank=0)), message(0, Sample(rank=0, step=1))])
    assert (session.snapshot().ranks[0].detail, session.snapshot().ranks[0].detail_age) == (None, None)
    session.feed([message(0, Device(rank=0, detail=detail, allocator=allocator), age=2.0)])
    clock.advance(1.0)
    view = session.snapshot().ranks[0]
    assert (view.detail, view.allocator) == (detail, allocator)
    assert view.detail_age == pytest.approx(3.0)
    session.feed([message(0, Device(rank=0, allocator=allocator))])
    assert session.snapshot().ranks[0].detail is None, "a host tells of its allocator only"
    session.feed([message(0, Card(job=JOB, rank=0, restart=1), restart=1, pid=200)])
    view = session.snapshot().ranks[0]
    assert (view.detail, view.allocator, view.detail_age) == (None, None, None)


def test_seven_extra_contexts_are_named_from_both_sides() -> None:
    shot = snapshot(stray_job())
    assert strays(shot.ranks[0], shot) == Stray((1, 2, 3, 4, 5, 6, 7), 7 * CONTEXT)
    assert abroad(shot.ranks[0], shot) == ()
    for view in shot.ranks[1:]:
        assert strays(view, shot) is None
        assert abroad(view, shot) == ((0, CONTEXT),)
    listed = occupants(shot.ranks[0], shot.owners)
    assert [one.rank for one in listed] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert {one.kind for one in listed} == {"compute"}


def test_a_healthy_job_has_none() -> None:
    for job in (fsdp_job(), fsdp_job(16), mig_job()):
        shot = snapshot(job)
        assert [(strays(view, shot), abroad(view, shot)) for view in shot.ranks] == [(None, ())] * len(shot.ranks)
        assert [[one.rank for one in occupants(view, shot.owners)] for view in shot.ranks] == [
            [rank] for rank in range(len(shot.ranks))
        ]


def test_bytes_that_the_driver_does_not_tell_make_the_sum_unknown() -> None:
    job = fsdp_job()
    job.processes[0] = (DeviceProcess(48_110, 5), DeviceProcess(48_111, None))
    shot = snapshot(job)
    assert strays(shot.ranks[0], shot) == Stray((1, 2), None)
    assert abroad(shot.ranks[1], shot) == ((0, 5),)
    assert abroad(shot.ranks[2], shot) == ((0, None),)


def test_ranks_that_share_a_device_are_no_strays_and_a_stray_there_is_told_once() -> None:
    job = fsdp_job(4)
    own = job.device
    job.device = lambda rank: own(0) if rank < 3 else own(rank)
    everybody = tuple(DeviceProcess(48_109 + rank, GIB) for rank in range(4))
    for rank in range(3):
        job.reading_changes[rank] = {"processes": everybody}
    shot = snapshot(job)
    assert [strays(view, shot) for view in shot.ranks[:3]] == [Stray((3,), GIB)] * 3
    assert abroad(shot.ranks[3], shot) == ((0, GIB),)
    assert abroad(shot.ranks[1], shot) == ()


def test_a_rank_whose_own_device_is_unknown_and_a_gpus_list_for_an_instance_accuse_nobody() -> None:
    job = stray_job()
    own = job.device
    job.device = lambda rank: replace(own(rank), uuid=None) if rank == 5 else own(rank)
    shot = snapshot(job)
    assert strays(shot.ranks[0], shot) == Stray((1, 2, 3, 4, 6, 7), 6 * CONTEXT)
    assert abroad(shot.ranks[5], shot) == ()
    # Of a MIG instance this driver lists the processes of the whole GPU.
    job = mig_job()
    job.contexts = {0: (1,)}
    assert strays(snapshot(job).ranks[0], snapshot(job)) == Stray((1,), CONTEXT)
    job.detail_changes[0] = {"of_parent": ("processes",)}
    shot = snapshot(job)
    assert (strays(shot.ranks[0], shot), abroad(shot.ranks[1], shot)) == (None, ())


def test_a_process_id_counts_on_its_own_node_only() -> None:
    job = fsdp_job(16)
    job.processes[8] = (DeviceProcess(48_109, GIB), DeviceProcess(48_118, GIB), DeviceProcess(99, 3))
    shot = snapshot(job)
    found = {one.pid: one.rank for one in occupants(shot.ranks[8], shot.owners)}
    assert found == {48_117: 8, 48_109: None, 48_118: 9, 99: None}, "rank 0 is on the other node"


def cards(job: FakeJob, changes: dict[int, dict[str, Any]]) -> Snapshot:
    """The job with other ids in its cards."""
    plain = job.card

    def card(rank: int) -> Card:
        return msgspec.structs.replace(plain(rank), **changes.get(rank, {}))

    job.card = card  # type: ignore[method-assign]
    return snapshot(job)


def test_ids_of_all_namespaces_count_and_an_id_that_two_claim_is_nobodys() -> None:
    shot = cards(
        fsdp_job(4), {0: {"pids": (9_000_000, 48_109, 17)}, 1: {"pids": ()}, 2: {"pids": (31,)}, 3: {"pids": (31,)}}
    )
    assert owners(shot.ranks) == shot.owners
    assert {shot.owners[("node1", pid)] for pid in (9_000_000, 48_109, 17)} == {0}
    assert shot.owners[("node1", 48_110)] == 1, "a card without pids still has its pid"
    assert ("node1", 31) not in shot.owners


def test_what_a_rank_has_found_to_be_its_own_goes_before_ids_of_another_namespace() -> None:
    # Two containers on one host: rank 0 is 17 within its own, and the host's 17 is rank 1 as rank 1 has found out.
    job = fsdp_job(2)
    job.reading_changes = {0: {"process_pid": 4_000_100}, 1: {"process_pid": 17}}
    job.processes[0] = (DeviceProcess(4_000_100, GIB), DeviceProcess(17, CONTEXT))
    shot = cards(job, {0: {"pids": (17,)}, 1: {"pids": (18,)}})
    assert {one.pid: one.rank for one in occupants(shot.ranks[0], shot.owners)}[17] == 1
    assert strays(shot.ranks[0], shot) == Stray((1,), CONTEXT)


def test_a_process_in_several_lists_is_told_once_and_the_largest_comes_first() -> None:
    job = fsdp_job(1)
    job.processes[0] = (DeviceProcess(50, 10),)
    job.detail_changes[0] = {
        "graphics_processes": (DeviceProcess(60, 200), DeviceProcess(50, 10), DeviceProcess(61, None)),
        "mps_processes": (DeviceProcess(70, 300),),
    }
    shot = snapshot(job)
    own, *others = occupants(shot.ranks[0], shot.owners)
    assert (own.pid, own.rank, own.kind) == (48_109, 0, "compute")
    assert others == [
        Occupant(70, 300, None, "mps"),
        Occupant(60, 200, None, "graphics"),
        Occupant(50, 10, None, "compute"),
        Occupant(61, None, None, "graphics"),
    ]


def test_owners_are_kept_from_frame_to_frame_until_a_card_changes() -> None:
    session, source, clock = playing(fsdp_job())
    first = session.snapshot().places
    clock.advance(2.0)
    session.feed(source.drain())
    assert session.snapshot().places is first
    session.feed([message(3, Card(job=JOB, rank=3, node="node1", pid=7, pids=(7,)), pid=48_109)])
    assert session.snapshot().places is not first
    assert session.snapshot().owners[("node1", 7)] == 3


def test_a_frame_of_a_large_job_costs_what_it_shows() -> None:
    session, _, _ = playing(fsdp_job(1024))
    shot = session.snapshot()
    assert len(shot.owners) == 1024
    began = time.thread_time()
    for view in shot.ranks[:50]:
        strays(view, shot), abroad(view, shot)
    assert time.thread_time() - began < 0.02, "fifty rows of 1024; a thousand would be 20 times as much"
