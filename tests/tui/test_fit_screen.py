"""The screen of the plans that fit: it searches while keys work, and shows what asks for each plan."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from dashboard import Dashboard, dashboard
from fake_job import FakeJob, fsdp_job, host_job
from textual import _time

from ranktop.budget.fit import Search
from ranktop.budget.model import Model
from ranktop.budget.models.catalogue import find
from ranktop.budget.run import Run
from ranktop.tui.keys import FIT_KEYS
from ranktop.tui.screens.fit import FitScreen
from ranktop.tui.screens.help import HelpScreen
from ranktop.tui.screens.ranks import RanksScreen
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import ASCII, UNICODE

G = 2**30
RUN = Run(model=find("gpt2-xl"), world_size=8, micro_batch=4, accumulation=2, sequence_length=1024,
          device_memory=int(31.7 * G))  # fmt: skip


@asynccontextmanager
async def fitting(
    run: Run = RUN,
    present: str = "zero2",
    size: tuple[int, int] = (80, 24),
    *,
    job: FakeJob | None = None,
    theme: str = "dark",
    ascii: bool = False,
    wait: bool = True,
) -> AsyncIterator[Dashboard]:
    """Show the screen on top of a dashboard; ``wait`` until the search has ended."""
    async with dashboard(job or fsdp_job(), size, theme, ascii=ascii) as board:
        screen = FitScreen(run, present, Options(glyphs=ASCII if ascii else UNICODE))
        board.app.push_screen(screen)
        await board.pilot.pause()
        if wait:
            await searched(board, screen)
        yield board


async def searched(board: Dashboard, screen: FitScreen) -> None:
    until = time.monotonic() + 30
    while not (screen.state().done or screen.reason):
        assert time.monotonic() < until, "the search does not end"
        await board.pilot.pause(0.01)
    await shown(board)


async def shown(board: Dashboard) -> None:
    if isinstance(board.app.screen, FitScreen):
        board.app.screen.hurry()
    await board.pilot.pause()


async def press(board: Dashboard, *keys: str) -> str:
    await board.pilot.press(*keys)
    await shown(board)
    return board.text()


def of(board: Dashboard) -> FitScreen:
    screen = board.app.screen
    assert isinstance(screen, FitScreen)
    return screen


def test_a_row_for_every_strategy_that_fits_with_its_numbers() -> None:
    async def looking() -> None:
        async with fitting() as board:
            found = of(board).state().found
            assert found is not None
            lines = board.text().splitlines()
            assert "64 samples a step" in lines[0]
            assert "now: zero2 4×2, checkpointing none: " in lines[1]
            rows = lines[3:]
            for one, row in zip(found.fitting, rows, strict=False):
                assert one.title in row
                assert f"{one.run.micro_batch}×{one.run.accumulation}" in row
                assert f"{one.total / G:.1f}" in row
            assert rows[0].startswith(" ▶")
            assert "at 450 GB/s within a node" in board.text(), "the links of the job's GPUs"

    asyncio.run(looking())


def test_keys_are_answered_while_it_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search goes on and on until the keys have been seen to work."""
    released = False
    whole = Search.__iter__

    def held(search: Search) -> Iterator[None]:
        while not released:
            time.sleep(0.005)  # much of a slice, and little of the CPU
            yield
        yield from whole(search)

    async def typing() -> None:
        nonlocal released
        async with fitting(wait=False) as board:
            screen = of(board)
            assert "searching" in board.text()
            await board.pilot.press("question_mark")
            await board.pilot.pause()
            assert isinstance(board.app.screen, HelpScreen)
            await board.pilot.press("escape")
            await board.pilot.pause()
            assert of(board) is screen
            assert not screen.state().done
            released = True
            await searched(board, screen)
            assert "searching" not in board.text()
            assert " ▶" in board.text()

    monkeypatch.setattr(Search, "__iter__", held)
    asyncio.run(typing())


def test_a_machine_that_is_always_late_does_not_stop_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two looks at the clock Textual's timers lose their turn for longer than a slice pauses."""
    late = 0.0
    right: Callable[[], float] = _time.get_time

    def behind() -> float:
        nonlocal late
        late += 0.01
        return right() + late

    async def looking() -> None:
        async with fitting(wait=False) as board:
            await searched(board, of(board))

    monkeypatch.setattr(_time, "get_time", behind)
    asyncio.run(looking())


def test_leaving_ends_the_search() -> None:
    async def leaving() -> None:
        run = replace(RUN, model=find("llama-3-8b"), world_size=64, device_memory=int(79 * G), accumulation=16)
        async with fitting(run, wait=False) as board:
            screen = of(board)
            await board.pilot.press("escape")
            await board.pilot.pause()
            assert isinstance(board.app.screen, RanksScreen)
            tried = screen.state().found
            await board.pilot.pause(0.1)
            assert screen.state().found is tried
            assert board.app.trouble == ""

    asyncio.run(leaving())


def test_enter_shows_the_lines_and_tab_another_form() -> None:
    async def opening() -> None:
        async with fitting(size=(100, 50)) as board:
            found = of(board).state().found
            assert found is not None
            at = next(i for i, one in enumerate(found.fitting) if one.strategy.startswith("zero"))
            text = await press(board, *["down"] * at, "enter")
            assert "in DeepSpeed's JSON" in text
            assert '"train_batch_size": 64' in text
            assert found.fitting[at].title in text.splitlines()[0]
            if "(tab: Accelerate's YAML)" in text:
                assert "distributed_type: DEEPSPEED" in await press(board, "tab")
            text = await press(board, "escape")
            assert text.splitlines()[3 + at].startswith(" ▶")
            await press(board, "escape")
            assert isinstance(board.app.screen, RanksScreen)

    asyncio.run(opening())


