"""The pacer never lets frames queue behind a slow terminal, and does not starve one that never answers."""

from __future__ import annotations

from fake_job import FakeClock

from ranktop.tui.pacing import FIRST_TIMEOUT, LONG_TIMEOUT, TRIES, Pacer


def test_draws_at_the_interval_when_the_terminal_answers_at_once() -> None:
    clock = FakeClock()
    pacer = Pacer(clock, 0.5)
    frames = 0
    for _ in range(100):
        if pacer.due():
            frames += 1
            assert pacer.drawn()
            pacer.answered()
        clock.advance(0.1)
    assert frames == 20


def test_waits_for_a_slow_terminal() -> None:
    clock = FakeClock()
    pacer = Pacer(clock, 0.5)
    assert pacer.due()
    pacer.drawn()
    pacer.answered()
    clock.advance(0.5)
    assert pacer.due()
    pacer.drawn()
    for _ in range(90):
        clock.advance(0.1)
        pacer.hurry()
        assert not pacer.due()
    pacer.answered()
    assert pacer.due()


def test_a_key_is_drawn_at_once() -> None:
    clock = FakeClock()
    pacer = Pacer(clock, 0.5)
    pacer.drawn()
    pacer.answered()
    assert not pacer.due()
    pacer.hurry()
    assert pacer.due()


def test_a_terminal_that_never_answers_gets_the_plain_interval() -> None:
    clock = FakeClock()
    pacer = Pacer(clock, 0.5)
    asked = 0
    for _ in range(TRIES):
        assert pacer.due()
        asked += pacer.drawn()
        clock.advance(FIRST_TIMEOUT - 0.01)
        assert not pacer.due()
        clock.advance(0.02)
    assert asked == TRIES
    assert pacer.due()
    assert not pacer.drawn()
    clock.advance(0.51)
    assert pacer.due()


def test_a_late_answer_does_not_open_the_way_for_a_newer_frame() -> None:
    clock = FakeClock()
    pacer = Pacer(clock, 0.5)
    pacer.drawn()
    pacer.answered()
    clock.advance(0.5)
    pacer.drawn()
    clock.advance(LONG_TIMEOUT + 0.1)
    assert pacer.due()
    pacer.drawn()
    assert not pacer.due()


def test_a_frame_without_changes_asks_nothing() -> None:
    clock = FakeClock()
    pacer = Pacer(clock, 0.5)
    assert not pacer.drawn(0)
    assert not pacer.due()
    clock.advance(0.5)
    assert pacer.due()
