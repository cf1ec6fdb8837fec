"""What a picture costs: bytes to the terminal and lines laid out. Counts, which do not depend on the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from dashboard import Dashboard, dashboard
from fake_job import FakeClock, fsdp_job
from rich.color import ColorSystem
from slow_link import Cell, Emulator

from ranktop.tui.app import RanktopApp
from ranktop.tui.pacing import OFTEN, RARE, Pacer, pace
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.terminal.canvas import SURE, Canvas
from ranktop.tui.terminal.flow import Flow
from ranktop.tui.terminal.kind import kind_of
from ranktop.tui.terminal.pens import Pens
from ranktop.tui.widgets.lines import Lines
from ranktop.wire.schema import End, Progress

SIZE = (120, 40)


class Screen:
    """A dashboard's canvas, with a terminal that shows what it sends."""

    def __init__(self, run: Dashboard) -> None:
        kind = kind_of({"TERM": "xterm-256color"})
        self.run = run
        self.canvas = Canvas(kind, Pens(kind, ColorSystem.TRUECOLOR))
        self.emulator = Emulator(SIZE)
        self.sent = self.whole()

    async def picture(self, seconds: float = 0.0) -> bytes:
        """Let time pass, draw as the timer does, and return what is sent."""
        self.run.clock.advance(seconds)
        self.run.app.drain()
        self.run.app.pacer.urgent = False
        self.run.ranks.draw()
        await self.run.pilot.pause()
        return self.whole()

    def whole(self) -> bytes:
        self.canvas.take(self.run.app.screen._compositor.render_full_update())
        sent = self.canvas.piece(10**9).encode()
        self.emulator.read(sent.replace(b"\n", b"\x1b[B"))
        return sent

    def cells(self) -> list[list[Cell]]:
        return self.emulator.cells()

    def afresh(self) -> list[list[Cell]]:
        """What a terminal shows that gets the present picture and nothing else."""
        return Screen(self.run).cells()


def on_screen(measure: Callable[[Screen], object]) -> None:
    async def go() -> None:
        async with dashboard(fsdp_job(8), SIZE) as run:
            run.app.pacer.interval = RARE
            await measure(Screen(run))  # type: ignore[misc]

    asyncio.run(go())


def test_a_picture_in_which_nothing_changed_sends_nothing() -> None:
    """Not even the pacing's question: it follows a piece, and there is none."""

    async def measure(screen: Screen) -> None:
        assert not await screen.picture()
        assert not screen.canvas.behind

    on_screen(measure)


def test_one_number_that_changed_is_a_span_not_a_line() -> None:
    async def measure(screen: Screen) -> None:
        await screen.picture()
        tell(screen.run, 5, utilization=42)
        with patch.object(screen.run.app.session.findings, "of", return_value=()):
            await screen.picture()  # what the rules say goes, with its lines
            tell(screen.run, 5, utilization=43)
            sent = await screen.picture()
        assert b"3" in sent
        assert len(sent) <= 50  # a way, a pen, a digit
        assert screen.cells() == screen.afresh()

    on_screen(measure)


def tell(run: Dashboard, rank: int, interval: float = 1.0, **device: Any) -> None:
    """Have a rank say again what it said, but for these values of its device."""
    state = run.app.session.ranks[rank]
    assert state.sample is not None
    reading = replace(state.sample.device, **device)
    state.hear(msgspec.structs.replace(state.sample, device=reading, interval=interval), run.clock())


def test_a_usual_picture_of_eight_ranks_is_small_and_right() -> None:
    async def measure(screen: Screen) -> None:
        sizes = []
        for turn in range(SURE + 2):
            sizes.append(len(await screen.picture(1.0)))
            if turn % 3 == 1:
                assert screen.cells() == screen.afresh()
        assert sum(sizes) / len(sizes) < 260
        assert max(sizes) < 800

    on_screen(measure)


def test_only_the_lines_of_ranks_that_changed_are_changed() -> None:
    async def measure(screen: Screen) -> None:
        await screen.picture()
        numbers = screen.run.ranks.parts["numbers"]
        for rank in (2, 6):
            tell(screen.run, rank, utilization=10 + rank)
        changed = []
        show = Lines.show

        def counted(part: Lines, *args: object) -> int:
            found = show(part, *args)  # type: ignore[arg-type]
            changed.append((part, found))
            return found

        with patch.object(Lines, "show", counted):
            await screen.picture()
        assert dict(changed)[numbers] == 2

    on_screen(measure)


