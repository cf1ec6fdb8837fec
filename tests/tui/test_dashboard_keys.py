"""Every key of the ranks screen does something that can be seen, and the help names it."""

from __future__ import annotations

import asyncio

import pytest
from dashboard import Dashboard, dashboard
from fake_job import fsdp_job, host_job

from ranktop.tui.keys import KEYS
from ranktop.tui.screens.help import HelpScreen
from ranktop.tui.screens.ranks import RanksScreen
from ranktop.tui.theme import PALETTES


async def selected(run: Dashboard) -> int | None:
    return run.ranks.options.selected


def test_moving() -> None:
    async def moving() -> None:
        async with dashboard(fsdp_job(64)) as run:
            for key, rank in (("down", 1), ("j", 2), ("up", 1), ("k", 0), ("k", 0), ("end", 63), ("j", 63)):
                await run.press(key)
                assert await selected(run) == rank, key
                assert run.row_of(rank).startswith("▶")
            await run.press("home")
            assert await selected(run) == 0
            await run.press("pagedown")
            first = await selected(run)
            assert first is not None
            assert 2 <= first < 63
            await run.press("pageup")
            assert await selected(run) == 0

    asyncio.run(moving())


def test_sort_and_reverse() -> None:
    async def sorting() -> None:
        async with dashboard(fsdp_job()) as run:
            await run.press("o")
            table = run.ranks.last
            assert table is not None
            assert [row.view.rank for row in table.table.rows[:2]] == [3, 6]
            assert "▼GiB" in run.text()
            assert "sorted by used" in run.text()
            await run.press("O")
            assert "▲GiB" in run.text()
            assert run.ranks.last is not None
            used = [row.used("device") or 0 for row in run.ranks.last.table.rows]
            assert used == sorted(used)
            assert await selected(run) == 0

    asyncio.run(sorting())


def test_filter_by_rank_device_and_state() -> None:
    async def filtering() -> None:
        async with dashboard(fsdp_job(16)) as run:
            await run.press("slash", *"node2")
            assert "8 of 16 ranks" in run.text()
            await run.press("enter")
            assert "filter: node2" in run.text()
            await run.press("down")
            assert await selected(run) == 9
            await run.press("escape")
            assert "of 16 ranks" not in run.text()
            await run.press("slash", "exclamation_mark", "enter")
            assert run.ranks.last is not None
            assert [row.view.rank for row in run.ranks.last.table.rows] == [3, 6, 11, 14]
            await run.press("escape", "slash", *"nowhere", "enter")
            assert "no rank passes the filter" in run.text()

    asyncio.run(filtering())


def test_typed_letters_are_no_keys() -> None:
    async def typing() -> None:
        async with dashboard(fsdp_job()) as run:
            await run.press("slash", *"sqtx", "backspace")
            assert run.ranks.options.filter == "sqt"
            assert "filter: sqt" in run.text().splitlines()[-1]
            await run.press("ctrl+u")
            assert run.ranks.options.filter == ""
            await run.press("x", "escape")
            assert run.ranks.options.filter == ""
            assert not run.ranks.options.typing
            assert run.ranks.options.sort == "rank"
            assert run.app.is_running

    asyncio.run(typing())


def test_freeze_keeps_the_picture() -> None:
    async def freezing() -> None:
        async with dashboard(fsdp_job()) as run:
            await run.press("space")
            before = run.text().splitlines()
            assert "FROZEN" in before[0]
            await run.after(30.0)
            after = run.text().splitlines()
            assert after[1:-1] == before[1:-1]
            assert "30 s ago" in after[-1]
            await run.press("space")
            assert "FROZEN" not in run.text()
            assert "live again" in run.text()
            await run.after(5.0)
            assert run.text().splitlines()[2:-1] != before[2:-1]

    asyncio.run(freezing())


