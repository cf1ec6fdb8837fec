from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise

import pytest
from hub_talk import JOB, Rank, kinds, read, state_of_hub
from msgspec.structs import replace

from ranktop.agent.hub_history import PointRing
from ranktop.agent.hub_presence import GRACE, SILENCE, Presence
from ranktop.agent.hub_state import Stream
from ranktop.agent.hub_viewers import FORGET_AFTER, MAX_VIEWERS, MAX_WAIT, Viewers
from ranktop.budget.terms import Memory
from ranktop.probes.reading import DeviceReading, StepTimes
from ranktop.wire.codec import (
    BATCH_BYTES,
    MAX_BATCH,
    BadMessage,
    WireError,
    encode_batch,
    encode_body,
    encode_header,
)
from ranktop.wire.points import point_of
from ranktop.wire.schema import (
    Ask,
    Batch,
    Body,
    Card,
    Device,
    End,
    Header,
    History,
    Job,
    Mark,
    Point,
    Sample,
    Table,
)


class Viewer:
    """A viewer that asks as the receiver does, and checks what every answer must hold."""

    def __init__(self, viewers: Viewers, name: bytes = b"v") -> None:
        self.viewers, self.name, self.hub, self.since = viewers, name, "", -1

    def ask(self, now: float, wait: float = 5.0) -> Batch | None:
        self.viewers.ask(self.name, Ask(hub=self.hub, since=self.since, wait=wait), now)
        return self.answer(now)

    def answer(self, now: float) -> Batch | None:
        mine = [batch for name, batch in self.viewers.answers(now) if name == self.name]
        assert len(mine) <= 1
        if not mine:
            return None
        self.hub, self.since = mine[0].hub, mine[0].last
        assert len(encode_batch(mine[0])) <= MAX_BATCH
        return mine[0]

    def must(self, now: float) -> Batch:
        batch = self.ask(now)
        assert batch is not None
        return batch


def test_stream_numbers_rise_by_one_and_it_is_bounded() -> None:
    stream = Stream(max_bytes=10_000, max_items=20)
    for i in range(100):
        assert stream.add(float(i), b"h", b"b").number == i
    assert (stream.first, stream.last) == (80, 99)
    for _ in range(30):
        stream.add(0.0, b"h", b"x" * 1000)
    assert stream.held_bytes <= 10_000
    assert [item.number for item in stream.after(0, 10**9)] == list(range(stream.first, stream.last + 1))
    assert [item.number for item in stream.after(127, 10**9)] == [128, 129]
    assert [item.number for item in stream.after(126, 1)] == [127]
    assert stream.after(129, 10**9) == []


def test_snapshot_has_marks_then_card_history_sample_end_of_each_rank() -> None:
    state = state_of_hub()
    one, zero = Rank(state, 1), Rank(state, 0, pid=99)
    for rank in (one, zero):
        rank.card()
        for t in range(5):
            rank.sample(step=t, t=float(t))
    one.end("exit", t=6.0)
    state.mark(7.0, "gap", "why")
    items = list(state.snapshot())
    assert kinds(items) == [
        "mark -1",
        *("card 0", "history 0", *["sample 0"] * 5),
        *("card 1", "history 1", *["sample 1"] * 5, "end 1"),
    ]
    header, history = read(items[2])
    assert (header.pid, header.restart) == (99, 0)
    assert isinstance(history, History)
    assert [(point.t, point.step) for point in history.points] == [(float(t), t) for t in range(5)]
    assert items[2].t == history.points[-1].t  # the age of an item is the age of its newest point


def test_the_newest_device_message_of_each_rank_is_kept_and_costs_no_history() -> None:
    state = state_of_hub()
    one, zero = Rank(state, 1), Rank(state, 0, pid=99)
    zero.card()
    for energy in (1.0, 2.0):
        zero.device(energy, t=energy)
    zero.sample(step=3, t=5.0)
    zero.device(3.0, t=6.0)
    one.device(9.0, t=7.0)
    items = list(state.snapshot())
    assert kinds(items) == ["card 0", "history 0", "device 0", "sample 0", "device 1"]
    header, body = read(items[2])
    assert isinstance(body, Device)
    assert (header.seq, body.detail.energy, items[2].t) == (4, 3.0, 6.0)
    assert len(state.ranks[0].history.points(9.0)) == 1
    assert kinds(state.stream.after(3, 10**9)) == ["device 0", "device 1"], "viewers that follow get each"
    again = Rank(state, 0, pid=98, restart=1)
    again.card(t=8.0)
    assert "device 0" not in kinds(list(state.snapshot())), "another life has another device"