def test_the_panel_stands_for_every_other_picture_and_then_is_as_if_drawn_anew() -> None:
    async def measure(screen: Screen) -> None:
        side = screen.run.ranks.parts["side"]
        await screen.picture(2.0)
        seen = [side.lines]
        for _ in range(4):
            await screen.picture(1.0)
            seen.append(side.lines)
        stood = [one is other or one == other for one, other in pairwise(seen)]
        assert stood == [True, False, True, False]
        held = side.lines
        await screen.run.draw()  # by a key: nothing is held
        assert side.lines == held

    on_screen(measure)


@pytest.mark.parametrize("what", ["silent", "end", "page", "selected", "old"])
def test_what_happened_is_in_the_panel_at_once(what: str) -> None:
    async def measure(screen: Screen) -> None:
        run = screen.run
        await screen.picture(2.0)
        panel = run.ranks.options.panel
        if what == "silent":
            run.source.script.silent.add(0)
            await screen.picture(5.0)
            before = run.text()
            await screen.picture(1.0)  # its age goes on by the second
            assert "values are 6" in run.text()
            assert run.text() != before
        elif what == "end":
            run.source.script.ends[0] = End(rank=0, how="signal", code=9)
            await screen.picture(0.2)
        elif what == "page":
            run.ranks.options.page = 2
            await screen.picture(0.2)
        elif what == "selected":
            run.ranks.options.selected = 3
            await screen.picture(0.2)
        else:
            tell(run, 0, age=12.0)
            await screen.picture(0.2)
            assert "old" in run.text()
        assert run.ranks.options.panel is not panel

    on_screen(measure)


@pytest.mark.parametrize(
    "news",
    [{"activity": "save"}, {"ooms": 1}, {"progress": Progress(not_finite={"loss": "nan"})}, {"throttle": ("thermal",)}],
    ids=lambda news: next(iter(news)),
)
def test_what_a_rank_says_that_is_more_than_numbers_is_in_the_panel_at_once(news: dict[str, Any]) -> None:
    async def measure(screen: Screen) -> None:
        run = screen.run
        await screen.picture(2.0)
        state = run.app.session.ranks[0]
        assert state.sample is not None
        said = msgspec.structs.replace(state.sample, progress=Progress(loss=2.0, step=1204))
        run.app.source = None  # from here on only this rank speaks
        state.hear(said, run.clock())
        await screen.picture(2.0)
        panel = run.ranks.options.panel
        await screen.picture(0.2)
        assert run.ranks.options.panel is panel
        if "throttle" in news:
            tell(run, 0, **news)
        else:
            state.hear(msgspec.structs.replace(said, **news), run.clock())
        await screen.picture(0.2)
        assert run.ranks.options.panel is not panel

    on_screen(measure)


def test_a_finding_that_tells_an_age_is_in_the_panel_with_every_picture() -> None:
    async def measure(screen: Screen) -> None:
        hung = Finding(rule="hang", severity="critical", ranks=(0, 1), sentence="rank 0 has stood for 9 s")
        with patch.object(screen.run.app.session.findings, "of", return_value=(hung,)):
            await screen.picture(2.0)
            panel = screen.run.ranks.options.panel
            await screen.picture(0.2)
        assert screen.run.ranks.options.panel is not panel

    on_screen(measure)


def test_pictures_come_as_often_as_the_job_speaks() -> None:
    assert [pace(interval) for interval in (None, 0.1, 0.5, 0.7, 1.0, 30.0)] == [OFTEN, OFTEN, OFTEN, 0.7, RARE, RARE]
    clock = FakeClock()
    flow = Flow(clock)
    flow.answered(flow.sent(0))
    pacer = Pacer(clock, flow, RARE)
    pacer.drawn()
    drawn = []
    for beat in range(1, 9):
        clock.advance(RARE / 2 - (0.005 if beat % 2 else -0.005))
        if pacer.due():
            drawn.append(beat)
            pacer.drawn()
    assert drawn == [2, 4, 6, 8]


def test_the_application_takes_its_pace_from_the_job() -> None:
    async def measure(screen: Screen) -> None:
        app: RanktopApp = screen.run.app
        app.beat()
        assert app.pacer.interval == RARE
        for rank in app.session.ranks:
            tell(screen.run, rank, interval=0.1)
        app.source = None
        app.beat()
        assert app.pacer.interval == OFTEN

    on_screen(measure)