def test_moments() -> None:
    async def moments() -> None:
        async with dashboard(fsdp_job()) as run:
            titles = []
            for _ in range(7):
                await run.press("m")
                titles.append(run.ranks.options.moment)
            assert titles == ["step_start", "forward_end", "backward_start", "backward_end", "step_end", "now", "peak"]
            await run.press("left_square_bracket")
            assert run.ranks.options.moment == "now"
            assert " now " in run.text()
            await run.press("right_square_bracket", "m")
            assert "  start of the step\n" in run.text()
            activations = next(line for line in run.text().splitlines() if "activations " in line)
            # Between the steps there are tokens and library workspaces, as expected.
            assert activations.count("0.06") == 2

    asyncio.run(moments())


def test_scale() -> None:
    async def scaling() -> None:
        async with dashboard(host_job(), (120, 24)) as run:
            assert "process: 500 MiB of 24 GiB" in run.text().splitlines()[1]
            assert "█" in run.row_of(0)
            await run.press("z")
            assert run.ranks.options.zoom == "device"
            assert "24 GiB" in run.text().splitlines()[1]
            # 135 MiB of 24 GiB are less than a cell: nothing is expected there that could be seen.
            assert "█" not in run.row_of(0)
            await run.press("z")
            assert "process" in run.text().splitlines()[1]
            await run.press("z")
            assert "tensors" in run.text().splitlines()[1]

    asyncio.run(scaling())


def test_detail_pages_and_rules() -> None:
    async def pages() -> None:
        async with dashboard(fsdp_job()) as run:
            assert "collectives" in run.text()
            await run.press("tab")
            assert "slowed by" in run.text()
            await run.press("tab")
            assert "LlamaForCausalLM" in run.text()
            await run.press("tab")
            assert "Llama-like" in run.text()
            await run.press("e")
            assert "collectives" in run.text()
            await run.press("e")
            assert "FSDP2" in run.text().split("expected measured")[1]
            await run.press("enter")
            assert "expected measured" not in run.text()
            await run.press("enter")
            assert "expected measured" in run.text()

    asyncio.run(pages())


def test_themes_go_round() -> None:
    async def themes() -> None:
        async with dashboard(fsdp_job()) as run:
            seen = []
            for _ in PALETTES:
                seen.append(run.app.palette.name)
                before = run.painted()
                await run.press("t")
                assert run.painted() != before
                assert f"theme: {run.app.palette.name}" in run.text()
            assert seen == [palette.name for palette in PALETTES]
            assert run.app.palette is PALETTES[0]

    asyncio.run(themes())


def test_help_names_every_key_and_goes_back() -> None:
    async def help_screen() -> None:
        async with dashboard(fsdp_job(), (84, 60)) as run:
            await run.press("question_mark")
            assert isinstance(run.app.screen, HelpScreen)
            text = run.text()
            for key in KEYS:
                assert f"  {key.shown:<10}{key.words}" in text, key.id
            await run.press("escape")
            assert isinstance(run.app.screen, RanksScreen)
            await run.press("question_mark")
            assert run.app.screen.styles.background.a == 1, "what lies below would be drawn and sent again"

    asyncio.run(help_screen())


def test_help_scrolls_where_it_does_not_fit() -> None:
    async def scrolling() -> None:
        async with dashboard(fsdp_job(), (60, 12)) as run:
            await run.press("question_mark")
            assert "quit, also while typing" not in run.text()
            await run.press("pagedown", "pagedown", "pagedown", "pagedown")
            assert "quit, also while typing" in run.text()
            await run.press("up", "question_mark")
            assert isinstance(run.app.screen, RanksScreen)

    asyncio.run(scrolling())


@pytest.mark.parametrize("keys", [("q",), ("ctrl+c",), ("slash", "x", "ctrl+c"), ("question_mark", "q")], ids=str)
def test_quitting(keys: tuple[str, ...]) -> None:
    async def quitting() -> int | None:
        async with dashboard(fsdp_job()) as run:
            await run.pilot.press(*keys)
            await run.pilot.pause()
            return run.app.return_code

    assert asyncio.run(quitting()) == 0


def test_bindings_have_ids_and_no_two_share_a_key() -> None:
    names = [name for key in KEYS for name in key.keys.split(",")]
    assert len(names) == len(set(names))
    assert len({key.id for key in KEYS}) == len(KEYS)
