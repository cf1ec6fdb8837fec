"""A recording that is played: what it finds, that one way through it is as another, and that a pause is one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import lru_cache

import pytest
from hand_tape import HandTape, simulated, tape
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ranktop.tui.replay.deck import Deck
from ranktop.tui.replay.reel import spaced
from ranktop.tui.replay.seeker import Seeker
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.source import Received, Reset
from ranktop.tui.session.state import Session, Snapshot
from ranktop.wire.recording import Stretch


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def told(findings: tuple[Finding, ...]) -> set[tuple[str, str, tuple[int, ...], str]]:
    return {(one.rule, one.severity, one.ranks, one.subject) for one in findings}


def settle(deck: Deck) -> Snapshot:
    """Work until the picture is that of the playhead."""
    while not deck.work(10.0):
        pass
    return deck.session.snapshot()


def ready(recording: HandTape, clock: Clock, at: float | None = None, *, growing: bool = False) -> Deck:
    deck = Deck(recording, at=at, real=clock, growing=growing)
    settle(deck)
    return deck


def run(deck: Deck, clock: Clock, seconds: float, beat: float = 0.25) -> Snapshot:
    for _ in range(round(seconds / beat)):
        clock.now += beat
        settle(deck)
    return deck.session.snapshot()


@lru_cache
def made(fault: str, rank: int = 2, seconds: int = 100, start: int = 25) -> HandTape:
    return tape(fault, rank, seconds=seconds, start=start)


def live(fault: str, *places: float, rank: int = 2, seconds: int = 100, start: int = 25) -> Iterator[Snapshot]:
    """What a dashboard shows that has watched the same job from its start, so many seconds into the recording."""
    messages = simulated(fault, rank, seconds=seconds, start=start)
    recording, clock = made(fault, rank, seconds, start), Clock()
    session = Session(clock, findings_every=1.0)
    clock.now = recording.begin
    session.feed([Reset(recording.job, "hub-1", False)])
    left = list(messages)
    for place in places:
        while clock.now < recording.begin + place:
            clock.now = min(recording.begin + place, clock.now + 0.25)
            here = [message for message in left if message[0] <= clock.now]
            left = left[len(here) :]
            session.feed([Received(header, body, clock.now - t, header.seq) for t, header, body in here])
            snapshot = session.snapshot()
        yield snapshot


FAULTS = ("straggler", "hang", "oom", "stop", "activations", "lost", "restart")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_findings_are_those_of_the_live_dashboard(fault: str) -> None:
    recording, clock = made(fault), Clock()
    deck = ready(recording, clock)
    deck.play()
    places = (40.0, 65.0)
    for until, expected in zip(places, live(fault, *places), strict=True):
        run(deck, clock, until - (deck.at - recording.begin))
        replayed = deck.session.snapshot()
        assert replayed.now == pytest.approx(expected.now)
        assert told(replayed.findings) == told(expected.findings), until
        assert replayed.state == expected.state
        assert [view.state for view in replayed.ranks] == [view.state for view in expected.ranks]
        assert [view.age for view in replayed.ranks] == pytest.approx([view.age for view in expected.ranks])


@pytest.mark.parametrize(("fault", "speed"), [("straggler", 64), ("oom", 4), ("hang", 1024)])
def test_also_when_it_is_played_fast(fault: str, speed: int) -> None:
    recording, clock = made(fault), Clock()
    deck = ready(recording, clock)
    while deck.head.speed < speed:
        deck.head.faster(1)
    deck.play()
    run(deck, clock, 95.0 / speed + 0.25)
    deck.pause()
    deck.seek(recording.begin + 95.0)
    (expected,) = live(fault, 95.0)
    assert told(settle(deck).findings) == told(expected.findings)


def same(one: Snapshot, other: Snapshot) -> None:
    assert one.now == other.now
    assert (one.state, one.step, one.step_age, one.marks) == (other.state, other.step, other.step_age, other.marks)
    for mine, theirs in zip(one.ranks, other.ranks, strict=True):
        for name in ("state", "age", "card", "sample", "end", "ended", "restart", "steps", "budget", "peak", "marks",
                     "detail", "allocator", "detail_age", "stack", "stack_at", "box", "boxed", "process", "validating",
                     "former", "former_box", "standing"):  # fmt: skip
            assert getattr(mine, name) == getattr(theirs, name), name
        assert list(mine.footprints) == list(theirs.footprints)
        assert list(mine.glimpses) == list(theirs.glimpses)
        assert list(mine.looks) == list(theirs.looks)
        if mine.history is None or theirs.history is None:
            assert mine.history is theirs.history, "not seen yet"
            continue
        assert mine.history.column("step") == theirs.history.column("step")
        assert mine.history.column("t") == theirs.history.column("t")
    assert [(finding.key, finding.severity, finding.since) for finding in one.findings] == [
        (finding.key, finding.severity, finding.since) for finding in other.findings
    ]


@pytest.mark.parametrize("fault", ["restart", "hang"])
@given(places=st.lists(st.floats(0, 60), min_size=1, max_size=4))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_wherever_one_comes_from_it_is_as_if_played_from_the_start(fault: str, places: list[float]) -> None:
    recording, clock = made(fault), Clock()
    deck, straight = ready(recording, clock), ready(recording, clock)
    for place in places:
        deck.seek(recording.begin + place)
        settle(deck)
    straight.play()
    while straight.at < deck.at:
        clock.now += min(1.0, deck.at - straight.at)
        settle(straight)
    straight.pause()
    same(settle(deck), settle(straight))


def test_far_from_the_start_a_place_is_what_a_viewer_would_see() -> None:
    recording, clock = made("leak", seconds=300, start=1), Clock()
    deck, straight = ready(recording, clock), ready(recording, clock)
    straight.play()
    run(straight, clock, 250.0, beat=1.0)
    straight.pause()
    deck.seek(recording.end)
    settle(deck)
    deck.seek(straight.at)
    one, other = settle(deck), settle(straight)
    assert told(one.findings) == told(other.findings) != set()
    assert [view.sample for view in one.ranks] == [view.sample for view in other.ranks]
    assert [view.history.column("step") for view in one.ranks if view.history] == [
        view.history.column("step") for view in other.ranks if view.history
    ]


def test_a_pause_freezes_everything() -> None:
    recording, clock = made("stop"), Clock()
    deck = ready(recording, clock)
    deck.play()
    run(deck, clock, 50.0)
    deck.pause()
    before = deck.session.snapshot(copy_history=True)
    clock.now += 3600.0
    assert deck.work() is True
    same(deck.session.snapshot(), before)
    deck.play()
    run(deck, clock, 1.0)
    assert deck.at == pytest.approx(before.now + 1.0)


def test_speeds() -> None:
    recording, clock = made("straggler"), Clock()
    deck = ready(recording, clock)
    deck.play()
    run(deck, clock, 4.0)
    assert deck.at - recording.begin == pytest.approx(4.0)
    deck.head.faster(-2)
    run(deck, clock, 4.0)
    assert deck.at - recording.begin == pytest.approx(5.0)
    deck.head.faster(5)
    run(deck, clock, 4.0)
    assert deck.at - recording.begin == pytest.approx(37.0)


def test_at_the_end_it_stands_and_begins_again() -> None:
    recording, clock = made("straggler"), Clock()
    deck = ready(recording, clock, recording.end - 2.0)
    deck.play()
    run(deck, clock, 5.0)
    assert (deck.at, deck.ended, deck.head.playing) == (recording.end, True, False)
    deck.play()
    settle(deck)
    run(deck, clock, 1.0)
    assert deck.at == pytest.approx(recording.begin + 1.0)


def test_one_that_grows_is_followed() -> None:
    recording, clock = tape("straggler", 2, seconds=60), Clock()
    recording.live_until = recording.begin + 30
    deck = ready(recording, clock, recording.end - 1.0, growing=True)
    deck.play()
    run(deck, clock, 5.0)
    assert (deck.at, deck.head.playing) == (recording.begin + 30, True)
    recording.live_until += 10
    run(deck, clock, 2.0)
    assert recording.begin + 30 < deck.at <= recording.begin + 40


def test_what_is_sought_is_prepared_aside_and_the_newest_wish_counts() -> None:
    recording = made("straggler")
    deck = Deck(recording, real=Clock(), seeker=Seeker(lambda: recording))
    for place in (20.0, 90.0, 60.0):
        deck.seek(recording.begin + place)
    deadline = time.monotonic() + 30
    while not deck.work() and time.monotonic() < deadline:
        assert deck.seeking
        time.sleep(0.005)
    assert deck.session.snapshot().now == deck.at == recording.begin + 60
    same(deck.session.snapshot(), settle(ready(recording, Clock(), recording.begin + 60)))
    deck.close()


def test_what_cannot_be_read_is_told_once() -> None:
    recording = tape(seconds=20)
    deck = ready(recording, Clock())
    recording.items = recording.state_at = lambda *_: iter([0 // 0])  # type: ignore[method-assign,assignment]
    deck.seek(recording.end)
    with pytest.raises(ZeroDivisionError):
        deck.work()
    assert not deck.waiting


def test_a_slow_machine_does_not_catch_up() -> None:
    recording, clock = made("leak", seconds=300, start=1), Clock()
    deck = ready(recording, clock)
    deck.head.faster(7)
    deck.play()
    ticks = iter(range(10**6))
    for _ in range(8):
        clock.now += 0.25
        deck.work(2.0, lambda: float(next(ticks)))
    real = deck.head.real_speed()
    assert real is not None
    assert real < 0.8 * deck.head.speed == 0.8 * 128
    assert deck.at - recording.begin == pytest.approx(8 * 0.25 * real, rel=0.2)


def thin(recording: HandTape, until: float, step: float) -> HandTape:
    """Keep of every rank its newest sample of each step of the first part, as a recording's thinning does."""
    from ranktop.tui.replay.tape import is_sample
    from ranktop.wire.codec import decode_header

    newest: dict[tuple[int, int], int] = {}
    for item in recording.all:
        if is_sample(item) and item.t < until:
            newest[int(item.t // step), decode_header(item.header).rank] = item.number
    kept = set(newest.values())
    recording.all = [item for item in recording.all if item.t >= until or not is_sample(item) or item.number in kept]
    recording.times = [item.t for item in recording.all]
    recording.kept = [Stretch(recording.begin, until, step), Stretch(until, recording.end, 0.0)]
    return recording


def test_thinned_parts_are_neither_silent_nor_hung() -> None:
    recording, clock = thin(tape("", seconds=400), 1300.0, 60.0), Clock()
    deck = ready(recording, clock)
    deck.play()
    seen = set()
    for _ in range(380):
        snapshot = run(deck, clock, 1.0, beat=1.0)
        if deck.at > 1062:
            seen |= {(snapshot.state, view.state) for view in snapshot.ranks}
            assert told(snapshot.findings) == set(), deck.at
            if deck.at < 1299:
                assert deck.spacing == 60.0
                assert deck.now <= deck.at
    assert seen == {("running", "ok")}
    assert deck.spacing == 0.0


def test_a_silent_rank_of_a_thinned_part_is_silent() -> None:
    recording, clock = thin(tape("stop", 2, seconds=400, start=150), 1360.0, 60.0), Clock()
    deck = ready(recording, clock)
    deck.seek(1330.0)
    snapshot = settle(deck)
    assert [view.rank for view in snapshot.ranks if view.state == "silent"] == [2]
    assert ("silent", (2,)) in [(finding.rule, finding.ranks) for finding in snapshot.findings]


def test_spacing_of_the_looks() -> None:
    assert [spaced(speed) for speed in (0.25, 1, 16, 17, 64, 128, 1024)] == [1, 1, 1, 2, 4, 8, 8]
