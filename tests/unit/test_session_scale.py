"""What keeps a thousand ranks cheap changes nothing that is told of them; and it stays cheap, counted, not timed."""

from __future__ import annotations

import dataclasses
import gc
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from bench.stream import Stream, receiver, taken
from fake_job import GIB
from hypothesis import given
from hypothesis import strategies as st

from ranktop.budget.terms import CATEGORIES, MOMENTS, Amount, Budget, Memory
from ranktop.tui.session import expected as module
from ranktop.tui.session.expected import bounds, difference
from ranktop.tui.session.looks import Looks
from ranktop.tui.session.rank import RankState
from ranktop.tui.session.rings import FULL, Ring, ring_for
from ranktop.tui.session.state import Session, Snapshot
from ranktop.wire.schema import Look, Point


class Following:
    """A session that follows a stream of simulated ranks, a second at a time."""

    def __init__(self, ranks: int, *, keep_views: bool = True) -> None:
        self.stream = Stream(ranks)
        self.source = receiver(self.stream.clock)
        self.session = Session(self.stream.clock, findings_every=1.0, keep_views=keep_views)
        self.session.feed(taken(self.source, self.stream.start()))

    def second(self, parts: int = 2) -> None:
        for answer in self.stream.parts(parts):
            self.session.feed(taken(self.source, [answer]))


# -- it is the same --------------------------------------------------------------------------------------------------

SIZES = st.one_of(st.none(), st.integers(0, 20), st.integers(0, 2**63 - 1))
AMOUNTS = st.builds(
    Amount,
    bytes=st.one_of(st.none(), st.integers(0, 20), st.integers(0, 2**63 - 1)),
    slack=st.integers(0, 8),
    within=st.sampled_from([0.0, 0.05, 0.5, None]),
)
BUDGETS = st.builds(
    Budget,
    moments=st.dictionaries(
        st.sampled_from([*MOMENTS, "odd"]), st.dictionaries(st.sampled_from([*CATEGORIES, "odd"]), AMOUNTS), max_size=3
    ),
)
MEMORIES = st.builds(Memory, **{field.name: SIZES for field in dataclasses.fields(Memory)})


@given(BUDGETS, MEMORIES)
def test_bounds_tell_what_differs_as_one_by_one(budget: Budget, memory: Memory) -> None:
    found = bounds(budget)
    for moment, amounts in budget.moments.items():
        plain = [
            (name, 1 if delta > 0 else -1)
            for name, amount in amounts.items()
            if (delta := difference(getattr(memory, name, None), amount))
        ]
        assert (found[moment].differing(memory) if moment in found else []) == plain


LOOKS = st.lists(
    st.lists(st.one_of(st.none(), st.integers(-(2**62), 2**62)), max_size=4).map(tuple), max_size=60
)  # fmt: skip


@given(LOOKS, st.integers(1, 9))
def test_looks_come_out_as_they_went_in(positions: list[tuple[int | None, ...]], chunk: int) -> None:
    known = [Look(slot, one) for slot, one in enumerate(positions, 7)]
    kept = Looks(12)
    for begin in range(0, len(known), chunk):
        kept.extend(known[begin : begin + chunk])
    last = known[-12:]
    assert [*kept] == last == [kept[at] for at in range(len(kept))] == [kept[at - len(last)] for at in range(len(last))]
    assert [*reversed(kept)] == last[::-1]
    assert tuple(kept[-3:]) == tuple(last[-3:])
    for first, final in ((7, 90), (len(known), len(known) + 4), (90, 95)):
        assert kept.between(first, final) == [(one.slot, one.positions) for one in last if first <= one.slot <= final]
    assert kept.slot == (last[-1].slot if last else -1)


def test_absurd_positions_of_looks_cost_no_other() -> None:
    kept = Looks(5, [Look(1, (5, 6)), Look(2, (2**64 - 1, None)), Look(3, (7, 8))])
    assert kept[0] == Look(1, (5, 6))
    assert kept[1].positions[1] is None
    assert kept[2] == Look(3, (7, 8))


def points(count: int, apart: float = 1.0) -> list[Point]:
    values = random.Random(count)
    return [
        Point(apart * at, at, None if at % 7 == 0 else values.random(), at * GIB, None, 10**39, None, 90, 99.5, None)
        for at in range(count)
    ]


def test_a_ring_gives_back_its_points_and_nothing_for_what_is_no_measurement() -> None:
    ring = Ring(capacity=500)
    known = points(900)
    for point in known:
        ring.append(point)
    assert len(ring) == 500
    assert ring.column("t") == [point.t for point in known[-500:]]
    assert ring.column("step") == [point.step for point in known[-500:]]
    assert all(value != value for name in ("states", "activations") for value in ring.column(name))
    seconds = [math.nan if point.step_s is None else point.step_s for point in known[-500:]]
    assert ring.column("step_s") == pytest.approx(seconds, rel=1e-6, nan_ok=True)
    assert (ring.newest, ring.last("utilization"), ring.last("states")) == (899.0, 90.0, None)


