"""What a hub keeps for a viewer that comes late: samples, stacks, boxes, ends of former lives; and how much of it."""

from __future__ import annotations

import random

import pytest
from hub_talk import Rank, kinds, read, state_of_hub

from ranktop.agent.hub_ranks import SAMPLES_BYTES, SAMPLES_KEPT, SAMPLES_SHOWN, SHOWN_BYTES, Samples, item_bytes
from ranktop.agent.hub_state import MAX_LEFT, HubState
from ranktop.probes.reading import StepTimes
from ranktop.tui.session.source import Received, Reset
from ranktop.tui.session.state import Session
from ranktop.wire.codec import BadMessage
from ranktop.wire.schema import Box, Call, End, Item, Look, Mark, Sample, Stack

GONE = 1e9


def told(state: HubState, kind: type[Sample | Stack | Box | End | Mark]) -> list[object]:
    return [body for _, body in map(read, state.snapshot()) if isinstance(body, kind)]


def late_viewer(state: HubState, now: float = 100.0) -> Session:
    """Return the session of a viewer that comes at ``now``, by a clock that stands there."""
    session = Session(lambda: now)
    session.feed([Reset(state.job, state.hub, False)])
    session.feed(received(item, now) for item in state.snapshot())
    assert not session.failure
    return session


def received(item: Item, now: float) -> Received:
    header, body = read(item)
    return Received(header, body, now - item.t, item.number)


def step_sample(step: int) -> Sample:
    """Return a sample that repeats the step before, as one does that has no newer."""
    times = tuple(StepTimes(index, 1.0) for index in (step - 1, step) if index > 0)
    return Sample(rank=0, step=step, steps=times, looks=(Look(4 * step, (step,)), Look(4 * step + 1, (step,))))


def test_a_late_viewer_gets_the_last_forty_samples_and_no_step_or_look_twice() -> None:
    state = state_of_hub()
    rank = Rank(state)
    rank.card()
    for step in range(1, 61):
        rank.say(step_sample(step), t=float(step))
    items = list(state.snapshot())
    assert kinds(items) == ["card 0", "history 0", *["sample 0"] * SAMPLES_SHOWN]
    numbers = [item.number for item in items[2:]]
    assert numbers == sorted(numbers)
    view = late_viewer(state, now=60.5).snapshot().ranks[0]
    assert view.sample is not None
    assert view.sample.step == 60
    assert view.age == pytest.approx(0.5)
    assert [step.index for step in view.steps] == list(range(20, 61))
    assert len(view.looks) == 2 * SAMPLES_SHOWN
    assert view.history is not None
    assert view.history.column("t") == pytest.approx([float(t) for t in range(1, 61)])
    assert view.history.column("step") == [float(step) for step in range(1, 61)]


def test_a_viewer_that_follows_and_one_that_comes_late_see_the_same() -> None:
    state = state_of_hub()
    rank = Rank(state)
    rank.card()
    followed = Session(lambda: 31.0)
    followed.feed([Reset(state.job, state.hub, False)])
    for step in range(1, 31):
        rank.say(step_sample(step), t=float(step))
    followed.feed(received(item, 31.0) for item in state.stream.after(-1, 10**9))
    one, other = followed.snapshot(copy_history=True).ranks[0], late_viewer(state, 31.0).snapshot().ranks[0]
    assert (one.steps, one.sample, one.age, one.state) == (other.steps, other.sample, other.age, other.state)
    assert list(one.looks) == list(other.looks)
    assert one.history is not None
    assert other.history is not None
    assert one.history.column("t") == pytest.approx(other.history.column("t"))


@pytest.mark.parametrize("ranks", [8, 1024, 4096])
def test_samples_are_bounded_in_all_and_so_is_a_snapshot_of_them(ranks: int) -> None:
    state = state_of_hub(ranks)
    size = 2000
    crowd = [Rank(state, number, pid=number + 1) for number in range(ranks)]
    rounds = 130 if ranks == 8 else 40 if ranks == 1024 else 12
    for at in range(rounds):
        for rank in crowd:
            rank.sample(step=at, t=float(at), padding=size)
    kept = [rank.samples for rank in state.ranks.values()]
    held = sum(item_bytes(item) for samples in kept for item in samples.newest(SAMPLES_KEPT, SAMPLES_BYTES))
    assert held <= SAMPLES_BYTES
    assert {len(samples) for samples in kept} == {{8: SAMPLES_KEPT, 1024: 23, 4096: 5}[ranks]}
    shown = [item for item in state.snapshot() if read(item)[0].kind == "sample"]
    assert len(shown) == ranks * {8: 40, 1024: 2, 4096: 1}[ranks]
    assert sum(map(item_bytes, shown)) <= max(SHOWN_BYTES, ranks * max(map(item_bytes, shown)))


