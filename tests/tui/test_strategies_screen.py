"""The strategies screen: every strategy for the running job, what the keys change, and the explanation behind Enter."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from dashboard import Dashboard, dashboard
from fake_job import FakeJob, fsdp_job, host_job

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.project import project
from ranktop.budget.run import STRATEGIES
from ranktop.tui.keys import STRATEGY_KEYS
from ranktop.tui.screens.explain import ExplainScreen
from ranktop.tui.screens.strategies import StrategiesScreen

GIB = 1024**3


def screen_of(run: Dashboard) -> StrategiesScreen:
    screen = run.app.screen
    assert isinstance(screen, StrategiesScreen)
    return screen


async def computed(run: Dashboard) -> StrategiesScreen:
    """Wait until every row is there."""
    screen = screen_of(run)
    for _ in range(400):
        if len(screen.whatif.rows) + len(screen.whatif.failures) == len(STRATEGIES):
            screen.hurry()
            await run.pilot.pause()
            return screen
        await run.pilot.pause(0.02)
    raise AssertionError("the rows were not computed within 8 seconds")


async def opened(run: Dashboard) -> StrategiesScreen:
    await run.pilot.press("s")
    await run.pilot.pause()
    return await computed(run)


def line_of(run: Dashboard, start: str) -> str:
    return next(line for line in run.text().splitlines() if line[1:].split()[:1] == [start] or line.startswith(start))


def test_the_job_comes_first_with_what_it_measured_under_it() -> None:
    async def first() -> None:
        async with dashboard(fsdp_job(), (120, 40)) as run:
            screen = await opened(run)
            lines = run.text().splitlines()
            assert lines[1].startswith(" as it runs: 8 ranks · batch 1 · 4,096 tokens · bf16-master")
            assert lines[3].split()[:3] == ["▶", "fsdp-full", "exp"]
            assert lines[4].split()[:3] == ["rank", "3", "now"]
            assert "+10.8 end of forward" in lines[4]
            assert len(screen.whatif.rows) == len(STRATEGIES)
            own = screen.whatif.rows["fsdp-full"]
            assert own.rank is not None
            assert own.rank.total is not None
            assert f"{own.rank.total / GIB:.1f}" in lines[3]

    asyncio.run(first())


def test_a_row_is_what_the_planner_says_for_the_same_run() -> None:
    async def rows() -> None:
        async with dashboard(fsdp_job(), (140, 40)) as run:
            screen = await opened(run)
            asked = screen.whatif.asked()
            assert asked is not None
            for name in ("zero3", "ddp", "tp"):
                found = project(asked, name)
                assert found.rank is not None
                assert found.rank.total is not None
                assert f"{found.rank.total / GIB:.1f}" in line_of(run, f"   {name} ")
            assert "-102." in line_of(run, "   single ")

    asyncio.run(rows())


@pytest.mark.parametrize(
    ("key", "words", "back"),
    [("w", "16 ranks", "W"), ("b", "batch 2", "B"), ("l", "8,192 tokens", "L"), ("p", "bf16 ", "P"),
     ("c", "checkpointing selective", "C"), ("o", "adamw8bit", "O"), ("f", "FSDP offload cpu", "F")],
)  # fmt: skip
def test_a_key_changes_what_is_asked_and_its_capital_takes_it_back(key: str, words: str, back: str) -> None:
    async def changing() -> None:
        async with dashboard(fsdp_job(), (140, 40)) as run:
            screen = await opened(run)
            before = line_of(run, " ▶ fsdp-full")
            await run.pilot.press(key)
            await computed(run)
            question = run.text().splitlines()[1]
            assert question.startswith(" what if: ")
            assert words.strip() in question
            assert line_of(run, " ▶ fsdp-full") != before
            await run.pilot.press(back)
            await computed(run)
            assert not screen.whatif.changes
            assert line_of(run, " ▶ fsdp-full") == before

    asyncio.run(changing())


def test_changes_add_up_and_one_key_drops_them() -> None:
    async def adding() -> None:
        async with dashboard(fsdp_job(), (140, 40)) as run:
            screen = await opened(run)
            await run.pilot.press("b", "c", "w")
            await computed(run)
            assert (screen.whatif.changes.micro_batch, screen.whatif.changes.checkpointing) == (2, "selective")
            assert screen.whatif.changes.world_size == 16
            await run.pilot.press("x")
            await computed(run)
            assert not screen.whatif.changes
            assert run.text().splitlines()[1].startswith(" as it runs: ")

    asyncio.run(adding())


def test_enter_explains_and_escape_goes_back() -> None:
    async def explaining() -> None:
        async with dashboard(fsdp_job()) as run:
            await opened(run)
            await run.pilot.press("down", "enter")
            await run.pilot.pause()
            assert isinstance(run.app.screen, ExplainScreen)
            assert run.text().splitlines()[0].startswith(" single")
            before = run.text()
            await run.pilot.press("pagedown")
            await run.pilot.pause()
            assert run.text() != before
            await run.pilot.press("escape")
            await run.pilot.pause()
            assert screen_of(run).choice.at == 1
            await run.pilot.press("escape")
            await run.pilot.pause()
            assert run.ranks

    asyncio.run(explaining())


def test_every_key_at_any_size_leaves_no_trouble() -> None:
    async def storm() -> None:
        async with dashboard(fsdp_job(), (80, 24)) as run:
            await opened(run)
            for width, height in ((1, 1), (30, 8), (80, 24), (200, 60), (3, 40), (60, 3)):
                await run.pilot.resize_terminal(width, height)
                await run.pilot.pause()
                screen_of(run).hurry()
                assert run.app.trouble == ""
            for key in STRATEGY_KEYS:
                if key.action in ("back", "explain", "fit"):
                    continue
                await run.pilot.press(key.keys.split(",")[0])
                await run.pilot.pause()
                assert run.app.trouble == "", key
            await run.pilot.resize_terminal(80, 60)
            await run.pilot.press("question_mark")
            await run.pilot.pause()
            assert "twice the ranks" in run.text()

    asyncio.run(storm())


def test_a_small_job_on_a_host_and_without_colour() -> None:
    async def small() -> str:
        async with dashboard(host_job(), (80, 24), ascii=True) as run:
            await opened(run)
            return run.text()

    text = asyncio.run(small())
    assert text.isascii()
    assert "MiB" in text
    lines = text.splitlines()
    assert "fsdp-full" in lines[3]
    # What other processes hold on a host is nobody's plan: expected and measured bars are equally long.
    expected, measured = (sum(cell.isalpha() for cell in line[29:51]) for line in lines[3:5])
    assert abs(expected - measured) <= 1


def test_a_model_of_no_known_architecture_is_projected_per_token_and_says_what_it_cannot() -> None:
    def odd() -> FakeJob:
        job = host_job()
        kinds = [Kind((513, 77), "float32", unit=unit) for unit in range(5)]
        return replace(job, inventory=Inventory.of(kinds), model="Odd")

    async def unknown() -> tuple[str, StrategiesScreen]:
        async with dashboard(odd(), (120, 40)) as run:
            screen = await opened(run)
            return run.text(), screen

    text, screen = asyncio.run(unknown())
    tensor = screen.whatif.rows["tp"]
    assert "architecture is not known" in tensor.refused
    assert "architecture is not known" in text
    ddp = screen.whatif.rows["ddp"]
    assert ddp.rank is not None
    assert ddp.rank.total is not None


def test_a_strategy_that_cannot_be_computed_costs_its_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import ranktop.budget.project

    whole = ranktop.budget.project.project

    def broken(run: object, strategy: str) -> object:
        if strategy == "zero2":
            raise ZeroDivisionError("nothing to divide")
        return whole(run, strategy)  # type: ignore[arg-type]

    monkeypatch.setattr(ranktop.budget.project, "project", broken)

    async def one() -> str:
        async with dashboard(fsdp_job(), (100, 30)) as run:
            await opened(run)
            return line_of(run, "   zero2 ")

    assert "ZeroDivisionError: nothing to divide" in asyncio.run(one())
