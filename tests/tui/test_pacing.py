"""Never more on the way than a terminal takes within a moment, whatever it answers, and no picture drawn in vain."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_job import FakeClock

from ranktop.tui.pacing import REPEAT, Pacer
from ranktop.tui.terminal.flow import (
    FIRST_TIMEOUT,
    KEY_TIMEOUT,
    LEAST,
    LONG_TIMEOUT,
    MOST,
    SILENT_BURST,
    SILENT_RATE,
    SLACK,
    START,
    Flow,
)
from ranktop.tui.terminal.kind import link_limit


def paced() -> tuple[FakeClock, Flow, Pacer]:
    clock = FakeClock()
    flow = Flow(clock)
    return clock, flow, Pacer(clock, flow, 0.5)


def test_draws_at_the_interval_when_the_terminal_answers_at_once() -> None:
    clock, flow, pacer = paced()
    frames = 0
    for _ in range(100):
        if pacer.due():
            frames += 1
            pacer.drawn()
            flow.answered(flow.sent(500))
        clock.advance(0.1)
    assert frames == 20


def test_a_live_picture_waits_for_the_last_one_to_be_read() -> None:
    clock, flow, pacer = paced()
    flow.answered(flow.sent(0))
    pacer.drawn()
    number = flow.sent(500)
    for _ in range(90):
        clock.advance(0.1)
        assert not pacer.due()
    flow.answered(number)
    assert pacer.due()
    pacer.behind = True
    assert not pacer.due()


def test_a_key_is_drawn_at_once_and_a_key_held_down_not_more_often_than_can_be_seen() -> None:
    clock, flow, pacer = paced()
    flow.answered(flow.sent(0))
    frames = 0
    for _ in range(30):  # thirty keys within a second
        pacer.hurry()
        if pacer.due():
            frames += 1
            pacer.drawn()
            flow.answered(flow.sent(300))
        assert not pacer.urgent or 0 < pacer.wait() <= REPEAT
        clock.advance(1 / 300)
    assert frames == 3


def test_a_key_is_drawn_while_an_older_picture_is_on_its_way_if_there_is_room() -> None:
    clock, flow, pacer = paced()
    flow.answered(flow.sent(0))
    pacer.drawn()
    flow.sent(START // 2)
    clock.advance(0.1)
    pacer.hurry()
    assert pacer.due()
    flow.sent(START)
    assert not pacer.due()


def test_output_that_is_no_terminal_is_drawn_to_whenever_asked() -> None:
    _clock, flow, pacer = paced()
    pacer.asks = False
    flow.sent(10**6)
    pacer.drawn()
    pacer.hurry()
    assert pacer.due()


def feed(flow: Flow, clock: FakeClock, rate: float, trip: float, seconds: float) -> int:
    """Send all that may be sent through a link for a while; returns the most bytes that waited in it."""
    queue: list[tuple[float, int]] = []
    free_at, most = clock(), 0
    end = clock() + seconds
    while clock() < end:
        while (room := flow.room()) > 0:
            size = min(room, max(LEAST, flow.window // 2))
            for piece in ([0] if not flow.outstanding else []) + [size]:
                free_at = max(free_at, clock()) + piece / rate
                queue.append((free_at + trip, flow.sent(piece)))
        most = max(most, round((free_at - clock()) * rate))
        clock.advance(max(0.0, queue[0][0] - clock()))
        while queue and queue[0][0] <= clock() + 1e-9:
            flow.answered(queue.pop(0)[1])
    return most


@pytest.mark.parametrize(("rate", "trip"), [(10_000, 0.2), (3_000, 0.6), (50_000, 0.05), (10_000, 0.01)])
def test_the_window_keeps_a_link_busy_with_a_moment_of_it_waiting(rate: float, trip: float) -> None:
    clock = FakeClock()
    flow = Flow(clock)
    feed(flow, clock, rate, trip, 5.0)
    assert flow.window == pytest.approx(max(LEAST, rate * (trip + SLACK)), rel=0.1)
    # What waits takes the slack, or the smallest window, and a piece that was begun.
    assert feed(flow, clock, rate, trip, 20.0) <= max(rate * (trip + SLACK), LEAST) * 1.1


def test_the_window_of_a_terminal_that_reads_at_once_holds_any_frame() -> None:
    clock = FakeClock()
    flow = Flow(clock)
    feed(flow, clock, 5e6, 0.001, 0.5)
    assert flow.window == MOST


def test_a_link_that_becomes_slow_is_noticed() -> None:
    clock = FakeClock()
    flow = Flow(clock)
    feed(flow, clock, 200_000, 0.05, 2.0)
    feed(flow, clock, 10_000, 0.2, 10.0)
    assert flow.window < 6000


def test_a_busy_program_does_not_take_a_slow_link_for_a_fast_one() -> None:
    clock = FakeClock()
    flow = Flow(clock)
    asked, piece = flow.sent(0), flow.sent(4000)
    clock.advance(3.0)  # both answers have been read long ago: 0.2 and 0.6 s after the question
    flow.answered(asked, clock() - 2.8)
    flow.answered(piece, clock() - 2.4)
    assert flow.window == pytest.approx(10_000 * (0.2 + SLACK))


def test_a_terminal_that_never_answers_gets_so_many_bytes_a_second() -> None:
    clock = FakeClock()
    flow = Flow(clock)
    flow.sent(START)
    assert not flow.room()
    clock.advance(FIRST_TIMEOUT + 0.01)
    assert flow.room() > 0
    assert flow.silent
    sent = 0
    for _ in range(1000):
        if room := flow.room():
            flow.sent(room)
            sent += room
        clock.advance(0.01)
    assert sent <= SILENT_BURST + 10 * SILENT_RATE
    assert sent >= 10 * SILENT_RATE * 0.9


def test_a_terminal_that_answers_late_is_asked_again() -> None:
    clock = FakeClock()
    flow = Flow(clock)
    number = flow.sent(START)
    clock.advance(4.0)
    assert flow.room()
    assert flow.silent
    flow.answered(number)
    assert not flow.silent
    later = flow.sent(100)
    clock.advance(4.0)
    assert flow.outstanding == 100
    flow.answered(later)
    assert not flow.outstanding


@pytest.mark.parametrize("told", [lambda number: number, lambda number: None])
def test_an_answer_that_comes_twice_opens_no_way_for_what_was_sent_since(told: Callable[[int], int | None]) -> None:
    clock = FakeClock()
    flow = Flow(clock)
    first = flow.sent(1000)
    flow.answered(first)
    second = flow.sent(1000)
    third = flow.sent(1000)
    flow.answered(first)  # again
    assert flow.outstanding == 2000
    flow.answered(told(second))
    assert flow.outstanding == 1000
    flow.answered(third)
    assert not flow.outstanding


def test_one_answer_counts_for_all_questions_before_it() -> None:
    flow = Flow(FakeClock())
    flow.sent(100)
    flow.sent(100)
    flow.answered(flow.sent(100))
    assert not flow.outstanding


def test_a_link_that_is_dead_is_not_filled() -> None:
    """An hour of a closed laptop: what waits for it when it wakes is read within seconds."""
    clock = FakeClock()
    flow = Flow(clock)
    flow.answered(flow.sent(0))
    sent = 0
    for _ in range(3600):
        if flow.idle():
            flow.sent(LEAST)
            sent += 1
        clock.advance(1.0)
    assert sent <= 3600 / (8 * LONG_TIMEOUT) + 4


def test_a_link_that_somebody_named_is_not_given_more() -> None:
    clock = FakeClock()
    flow = Flow(clock, 10_000)
    sent = 0
    for _ in range(500):
        while room := flow.room():
            flow.answered(flow.sent(room))  # tmux has read it at once
            sent += room
        clock.advance(0.01)
    assert 10_000 * 5 * 0.95 <= sent <= 10_000 * 6
    assert [link_limit({"RANKTOP_LINK": text}) for text in ("", "x", "0", "-5", "5", "20000")] == [
        None, None, None, None, 1000, 20_000,
    ]  # fmt: skip


def test_keys_open_the_way_when_an_answer_was_lost() -> None:
    clock = FakeClock()
    flow = Flow(clock)
    flow.answered(flow.sent(0))
    flow.sent(START)
    clock.advance(KEY_TIMEOUT - 0.1)
    flow.pressed()
    assert not flow.room()
    clock.advance(0.2)
    flow.pressed()
    assert flow.room()