def test_samples_hold_at_least_one_and_count_what_they_hold() -> None:
    chance, samples, room = random.Random(5), Samples(), 5000
    for number in range(500):
        samples.add(Item(number, 0.0, b"h", b"x" * chance.choice([10, 400, 9000])), room)
        everything = samples.newest(SAMPLES_KEPT, 10**9)
        assert everything[-1].number == number
        assert len(everything) == 1 or sum(map(item_bytes, everything)) <= room
    assert len(samples.newest(3, 10**9)) <= 3
    assert len(samples.newest(3, 0)) == 1


def test_a_stack_is_kept_until_a_later_step_is_told() -> None:
    state = state_of_hub()
    rank = Rank(state)
    rank.sample(step=7, t=1.0)
    for waited in (5.0, 10.0):
        rank.say(Stack(rank=0, step=7, waited=waited, calls=(Call("train.py", 3, "main"),)), t=waited)
    rank.sample(step=7, t=11.0)
    assert [stack.waited for stack in told(state, Stack) if isinstance(stack, Stack)] == [10.0]
    assert kinds(list(state.snapshot()))[-2:] == ["sample 0", "stack 0"]
    view = late_viewer(state).snapshot().ranks[0]
    assert view.stack is not None
    assert (view.stack.waited, view.stack_at) == (10.0, 10.0)
    rank.sample(step=8, t=12.0)
    assert not told(state, Stack)
    rank.say(Stack(rank=0, step=7, waited=11.0), t=13.0)
    assert not told(state, Stack), "what was taken before that step is past"


def test_a_box_and_the_two_minutes_before_it_outlive_the_rank() -> None:
    state = state_of_hub()
    rank = Rank(state)
    rank.card()
    for step in range(200):
        rank.sample(step=step, t=float(step))
    rank.say(Box(rank=0, error="OutOfMemoryError: first", asked=5), t=200.0)
    rank.say(Box(rank=0, error="OutOfMemoryError: again"), t=200.1)
    rank.end("exception", t=200.2)
    items = list(state.snapshot())
    assert kinds(items) == ["card 0", "history 0", *["sample 0"] * SAMPLES_KEPT, "box 0", "end 0"]
    view = late_viewer(state, 300.0).snapshot().ranks[0]
    assert view.box is not None
    assert (view.box.error, view.boxed, view.state) == ("OutOfMemoryError: first", 200.0, "failed")
    assert view.former_box is None


def fall_and_rise(state: HubState, lives: int = 2) -> list[Rank]:
    """Have rank 0 run out of memory in its first life, and come back ``lives - 1`` times."""
    old = Rank(state, pid=100)
    old.card(t=0.0)
    for step in range(1, 11):
        old.say(step_sample(step), t=float(step))
    old.say(Box(rank=0, error="OutOfMemoryError: it was too much"), t=10.5)
    old.say(End(rank=0, how="exception", code=1, detail="OutOfMemoryError"), t=10.6)
    made = [old]
    for life in range(1, lives):
        rank = Rank(state, pid=100 + life, restart=life)
        began = 20.0 * life
        rank.card(t=began)
        for step in range(1, 4):
            rank.say(step_sample(step), t=began + step)
        if life < lives - 1:
            state.end_process(began + 5, rank.pid, "signal", 15, "SIGTERM")
        made.append(rank)
    return made


def test_a_restarted_rank_tells_how_the_life_before_ended_and_what_it_left() -> None:
    state = state_of_hub()
    fall_and_rise(state)
    assert kinds(list(state.snapshot())) == [
        *("mark 0", *["sample 0"] * 10, "box 0", "end 0", "mark 0"),
        *("card 0", "history 0", *["sample 0"] * 3),
    ]
    following = Session(lambda: 30.0)
    following.feed([Reset(state.job, state.hub, False)])
    following.feed(received(item, 30.0) for item in state.stream.after(-1, 10**9))
    for session in (following, late_viewer(state, 30.0)):
        view = session.snapshot().ranks[0]
        assert (view.state, view.restart, view.end, view.box) == ("silent", 1, None, None)
        assert view.former is not None
        assert view.former.detail == "OutOfMemoryError"
        assert view.former_box is not None
        assert view.former_box.error == "OutOfMemoryError: it was too much"
        assert view.former_boxed == pytest.approx(10.5)
        assert [(mark.what, mark.at) for mark in view.marks] == [("restart", 20.0)]
        assert [step.index for step in view.steps] == [1, 2, 3]
        assert view.history is not None
        assert view.history.column("t") == pytest.approx([*map(float, range(1, 11)), 21.0, 22.0, 23.0])