@pytest.mark.parametrize(
    ("ranks", "apart", "most"), [(8, 0.1, 1.0), (64, 1.0, 1.0), (1024, 1.0, 4.0), (1024, 0.1, 4.0)]
)
def test_what_is_long_ago_is_thinned_and_the_newest_is_whole(ranks: int, apart: float, most: float) -> None:
    """Half an hour is kept whatever the interval; a point is one that was heard, never a mean."""
    ring = ring_for(ranks)
    count = int(2400 / apart)
    for at in range(count):
        ring.append(Point(apart * at, at, 0.5, at, None, None, None, None, None, None))
    times = ring.column("t")
    assert times[-FULL:] == [apart * at for at in range(count - FULL, count)]
    assert times[0] <= times[-1] - 1700
    assert times == sorted(set(times))
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) <= most + 1e-6
    assert len(ring) <= 1800 / (most - 0.1) + 4 * FULL
    assert ring.column("used") == pytest.approx([round(t / apart) for t in times])


def plainly(snapshot: Snapshot) -> list[dict[str, Any]]:
    made = []
    for view in snapshot.ranks:
        row = {field.name: getattr(view, field.name) for field in dataclasses.fields(view)}
        row["history"] = [view.history.column(name) for name in ("t", "step")] if view.history else None
        row |= {name: tuple(row[name]) for name in ("looks", "glimpses", "footprints")}
        made.append(row)
    return made


def test_views_that_are_kept_say_what_new_ones_say() -> None:
    """A rank that falls silent, one that ends and one that is heard of again among those that go on."""
    following = Following(9)
    session, clock = following.session, following.stream.clock
    plain = Session(clock, findings_every=1.0)
    plain.feed(taken(receiver(clock), following.stream.start()))
    for turn in range(12):
        for part, answer in enumerate(following.stream.parts(3)):
            if turn in (4, 5, 6, 7) and part == 1:
                continue
            for one in (session, plain):
                one.feed(taken(receiver(clock), [answer]))
            assert plainly(session.snapshot()) == plainly(plain.snapshot())
    assert session.snapshot().ranks[4].age == plain.snapshot().ranks[4].age


def test_a_picture_that_is_frozen_does_not_age() -> None:
    following = Following(4)
    following.second()
    live = following.session.snapshot()
    frozen = following.session.snapshot(copy_history=True)
    ages = [view.age for view in frozen.ranks]
    following.stream.clock.advance(5.0)
    again = following.session.snapshot()
    assert [view.age for view in frozen.ranks] == ages
    assert [view.age for view in again.ranks] == [(age or 0.0) + 5.0 for age in ages]
    assert all(one is not other for one, other in zip(frozen.ranks, live.ranks, strict=True))


# -- it is cheap -----------------------------------------------------------------------------------------------------


def calls(work: Callable[[], object]) -> Counter[str]:
    """Count the calls of Python functions by name."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found[frame.f_code.co_name] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def test_budgets_of_1024_equal_ranks_are_a_handful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cache", {})
    monkeypatch.setattr(module, "_budgets", {})
    count = 0
    compute = module._compute

    def counted(*arguments: Any) -> Budget:
        nonlocal count
        count += 1
        return compute(*arguments)

    monkeypatch.setattr(module, "_compute", counted)
    following = Following(1024)
    following.second(1)
    states = following.session.ranks.values()
    assert all(state.budget is not None for state in states)
    assert count <= 4
    cards = [state.card for state in states if state.card is not None]
    assert len({id(card.inventory) for card in cards}) == 1


def test_views_are_made_anew_for_ranks_that_said_something(monkeypatch: pytest.MonkeyPatch) -> None:
    following = Following(64)
    following.second()
    made: list[int] = []
    seen = RankState._seen

    def counted(state: RankState, *arguments: Any, **named: Any) -> Any:
        made.append(state.rank)
        return seen(state, *arguments, **named)

    monkeypatch.setattr(RankState, "_seen", counted)
    first = following.session.snapshot()
    assert made == [*range(64)]
    made.clear()
    answers = following.stream.parts(4)
    following.session.feed(taken(following.source, answers[:1]))
    second = following.session.snapshot()
    spoke = {*range(16), *(rank for rank in range(16) if rank % 10 == 0)}
    assert {*made} == spoke
    assert len(made) == 16
    assert all(second.ranks[rank] is first.ranks[rank] for rank in range(16, 64))


def test_a_sample_costs_so_many_calls() -> None:
    """They were 409 a sample; the budget's comparison alone took 127."""
    following = Following(64)
    for _ in range(3):
        following.second()
    items = [taken(following.source, [answer]) for answer in following.stream.parts(1)]
    (received,) = items
    fed = calls(lambda: following.session.feed(received))
    assert sum(fed.values()) <= 60 * 64
    following.session.snapshot()
    idle = calls(following.session.snapshot)
    assert sum(idle.values()) <= 11 * 64


def test_memory_is_level_once_the_rings_are_full() -> None:
    """Between 300 and 500 samples of each rank: no ring holds more than that."""
    following = Following(4)
    session = following.session

    def blocks(samples: int) -> int:
        for at in range(samples):
            following.second(1)
            if at % 20 == 0:
                session.snapshot()
        gc.collect()
        return sys.getallocatedblocks()

    blocks(300)
    before = blocks(4)
    assert blocks(200) - before < 400