def test_snapshot_does_not_see_what_comes_after_it() -> None:
    state = state_of_hub()
    rank = Rank(state)
    rank.card()
    rank.sample(step=1, t=1.0)
    snapshot = state.snapshot()
    rank.sample(step=2, t=2.5)
    rank.end("exit", t=3.0)
    messages = [body for _, body in map(read, snapshot)]
    assert [type(body) for body in messages] == [Card, History, Sample]
    assert isinstance(messages[1], History)
    assert isinstance(messages[2], Sample)
    assert len(messages[1].points) == 1
    assert messages[2].step == 1


def test_first_account_of_an_end_stays() -> None:
    state = state_of_hub()
    rank = Rank(state)
    rank.card()
    rank.end("exception")
    state.end_process(1.0, rank.pid, "signal", 9, "SIGKILL")
    rank.end("exit")
    ends = [body for _, body in map(read, state.stream.after(-1, 10**9)) if isinstance(body, End)]
    assert [end.how for end in ends] == ["exception"]


def test_end_of_a_process_is_told_for_its_present_life_only() -> None:
    state = state_of_hub()
    Rank(state, 0, pid=100).card()
    Rank(state, 1, pid=101).card()
    Rank(state, 0, pid=200, restart=1).card()
    state.end_process(1.0, 100, "signal", 9, "SIGKILL")
    assert state.ranks[0].end is None
    state.end_process(2.0, 101, "signal", 9, "SIGKILL")
    item = state.ranks[1].end
    assert item is not None
    header, body = read(item)
    assert (header.rank, header.pid, header.restart, header.seq) == (1, 101, 0, 1)
    assert body == End(rank=1, how="signal", code=9, detail="SIGKILL")


def test_a_job_is_as_large_as_its_ranks_say_until_a_restart_makes_it_smaller() -> None:
    state = state_of_hub()

    def card(rank: int, world_size: int, restart: int = 0) -> int:
        job = replace(state.job, world_size=world_size)
        Rank(state, rank, pid=100 + restart, restart=restart).say(Card(job=job, rank=rank, restart=restart))
        return state.job.world_size

    # A script that starts its peers itself begins as the only rank.
    assert [card(1, 8), card(0, 1)] == [8, 8]
    assert [card(0, 6, restart=1), card(1, 6, restart=1)] == [6, 6]


def test_new_life_clears_the_end_and_keeps_the_history() -> None:
    state = state_of_hub()
    old = Rank(state, 0, pid=100)
    old.card()
    old.sample(step=5, t=1.0)
    old.end("exception", t=2.0)
    new = Rank(state, 0, pid=200, restart=1)
    new.card(t=3.0)
    former = ["mark 0", "end 0", "mark 0"]
    assert kinds(list(state.snapshot())) == [*former, "card 0", "history 0"]
    assert not state.wants_card(new.sample(step=0, t=4.0))
    assert kinds(list(state.snapshot())) == [*former, "card 0", "history 0", "sample 0"]
    # What the old life still had under way changes nothing.
    old.sample(step=6, t=5.0)
    old.end("exit", t=5.0)
    assert state.ranks[0].end is None
    assert state.ranks[0].pid == 200


def test_new_process_of_the_same_restart_is_a_new_life_too() -> None:
    state = state_of_hub()
    old, new = Rank(state, 0, pid=100), Rank(state, 0, pid=200)
    old.card()
    old.end("exit")
    new.card()
    assert (state.ranks[0].pid, state.ranks[0].end) == (200, None)
    old.sample(step=6)
    assert (state.ranks[0].pid, len(state.ranks[0].samples)) == (200, 0)


def test_card_is_wanted_until_it_came() -> None:
    state = state_of_hub()
    rank = Rank(state)
    assert state.wants_card(rank.sample())
    assert not state.wants_card(rank.card())
    assert state.wants_card(Rank(state, pid=101).sample())


