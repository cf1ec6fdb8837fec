"""How often a hub wakes, counted on a clock of the test's own."""

from __future__ import annotations

import os

import pytest

from ranktop.agent.hub_pace import BUSY, REST, Pace


class Machine:
    """A clock, and messages that come at even times; a rest takes the time that it is asked for."""

    def __init__(self, rate: float) -> None:
        self.now = 0.0
        self.rate = rate
        self.read = self.turns = 0
        self.latest = 0.0
        """The longest that a message waited."""
        self.pace = Pace([], lambda: self.now)
        self.pace._poll = self  # type: ignore[assignment]

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        self.now += milliseconds / 1000
        return []

    def run(self, seconds: float) -> None:
        """Take turns as the hub does: rest, wait for the first message, read all that have come."""
        end = self.now + seconds
        self.read = int(self.now * self.rate)
        self.turns, self.latest = 0, 0.0
        while self.now < end:
            self.pace.rest()
            self.now = max(self.now, (self.read + 1) / self.rate)
            count = int(self.now * self.rate + 1e-9) - self.read
            self.latest = max(self.latest, self.now - (self.read + 1) / self.rate)
            self.read += count
            self.turns += 1
            self.pace.note(self.now, count)


@pytest.mark.parametrize("rate", [640.0, 1024.0, 4096.0, 16384.0])
def test_many_messages_are_read_together(rate: float) -> None:
    machine = Machine(rate)
    machine.run(3.0)
    machine.run(10.0)
    assert machine.turns <= 10.0 / REST + 1
    assert machine.latest <= REST + 1e-6


@pytest.mark.parametrize("rate", [8.0, 64.0, 150.0])
def test_few_messages_wake_the_hub_one_by_one(rate: float) -> None:
    machine = Machine(rate)
    machine.run(20.0)
    assert machine.turns == pytest.approx(20.0 * rate, abs=1)
    assert machine.latest <= 1e-6


def test_a_hub_is_quick_again_seconds_after_a_rush() -> None:
    machine = Machine(4096.0)
    machine.run(3.0)
    assert machine.pace.busy
    machine.pace.note(machine.now + 5.0, 1)
    assert not machine.pace.busy


def test_what_is_urgent_ends_a_rest() -> None:
    read, write = os.pipe()
    try:
        pace = Pace([read], lambda: 0.0)
        pace.note(0.0, int(2 * BUSY))
        os.write(write, b"x")
        found = []
        poll = pace._poll

        class Told:
            def poll(self, milliseconds: float) -> None:
                found.extend(poll.poll(milliseconds))

        pace._poll = Told()  # type: ignore[assignment]
        pace.rest()
        assert [descriptor for descriptor, _ in found] == [read]
    finally:
        os.close(read)
        os.close(write)