def test_moving_stays_within_the_list_and_lines_scroll() -> None:
    async def moving() -> None:
        async with fitting(size=(80, 12)) as board:
            found = of(board).state().found
            assert found is not None
            last = len(found.fitting) - 1
            text = await press(board, "end")
            assert of(board).chosen.at == last
            assert found.fitting[last].title in next(row for row in text.splitlines() if row.startswith(" ▶"))
            await press(board, "j", "j", "pagedown")
            assert of(board).chosen.at == last
            text = await press(board, "home", "k")
            assert of(board).chosen.at == 0
            assert text.splitlines()[3].startswith(" ▶")
            at = next(i for i, one in enumerate(found.fitting) if one.strategy.startswith("zero"))
            before = await press(board, *["down"] * at, "enter")
            after = await press(board, "down", "down")
            assert before.splitlines()[4] == after.splitlines()[2]

    asyncio.run(moving())


def test_when_nothing_fits_it_says_what_is_nearest() -> None:
    async def failing() -> None:
        run = replace(RUN, world_size=1, device_memory=600 * 2**20, accumulation=1, micro_batch=4)
        async with fitting(run, "single", (100, 30)) as board:
            text = " ".join(board.text().split())
            assert "nothing fits. Nearest is " in text
            assert "too much" in text
            assert "a larger GPU: " in text
            assert "now: single 4×1" in text
            await press(board, "enter", "down", "tab")
            assert "nothing fits" in board.text(), "there is nothing to open"

    asyncio.run(failing())


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (replace(RUN, device_memory=None), "--device-memory or --gpu"),
        (replace(RUN, model=Model(name="x", count=10**9)), "no plan can be judged"),
    ],
)
def test_what_cannot_be_searched_says_why(run: Run, says: str) -> None:
    async def asking() -> None:
        async with fitting(run) as board:
            assert says in " ".join(board.text().split())
            assert isinstance(board.app.screen, FitScreen)
            await press(board, "enter", "tab", "down")
            assert says in " ".join(board.text().split())

    asyncio.run(asking())


def test_help_names_every_key_and_the_columns() -> None:
    async def helping() -> None:
        async with fitting(size=(90, 60)) as board:
            await board.pilot.press("question_mark")
            await board.pilot.pause()
            text = " ".join(board.text().split())
            for key in FIT_KEYS:
                assert f"{key.shown} {key.words}" in text
            for column in ("sent:", "copy:", "again:", "wait:", "lost:"):
                assert column in text

    asyncio.run(helping())


def test_without_unicode_and_without_colour() -> None:
    async def plain() -> None:
        async with fitting(size=(120, 40), theme="none", ascii=True) as board:
            assert board.text().isascii()
            assert board.text().splitlines()[3].startswith(" >")
            text = await press(board, "enter")
            assert text.isascii()
            assert "?" not in text.splitlines()[0], "arrows have a word of their own"

    asyncio.run(plain())


def test_the_key_on_the_strategies_screen_opens_it_for_the_job() -> None:
    async def opening() -> None:
        async with dashboard(fsdp_job()) as board:
            await board.pilot.press("s")
            await board.pilot.pause()
            await board.pilot.press("g")
            await board.pilot.pause()
            screen = of(board)
            await searched(board, screen)
            text = board.text()
            assert "8 samples a step" in text
            assert "now: fsdp-full 1×1, checkpointing none: " in text
            own = next(row for row in text.splitlines() if row[2:].startswith("●"))
            assert "fsdp-full" in own

    asyncio.run(opening())


def test_any_size() -> None:
    async def resizing() -> None:
        async with fitting() as board:
            for opened in (False, True):
                if opened:
                    await press(board, "enter")
                for size in ((1, 1), (3, 2), (12, 5), (30, 8), (80, 10), (200, 60), (20, 40)):
                    await board.pilot.resize_terminal(*size)
                    await shown(board)
                    assert board.app.trouble == "", size
                    rows = board.text().splitlines()
                    assert len(rows) <= size[1]
                    assert all(len(row) <= size[0] for row in rows)

    asyncio.run(resizing())


def test_what_lies_between_nodes_is_as_the_job_has_it() -> None:
    async def looking() -> None:
        job = replace(fsdp_job(), node=lambda rank: f"node{rank // 4}")
        async with fitting(job=job) as board:
            state = of(board).state()
            assert state.several_nodes, "eight ranks, four on a node"
            assert "400 Gb/s between nodes" in board.text()
            assert state.found is not None
            assert all(one.plan.layout.tensor <= 4 for one in state.found.fitting)

    asyncio.run(looking())


def test_a_small_job_on_the_cpu() -> None:
    async def small() -> None:
        async with dashboard(host_job(), (130, 30)) as board:
            await board.pilot.press("s")
            await board.pilot.pause()
            await board.pilot.press("g")
            await board.pilot.pause()
            await searched(board, of(board))
            text = " ".join(board.text().split())
            assert "12.0 GiB of RAM per rank" in text
            assert "GFLOP/s a rank: guesses, the speeds of a CPU job are not known" in text
            assert "fsdp-full" in text
            first = next(row for row in board.text().splitlines() if row.startswith(" ▶"))
            assert "pp2" not in first
            assert board.app.trouble == ""

    asyncio.run(small())