@pytest.mark.parametrize("absurd", [2**64 - 1, 2**63, -(2**63), 2**53 + 1])
def test_absurd_values_of_one_rank_do_not_spoil_the_snapshot(absurd: int) -> None:
    state = state_of_hub()
    memory = Memory(**dict.fromkeys(Memory.__dataclass_fields__, absurd))
    sample = Sample(
        rank=0,
        step=absurd,
        now=memory,
        table=Table(step=absurd, moments={"m": memory}),
        device=DeviceReading(used=absurd, utilization=absurd, power=1e308, temperature=absurd),
        steps=(StepTimes(absurd, -1e308),),
    )
    Rank(state).say(sample)
    state.end_process(1.0, 100, "signal", 9, "SIGKILL")
    assert kinds(list(state.snapshot())) == ["history 0", "sample 0", "end 0"]


@pytest.mark.parametrize(
    "header",
    [
        Header("sample", 0, 2**40, 0, 0),
        Header("sample", 0, -1, 0, 0),
        Header("sample", 0, 1, 2**63, 0),
        Header("sample", 0, 1, 0, 2**64 - 1),
        Header("sample", 0, 1, 0, -1),
    ],
)
def test_impossible_numbers_in_a_header_are_refused(header: Header) -> None:
    state = state_of_hub()
    with pytest.raises(BadMessage):
        state.accept(0.0, encode_header(header), encode_body(Sample(rank=0)))
    assert not state.ranks


@pytest.mark.parametrize(
    ("kind", "rank", "body"),
    [
        ("mark", -1, Mark(what="hub-replaced")),
        ("history", 0, History(rank=0)),
        ("sample", -1, Sample(rank=-1)),
        ("sample", 10**9, Sample(rank=10**9)),
        ("card", 0, Card(job=Job(id="other", name="x", world_size=1), rank=0)),
        ("card", 0, Card(job=JOB, rank=1)),
        ("end", 0, Sample(rank=0)),
    ],
)
def test_messages_that_no_agent_may_send_change_nothing(kind: str, rank: int, body: Body) -> None:
    state = state_of_hub()
    with pytest.raises(BadMessage):
        state.accept(1.0, encode_header(Header(kind, rank, 1, 0, 0)), encode_body(body))
    assert not state.ranks
    assert state.stream.last == -1


def test_question_is_held_until_something_comes_or_its_wait_is_over() -> None:
    state = state_of_hub()
    viewers = Viewers(state)
    rank, viewer = Rank(state), Viewer(viewers)
    rank.card()
    first = viewer.must(1.0)
    assert first.snapshot
    assert first.last == 0
    assert viewer.ask(2.0) is None
    assert viewers.deadline() == 7.0
    assert viewer.answer(6.9) is None
    empty = viewer.answer(7.0)
    assert empty is not None
    assert (empty.items, empty.snapshot, empty.last) == ((), False, 0)
    assert viewer.ask(8.0) is None
    rank.sample(t=8.5)
    news = viewer.answer(8.5)
    assert news is not None
    assert kinds(news.items) == ["sample 0"]
    assert (news.last, news.now, news.snapshot) == (1, 8.5, False)
    assert viewer.answer(9.0) is None  # one batch for one question
    assert len(viewers) == 0


@pytest.mark.parametrize("wait", [1e308, -5.0])
def test_a_viewer_cannot_make_the_hub_wait_for_long(wait: float) -> None:
    state = state_of_hub()
    viewers = Viewers(state)
    viewer = Viewer(viewers)
    viewer.must(0.0)
    at_once = viewer.ask(1.0, wait=wait)
    late = viewer.answer(1.0 + MAX_WAIT)
    assert (at_once is None) == (wait > 0)
    assert (late is None) == (wait < 0)


def test_long_snapshot_comes_in_pieces_and_the_stream_goes_on_after_it() -> None:
    state = state_of_hub()
    viewers = Viewers(state)
    ranks = [Rank(state, n, pid=n + 1) for n in range(40)]
    for rank in ranks:
        rank.card()
        rank.sample(padding=100_000)
    viewer = Viewer(viewers)
    batches = [viewer.must(1.0)]
    ranks[0].sample(step=1)
    while viewer.since < 0:
        batches.append(viewer.must(1.0))
    assert len(batches) >= 4
    assert [batch.snapshot for batch in batches] == [True] + [False] * (len(batches) - 1)
    assert all(len(encode_batch(batch)) < BATCH_BYTES * 1.2 for batch in batches)
    told = [item for batch in batches for item in batch.items]
    assert kinds(told) == [f"{kind} {n}" for n in range(40) for kind in ("card", "history", "sample")]
    assert kinds(viewer.must(1.0).items) == ["sample 0"]


