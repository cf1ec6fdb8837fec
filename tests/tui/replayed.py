"""Runs the dashboard on a recording made by hand, without a terminal and on a clock of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from dashboard import Dashboard
from fake_job import FakeClock, FakeJob, FakeSource
from hand_tape import HandTape

from ranktop.tui.app import RanktopApp
from ranktop.tui.replay.player import Player
from ranktop.tui.replay.spells import Findings


@dataclass
class Replayed(Dashboard):
    """A running dashboard on a recording."""

    player: Player

    async def settle(self) -> None:
        """Let the picture come to where the playhead is, and draw it."""
        while not self.player.deck.work(10.0):
            await self.pilot.pause()
        await self.draw()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def beats(self, seconds: float, beat: float = 0.25) -> None:
        """Let time pass, the application's timer going as usual."""
        for _ in range(round(seconds / beat)):
            self.clock.advance(beat)
            self.app.drain()
            while not self.player.deck.work(10.0):
                await self.pilot.pause()
        await self.draw()

    @property
    def place(self) -> float:
        """Seconds from the beginning of the recording."""
        return self.player.deck.at - self.player.deck.tape.begin


SURVEYED: WeakKeyDictionary[HandTape, tuple[Findings, str]] = WeakKeyDictionary()
"""What recordings are known to hold; none of them changes."""


def played(recording: HandTape, clock: FakeClock, at: float | None = None) -> Player:
    """Return a player whose survey is through already and begins no thread."""
    player = Player(lambda: recording, at=at, real=clock, aside=False)
    player.deck.work(10.0)
    if recording not in SURVEYED:
        player.survey.run()
        SURVEYED[recording] = player.survey.findings, player.survey.failure
    player.survey.findings, player.survey.failure = SURVEYED[recording]
    recording.closed = False
    player.survey.start = lambda: None  # type: ignore[method-assign]
    return player


@asynccontextmanager
async def replayed(
    recording: HandTape,
    size: tuple[int, int] = (80, 24),
    theme: str = "dark",
    *,
    ascii: bool = False,
    at: float | None = None,
    live: FakeJob | None = None,
) -> AsyncIterator[Replayed]:
    """Run the dashboard on a recording; with ``live`` on that job, its player not yet opened."""
    clock = FakeClock()
    source = FakeSource(live, clock) if live is not None else None
    app = RanktopApp(source, theme=theme, ascii=ascii, clock=clock)
    player = played(recording, clock, at)
    if live is None:
        app.replay.open(player)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        run = Replayed(app, pilot, clock, source, player)  # type: ignore[arg-type]
        await run.settle()
        yield run
