"""How what another node's hub tells is put among what a hub knows: sorted, once, and within its bounds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hub_talk import Rank, kinds, read, state_of_hub
from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.agent.hub_history import PointRing
from ranktop.agent.hub_merge import Merge
from ranktop.agent.hub_state import MAX_LEFT, HubState
from ranktop.wire.codec import encode_body, encode_header
from ranktop.wire.nodes import Nodes
from ranktop.wire.points import HISTORY_SECONDS
from ranktop.wire.schema import Body, Box, Card, End, Header, History, Item, Mark, Point, Sample, Stack

SPACING = 0.9


def point(t: float, step: int = 0) -> Point:
    return Point(t, step, None, None, None, None, None, None, None, None)


class Far:
    """A rank on another node, whose hub's items reach this one in whatever order the test gives them."""

    def __init__(self, here: HubState, *, shift: float = 0.0, way: int = 0) -> None:
        self.state = HubState(here.job, f"far-{way}", 0.0)
        self.state.part()
        self.logged: list[str] = []
        self.merge = Merge(here, way, lambda: f"node {way + 1} (far)", self.logged.append)
        self.shift = shift
        self.since = -1

    def give(self, items: Iterator[Item] | list[Item], now: float = 1e6) -> None:
        for item in items:
            self.merge.take(item, self.state.hub, self.shift, now)

    def stream(self, now: float = 1e6) -> None:
        assert self.state.own is not None
        self.give(self.state.own.after(self.since, 10**9), now)
        self.since = self.state.own.last

    def snapshot(self, now: float = 1e6) -> None:
        self.give(self.state.snapshot(own=True), now)


def lasting(points: st.SearchStrategy[list[float]]) -> st.SearchStrategy[list[float]]:
    return points.map(sorted)


times = st.lists(st.floats(0, 300, allow_nan=False), max_size=60)