def test_hub_without_anything_to_say_holds_the_second_question() -> None:
    state = state_of_hub()
    viewer = Viewer(Viewers(state))
    assert viewer.must(0.0).items == ()
    assert viewer.ask(1.0) is None
    Rank(state).card()
    batch = viewer.answer(2.0)
    assert batch is not None
    assert not batch.snapshot
    assert kinds(batch.items) == ["card 0"]


def test_item_larger_than_a_batch_travels_alone() -> None:
    state = state_of_hub()
    viewer = Viewer(Viewers(state))
    rank = Rank(state)
    rank.card()
    viewer.must(0.0)
    rank.sample(padding=4_000_000)
    rank.sample(step=1)
    assert [len(viewer.must(0.0).items) for _ in range(2)] == [1, 1]


def test_unfinished_snapshot_of_a_viewer_that_vanished_is_forgotten() -> None:
    state = state_of_hub()
    viewers = Viewers(state)
    for n in range(20):
        Rank(state, n, pid=n + 1).sample(padding=100_000)
    Viewer(viewers).must(0.0)
    assert len(viewers) == 1
    viewers.answers(FORGET_AFTER - 1)
    assert len(viewers) == 1
    viewers.answers(FORGET_AFTER + 1)
    assert len(viewers) == 0


def test_many_viewers_that_never_ask_again_are_bounded() -> None:
    state = state_of_hub()
    viewers = Viewers(state)
    hub = Viewer(viewers, b"first").must(0.0).hub
    for n in range(MAX_VIEWERS + 50):
        viewers.ask(str(n).encode(), Ask(hub=hub, since=-1, wait=30), n / 1000)
    assert viewers.answers(1.0) == []
    assert len(viewers) <= MAX_VIEWERS


def test_viewer_resumes_where_it_was() -> None:
    state = state_of_hub()
    viewers = Viewers(state)
    rank = Rank(state)
    rank.card()
    viewer = Viewer(viewers)
    viewer.must(0.0)
    for step in range(500):
        rank.sample(step=step, t=float(step))
    again = Viewer(viewers, b"another connection")
    again.hub, again.since = viewer.hub, viewer.since
    batch = again.must(600.0)
    assert not batch.snapshot
    assert batch.lost == 0
    assert [item.number for item in batch.items] == list(range(1, 501))


def test_viewer_that_was_away_too_long_gets_a_snapshot_and_the_count_of_what_it_missed() -> None:
    state = state_of_hub()
    state.stream = Stream(max_items=10)
    viewers = Viewers(state)
    rank = Rank(state)
    rank.card()
    viewer = Viewer(viewers)
    assert viewer.must(0.0).last == 0
    for step in range(30):
        rank.sample(step=step, t=float(step))
    batch = viewer.must(31.0)
    assert batch.snapshot
    assert batch.lost == 20  # 1 ... 20 are gone, 21 ... 30 are held
    assert kinds(batch.items) == ["card 0", "history 0", *["sample 0"] * 30]
    rank.sample(step=30, t=32.0)
    assert not viewer.must(32.0).snapshot


@pytest.mark.parametrize(("hub", "since"), [("", 3), ("other", 0), ("hub-1", 10**12), ("hub-1", -7), ("other", -1)])
def test_question_about_another_hub_or_an_impossible_place_gets_a_snapshot(hub: str, since: int) -> None:
    state = state_of_hub()
    Rank(state).card()
    viewers = Viewers(state)
    viewers.ask(b"v", Ask(hub=hub, since=since), 0.0)
    ((_, batch),) = viewers.answers(0.0)
    assert batch.snapshot
    assert batch.lost == 0
    assert kinds(batch.items) == ["card 0"]


def point(t: float, **known: int) -> Point:
    values = dict.fromkeys(Point.__struct_fields__) | {"t": t, "step": 1} | known
    return Point(**values)  # type: ignore[arg-type]


