"""Waiting for a job, choosing among several, attaching by itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fake_job import FakeClock, FakeSource, fsdp_job
from textual.pilot import Pilot

from ranktop.tui.app import RanktopApp
from ranktop.tui.screens.choose import StartScreen
from ranktop.tui.screens.ranks import RanksScreen
from ranktop.wire.endpoints import Found, JobEntry


def entry(id: str, name: str = "train") -> JobEntry:
    return JobEntry(id=id, name=name, directory=Path("/nowhere"), world_size=8, started=0.0, schema=1, hub_pid=1)


class Machine:
    """What a search finds, and which job was attached to."""

    def __init__(self, *jobs: JobEntry, problems: tuple[str, ...] = ()) -> None:
        self.jobs, self.problems = list(jobs), list(problems)
        self.attached: list[str] = []
        self.clock = FakeClock()

    def find(self) -> Found:
        return Found(list(self.jobs), list(self.problems))

    def connect(self, job: JobEntry) -> FakeSource:
        self.attached.append(job.id)
        return FakeSource(fsdp_job(), self.clock)

    def app(self) -> RanktopApp:
        return RanktopApp(None, find=self.find, connect=self.connect, theme="dark", ascii=False)


def text(app: RanktopApp) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def until(pilot: Pilot[int], condition: Callable[[], bool], seconds: float = 8.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        await pilot.pause(0.02)


def test_waits_tells_how_and_goes_on_by_itself() -> None:
    async def waiting() -> None:
        machine = Machine(problems=("/run/x: mode 755, chmod 700 mends it",))
        app = machine.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "chmod 700" in text(app))
            assert "torchrun --nproc-per-node 8 -m ranktop.agent train.py" in text(app)
            assert "from ranktop.agent import attach; attach(model, optimizer)" in text(app)
            machine.jobs.append(entry("aa"))
            await until(pilot, lambda: isinstance(app.screen, RanksScreen))
            assert machine.attached == ["aa"]

    asyncio.run(waiting())


def test_one_job_is_taken_at_once() -> None:
    async def one() -> None:
        machine = Machine(entry("aa"))
        app = machine.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, RanksScreen))
            await until(pilot, lambda: "llama8b-sft" in text(app))

    asyncio.run(one())


def test_chooses_among_several() -> None:
    async def several() -> None:
        machine = Machine(*(entry(f"job{number}", f"train[red]{number}\x1b[31m") for number in range(40)))
        app = machine.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "several jobs" in text(app))
            assert "train[red]0" in text(app)
            assert "\x1b" not in text(app)
            await pilot.press("down", "down", "down", "up")
            assert machine.attached == []
            await pilot.resize_terminal(3, 2)
            await pilot.resize_terminal(80, 24)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, RanksScreen))
            assert machine.attached == ["job2"]

    asyncio.run(several())


def test_failures_are_shown_and_keys_live_while_the_search_hangs() -> None:
    async def failing() -> None:
        def broken() -> Found:
            raise PermissionError("no [b]entry[/b]")

        app = RanktopApp(None, find=broken, connect=None, theme="dark", ascii=False)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "PermissionError: no [b]entry[/b]" in text(app))
            assert isinstance(app.screen, StartScreen)

    async def hanging() -> float:
        gate = threading.Event()

        def hangs() -> Found:
            gate.wait(20)
            return Found()

        app = RanktopApp(None, find=hangs, connect=None, theme="dark", ascii=False)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            started = time.monotonic()
            await pilot.press("q")
        took = time.monotonic() - started
        gate.set()
        return took

    asyncio.run(failing())
    assert asyncio.run(hanging()) < 1.0