@given(st.lists(lasting(times), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_merged_histories_are_sorted_and_tell_of_no_second_twice(parts: list[list[float]]) -> None:
    ring = PointRing(1)
    told: list[float] = []
    for part in parts:
        missing = ring.merge([point(t) for t in part])
        told += [p.t for p in missing]
        held = [p.t for p in ring.points(400)]
        assert all(later - earlier >= SPACING for earlier, later in pairwise(held))
        assert held == sorted(told)
        assert all(min(abs(t - h) for h in held) < SPACING for t in part), "no second is left out"


@given(lasting(times), lasting(times), st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_points_may_go_on_after_a_merge(before: list[float], late: list[float], more: int) -> None:
    ring = PointRing(1)
    for t in before:
        ring.add(point(t))
    ring.merge([point(t) for t in late])
    for t in range(more):
        ring.add(point(301.0 + t))
    held = [p.t for p in ring.points(1000)]
    assert held[len(held) - more :] == [301.0 + t for t in range(more)]
    assert all(later - earlier >= SPACING for earlier, later in pairwise(held))


def test_a_full_ring_keeps_the_newest_of_both() -> None:
    ring, short = PointRing(1), int(HISTORY_SECONDS)
    for t in range(short + 500):
        if not 600 <= t < 700:
            ring.add(point(float(t), t))
    missing = ring.merge([point(t + 0.01, t) for t in range(short + 400)])
    held = ring.points(short + 500.0)
    assert [p.step for p in held] == list(range(held[0].step, short + 500))
    assert held[0].step >= 500 - 250
    assert {p.step for p in missing} >= set(range(600, 700))
    assert len(ring) == ring._capacity


@pytest.mark.parametrize("shift", [0.0, 12345.0, -77.5])
def test_times_are_those_of_this_hubs_clock(shift: float) -> None:
    here = state_of_hub()
    far = Far(here, shift=shift)
    rank = Rank(far.state, 2)
    rank.card(t=100.0)
    for t in range(5):
        rank.sample(step=t, t=100.0 + t)
    far.snapshot()
    items = list(here.snapshot())
    assert kinds(items) == ["card 2", "history 2", *["sample 2"] * 5]
    assert [item.t - shift for item in items] == [100, 104, 100, 101, 102, 103, 104]
    _, history = read(items[1])
    assert isinstance(history, History)
    assert [p.t - shift for p in history.points] == [100, 101, 102, 103, 104]


def test_nothing_is_told_to_have_come_later_than_now() -> None:
    here = state_of_hub()
    far = Far(here, shift=50.0)
    Rank(far.state, 2).sample(step=1, t=100.0)
    far.stream(now=120.0)
    assert [item.t for item in here.stream.after(-1, 10**9)] == [120.0]
    far.give([Item(9, 1.0, encode_header(Header("history", 2, 100, 0, 0)), history(2, [60.0, 90.0]))], now=120.0)
    assert [p.t for p in here.ranks[2].history.points(200.0)] == [110.0, 120.0]


def history(rank: int, ts: list[float]) -> bytes:
    return encode_body(History(rank=rank, points=tuple(point(t) for t in ts)))


def test_a_snapshot_after_the_stream_repeats_nothing() -> None:
    here = state_of_hub()
    far = Far(here)
    rank = Rank(far.state, 2)
    rank.card()
    rank.device(1.0)
    for t in range(10):
        rank.sample(step=t, t=float(t))
    rank.say(Stack(rank=2, step=9, waited=30.0), t=10.0)
    rank.say(Box(rank=2, error="OutOfMemoryError"), t=10.0)
    rank.end("exception", t=11.0)
    far.stream()
    whole, last = kinds(list(here.snapshot())), here.stream.last
    assert whole == kinds(list(far.state.snapshot()))
    for _ in range(3):
        far.snapshot()
    assert here.stream.last == last
    assert kinds(list(here.snapshot())) == whole


def test_a_snapshot_that_was_cut_off_is_completed_by_the_next() -> None:
    here = state_of_hub()
    far = Far(here)
    rank = Rank(far.state, 2)
    rank.card()
    for t in range(10):
        rank.sample(step=t, t=float(t))
    rank.device(1.0, t=10.0)
    items = list(far.state.snapshot(own=True))
    assert kinds(items)[:4] == ["card 2", "history 2", "device 2", "sample 2"]
    far.give(items[:4])
    far.snapshot()
    steps = [body.step for _, body in map(read, here.stream.after(-1, 10**9)) if isinstance(body, Sample)]
    assert steps == list(range(10))


def test_former_lives_are_told_in_their_order() -> None:
    here = state_of_hub()
    far = Far(here)
    first = Rank(far.state, 2, pid=100)
    first.card()
    for t in range(5):
        first.sample(step=t, t=float(t))
    first.say(Box(rank=2, error="OutOfMemoryError"), t=5.0)
    first.end("exception", t=5.0)
    second = Rank(far.state, 2, pid=200, restart=1)
    second.card(t=8.0)
    for t in range(5):
        second.sample(step=t, t=8.0 + t)
    far.snapshot()
    assert kinds(list(here.snapshot())) == kinds(list(far.state.snapshot()))
    assert [p.t for p in here.ranks[2].history.points(100.0)] == [0, 1, 2, 3, 4, 8, 9, 10, 11, 12]
    told = kinds(here.stream.after(-1, 10**9))
    assert told.count("mark 2") >= 1, "viewers that follow are told of the new life"
    far.snapshot()
    assert kinds(here.stream.after(-1, 10**9)) == told


def test_two_nodes_may_have_the_same_process_ids() -> None:
    here = state_of_hub()
    Rank(here, 0, pid=7).card()
    far, other = Far(here, way=0), Far(here, way=1)
    for node, number in ((far, 2), (other, 3)):
        Rank(node.state, number, pid=7).card()
        node.stream()
    here.end_process(1.0, 7, "signal", 9, "SIGKILL")
    assert [here.ranks[number].end is None for number in (0, 2, 3)] == [False, True, True]
    far.state.end_process(2.0, 7, "exit", 0, "exit code 0")
    far.stream()
    assert [here.ranks[number].end is None for number in (0, 2, 3)] == [False, False, True]


def test_cards_are_of_this_job_and_so_they_stay_when_it_is_renamed() -> None:
    here = HubState(state_of_hub().job, "hub-1", 0.0)
    here.part()
    Rank(here, 0).card()
    far = Far(here)
    far.state.rename("far-away")
    far.give([Item(0, 0.0, encode_header(Header("card", 2, 5, 0, 0)), encode_body(Card(job=far.state.job, rank=2)))])

    def ids() -> list[str]:
        return [body.job.id for _, body in map(read, here.snapshot()) if isinstance(body, Card)]

    assert ids() == ["j1", "j1"]
    here.rename("first")
    assert ids() == ["first", "first"]
    Rank(here, 1, pid=9).say(Card(job=state_of_hub().job, rank=1, pid=9), 1.0)
    assert here.job.id == "first"
    assert ids() == ["first"] * 3


@pytest.mark.parametrize(
    ("kind", "rank", "body"),
    [
        ("card", 70000, Card(job=state_of_hub().job, rank=70000)),
        ("history", -1, History(rank=-1)),
        ("history", 70000, History(rank=70000)),
        ("box", 1, Box(rank=1, error="x" * (MAX_LEFT + 1))),
        ("doors", 0, Nodes(here=0)),
        ("mark", 70000, Mark(what="life")),
        ("end", 1, Sample(rank=1)),
    ],
)
def test_what_no_hub_would_say_is_counted_and_changes_nothing(kind: str, rank: int, body: Body) -> None:
    here = state_of_hub()
    far = Far(here)
    far.give([Item(0, 0.0, encode_header(Header(kind, rank, 5, 0, 0)), encode_body(body))])
    assert here.refused == 1
    assert not here.ranks
    assert here.stream.last == -1


def test_what_a_hub_says_of_nodes_is_not_passed_on() -> None:
    here = state_of_hub()
    far = Far(here)
    far.state.tell_nodes(1.0, Nodes(here=1))
    far.give(list(far.state.snapshot()))
    assert here.stream.last == -1
    assert here.refused == 0


def test_marks_of_another_hub_say_whose_they_are_and_are_told_once() -> None:
    here = state_of_hub()
    here.part()
    far = Far(here)
    far.state.mark(1.0, "hub-replaced", "history\x1b[31m starts anew here")
    far.stream()
    far.snapshot()
    marks = [body for _, body in map(read, here.snapshot()) if isinstance(body, Mark)]
    assert marks == [Mark(what="hub-replaced", detail="node 1 (far): history starts anew here")]
    assert list(here.snapshot(own=True)) == []


def test_the_ends_of_another_nodes_ranks_are_its_own_hubs_to_tell() -> None:
    here = state_of_hub()
    far = Far(here)
    rank = Rank(far.state, 2)
    rank.card()
    rank.sample(step=1)
    far.stream()
    assert here.silent(100.0) == []
    far.state.note_process(50.0, 2, "stopped")
    far.stream()
    far.snapshot()
    assert kinds(here.stream.after(-1, 10**9)).count("mark 2") == 1
    rank.sample(step=2, t=60.0)
    far.stream()
    assert here.ranks[2].process_word == ""
    ends = [body for _, body in map(read, here.snapshot()) if isinstance(body, End)]
    assert ends == []