def test_history_holds_half_an_hour_a_point_a_second_and_unknown_stays_unknown() -> None:
    ring = PointRing(ranks=8)
    for tick in range(4 * 3600):  # an hour at four samples a second
        ring.add(point(tick / 4, used=2**52 + tick, utilization=0))
    points = ring.points(3600.0)
    assert len(points) == 1800
    assert points[0].t == 1800.0
    assert points[-1].t == 3599.0
    assert all(late.t - early.t == 1.0 for early, late in pairwise(points))
    assert points[-1].used == 2**52 + 3599 * 4
    assert points[-1].utilization == 0
    assert points[-1].power is None
    assert points[-1].states is None


def test_history_of_a_large_world_is_thinner_and_of_the_same_length() -> None:
    ring = PointRing(ranks=2560)
    for tick in range(3600):
        ring.add(point(float(tick)))
    points = ring.points(3600.0)
    assert len(points) <= 180
    assert points[0].t <= 1815.0


def test_point_takes_states_and_activations_from_the_peak_moment() -> None:
    sample = Sample(
        rank=0,
        step=9,
        now=Memory(parameters=10, gradients=1, cache=4, free=60, total=100),
        table=Table(
            step=9,
            moments={
                "step_start": Memory(parameters=10, optimizer=20, gradients=0, activations=1),
                "backward_start": Memory(parameters=10, optimizer=20, gradients=0, activations=50),
                "step_end": Memory(parameters=10, optimizer=20, gradients=10, activations=0),
            },
        ),
        device=DeviceReading(used=45, utilization=0, power=99.5, temperature=None),
        steps=(StepTimes(8, 0.5), StepTimes(9, 0.25)),
    )
    assert point_of(sample, 3.0) == Point(3.0, 9, 0.25, 40, 30, 50, 15, 0, 99.5, None, after=40)
    assert point_of(Sample(rank=0), 1.0) == Point(1.0, 0, None, None, None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("moments", "after"),
    [
        ({"step_start": Memory(parameters=10, activations=1, cache=7), "backward_end": Memory(parameters=99)}, 11),
        ({"step_start": Memory(parameters=10), "step_end": Memory(parameters=10, buffers=2, free=5, total=17)}, 12),
        ({"step_end": Memory(parameters=0, gradients=0)}, 0),
        ({"step_end": Memory(cache=7, total=17)}, None),
        ({"backward_end": Memory(parameters=10)}, None),
        ({}, None),
    ],
)
def test_point_takes_what_a_step_left_from_its_end_or_the_start_of_one(
    moments: dict[str, Memory], after: int | None
) -> None:
    assert point_of(Sample(rank=0, table=Table(step=9, moments=moments)), 1.0).after == after


def test_history_keeps_what_a_step_left() -> None:
    ring = PointRing(ranks=8)
    ring.add(point(0.0, after=2**52 + 1))
    ring.add(point(1.0))
    assert [kept.after for kept in ring.points(1.0)] == [2**52 + 1, None]


def test_agent_whose_process_cannot_be_seen_ends_by_silence(reaped: Callable[[], int]) -> None:
    presence = Presence()
    missing = reaped()
    presence.follow(Header("sample", 0, missing, 0, 0), 0.0)
    presence.follow(Header("sample", 0, missing, 0, 1), 5.0)
    assert not presence.alone
    assert presence.collect(5.0 + SILENCE, False) == []
    ((_, gone),) = presence.collect(5.1 + SILENCE, False)
    assert (gone.pid, gone.how) == (missing, "vanished")
    assert presence.alone
    presence.follow(Header("sample", 0, missing, 0, 2), 30.0)
    presence.follow(Header("end", 0, missing, 0, 3), 31.0)
    assert presence.alone
    assert presence.collect(100.0, False) == []
    presence.close()


def test_end_is_recorded_a_moment_after_the_process() -> None:
    presence = Presence()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    presence.follow(Header("sample", 0, pid, 0, 0), 0.0)  # a zombie until it is waited for
    os.waitpid(pid, 0)
    assert presence.collect(1.0, True) == []
    assert presence.deadline() == 1.0 + GRACE
    recorded = presence.collect(1.0 + GRACE, False)
    assert [(seen, gone.pid) for seen, gone in recorded] == [(1.0, pid)], "with the time at which it went"
    presence.close()


@pytest.fixture
def reaped() -> Callable[[], int]:
    def make() -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return pid

    return make


def test_refusals_name_their_reason_in_one_line() -> None:
    state = state_of_hub()
    with pytest.raises(WireError) as caught:
        state.accept(0.0, b"\x00\x01", b"")
    assert str(caught.value) == "not a ranktop message"