def test_a_box_is_kept_over_further_lives_until_another_is_left() -> None:
    state = state_of_hub()
    *_, last = fall_and_rise(state, lives=4)
    view = late_viewer(state).snapshot().ranks[0]
    assert view.former is not None
    assert view.former_box is not None
    assert (view.restart, view.former.detail) == (3, "SIGTERM")
    assert view.former_box.error == "OutOfMemoryError: it was too much"
    last.say(Box(rank=0, error="MemoryError"), t=70.0)
    view = late_viewer(state).snapshot().ranks[0]
    assert view.box is not None
    assert (view.box.error, view.former_box) == ("MemoryError", None)
    assert len(told(state, Box)) == 1


def test_of_a_life_whose_end_nobody_told_no_other_end_is_told() -> None:
    state = state_of_hub()
    fall_and_rise(state, lives=2)
    Rank(state, pid=102, restart=2).card(t=40.0)
    view = late_viewer(state).snapshot().ranks[0]
    assert (view.restart, view.former) == (2, None)
    assert view.former_box is not None


def test_an_end_that_is_told_after_the_next_life_began_still_counts() -> None:
    state = state_of_hub()
    old, new = Rank(state, pid=100), Rank(state, pid=101, restart=1)
    old.card()
    old.sample(step=3, t=1.0)
    new.card(t=5.0)
    state.end_process(5.1, 100, "signal", 9, "SIGKILL")
    state.end_process(5.2, 100, "exit", 0, "exit code 0")
    following = Session(lambda: 6.0)
    following.feed([Reset(state.job, state.hub, False)])
    following.feed(received(item, 6.0) for item in state.stream.after(-1, 10**9))
    for session in (following, late_viewer(state, 6.0)):
        view = session.snapshot().ranks[0]
        assert view.former is not None
        assert (view.restart, view.former.detail, view.end) == (1, "SIGKILL", None)
    assert state.ranks[0].end is None


def test_the_process_of_a_silent_rank_is_told_on_change_and_forgotten_when_it_speaks() -> None:
    state = state_of_hub()
    rank = Rank(state)
    rank.card()
    rank.sample(step=1, t=1.0)
    assert state.silent(3.9) == []
    assert state.silent(4.1) == [0]
    for t, word in ((4.1, "stopped"), (5.1, "stopped"), (6.1, "sleeping")):
        state.note_process(t, 0, word)
    marks = [body for _, body in map(read, state.stream.after(1, 10**9))]
    assert marks == [Mark(what="process", detail="stopped"), Mark(what="process", detail="sleeping")]
    assert kinds(list(state.snapshot()))[-1] == "mark 0"
    assert late_viewer(state).snapshot().ranks[0].process == "sleeping"
    rank.sample(step=1, t=7.0)
    assert late_viewer(state).snapshot().ranks[0].process == ""
    assert state.silent(7.5) == []
    state.note_process(20.0, 0, "sleeping")
    assert late_viewer(state).snapshot().ranks[0].process == "sleeping", "a new silence is told anew"
    rank.end("exit", t=21.0)
    assert state.silent(GONE) == []


def test_an_interval_that_was_promised_is_waited_for() -> None:
    state = state_of_hub()
    Rank(state).say(Sample(rank=0, interval=10.0), t=1.0)
    assert (state.silent(30.0), state.silent(31.5)) == ([], [0])


def test_what_is_kept_for_ever_may_not_be_large() -> None:
    state = state_of_hub()
    rank = Rank(state)
    rank.card()
    for body in (Box(rank=0, error="x" * MAX_LEFT), Stack(rank=0, step=0, waited=0.0, reason="x" * MAX_LEFT)):
        with pytest.raises(BadMessage, match="too large"):
            rank.say(body)
    assert kinds(list(state.snapshot())) == ["card 0"]


def test_a_thinned_history_stands_where_its_seconds_were() -> None:
    state = state_of_hub(1024)
    rank = Rank(state)
    rank.card()
    for second in range(101):
        rank.sample(step=second, t=float(second))
    ring = late_viewer(state, 103.0).snapshot(copy_history=True).ranks[0].history
    assert ring is not None
    times = ring.column("t")
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times == pytest.approx(ring.column("step"), abs=0.01), "each second has its own step"
    assert len(times) == len({round(t) for t in times}) > 40


def test_a_process_that_took_over_without_a_restart_being_counted_has_a_former_life_as_well() -> None:
    state = state_of_hub()
    old, new = Rank(state, pid=100), Rank(state, pid=200)
    for rank, began in ((old, 0.0), (new, 10.0)):
        rank.card(t=began)
        rank.say(step_sample(3), t=began + 1)
        if rank is old:
            rank.say(End(rank=0, how="signal", code=15, detail="SIGTERM"), t=began + 2)
    view = late_viewer(state, 12.0).snapshot().ranks[0]
    assert view.former is not None
    assert (view.restart, view.former.detail, view.end, view.state) == (0, "SIGTERM", None, "ok")
    assert [step.index for step in view.steps] == [2, 3]
    assert not view.marks
