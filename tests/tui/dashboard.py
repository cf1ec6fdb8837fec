"""Runs the dashboard on a fake job without a terminal and reads its screen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fake_findings import Scripted
from fake_job import FakeClock, FakeJob, FakeSource
from rich.style import Style
from textual.pilot import Pilot

from ranktop.tui.app import RanktopApp
from ranktop.tui.screens.live import LiveScreen
from ranktop.tui.screens.ranks import RanksScreen
from ranktop.tui.view.options import Options

STYLE_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-*/=<>?!"


@dataclass
class Dashboard:
    """A running dashboard with the clock and the source that drive it."""

    app: RanktopApp
    pilot: Pilot[int]
    clock: FakeClock
    source: FakeSource

    @property
    def ranks(self) -> RanksScreen:
        screen = self.app.screen
        assert isinstance(screen, RanksScreen)
        return screen

    def ranks_options(self) -> Options:
        """Return the choices that all screens of the stack share."""
        screen = self.app.screen
        assert isinstance(screen, LiveScreen)
        return screen.options

    async def after(self, seconds: float) -> None:
        """Let time pass, take what the source has by then, draw."""
        self.clock.advance(seconds)
        self.app.drain()
        await self.draw()

    async def draw(self) -> None:
        if isinstance(self.app.screen, LiveScreen):
            self.app.screen.hurry()
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.draw()

    def rows(self) -> list[list[tuple[str, Style]]]:
        """Return the cells that a terminal would show, as (text, style) runs."""
        strips = self.app.screen._compositor.render_strips()
        return [[(text, style or Style.null()) for text, style, _ in strip] for strip in strips]

    def text(self) -> str:
        """Return the screen as text."""
        return "\n".join("".join(text for text, _ in row).rstrip() for row in self.rows())

    def row_of(self, rank: int) -> str:
        """Return the line of a rank in the list."""
        at = self.ranks.last.table.index(rank) if self.ranks.last else None
        assert at is not None
        return self.text().splitlines()[2 + at - self.ranks.options.top]

    def painted(self) -> str:
        """Return the screen as text, and below it a letter per cell for its style."""
        letters: dict[str, str] = {}
        lines: list[str] = []
        for row in self.rows():
            cells = ""
            for text, style in row:
                letter = letters.setdefault(str(style), STYLE_LETTERS[len(letters)])
                cells += letter * len(text)
            lines.append(cells)
        legend = [f"{letter} {name}" for name, letter in letters.items()]
        return "\n".join([self.text(), "", "styles", *lines, "", *legend, ""])


@asynccontextmanager
async def dashboard(
    job: FakeJob,
    size: tuple[int, int] = (80, 24),
    theme: str = "dark",
    *,
    ascii: bool = False,
    budgets: bool = True,
    rules: bool = False,
) -> AsyncIterator[Dashboard]:
    """Run the dashboard on a job, five seconds after it attached; without ``rules`` its findings are the script's."""
    clock = FakeClock()
    source = FakeSource(job, clock)
    app = RanktopApp(source, theme=theme, ascii=ascii, clock=clock)
    if not rules:
        app.session.findings = Scripted(job)
    app.session.budget_slice = None if budgets else 0.0  # a busy machine must not change what is compared when
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        run = Dashboard(app, pilot, clock, source)
        await run.after(5.0)
        yield run
