"""The device screen on a running dashboard: its keys, that it is live, that it survives any size, and the list."""

from __future__ import annotations

import asyncio

import pytest
from dashboard import Dashboard, dashboard
from fake_gpu_jobs import mig_job, stray_job
from fake_job import fsdp_job, host_job

from ranktop.tui.keys import DEVICE_KEYS
from ranktop.tui.screens.device import DeviceScreen
from ranktop.tui.screens.help import HelpScreen
from ranktop.tui.screens.ranks import RanksScreen
from ranktop.tui.theme import PALETTES


async def draw(run: Dashboard) -> str:
    screen = run.app.screen
    assert isinstance(screen, DeviceScreen)
    screen.hurry()
    await run.pilot.pause()
    assert run.app.trouble == ""
    return run.text()


def test_one_key_leads_in_and_others_back_and_the_rank_stays_chosen() -> None:
    async def keys() -> None:
        async with dashboard(fsdp_job(), (120, 40)) as run:
            for back in ("escape", "d", "r"):
                await run.press("home", "down", "d")
                assert (await draw(run)).startswith(" rank 1 · node1 · cuda:1 · NVML 3")
                for key, rank in (("n", 2), ("right", 3), ("p", 2), ("left", 1), ("left", 0), ("left", 0), ("n", 1)):
                    await run.pilot.press(key)
                    assert (await draw(run)).startswith(f" rank {rank} "), key
                await run.press("n", back)
                assert run.ranks.options.selected == 2

    asyncio.run(keys())


def test_lines_that_have_no_room_are_scrolled_to() -> None:
    async def scrolling() -> None:
        async with dashboard(fsdp_job(), (80, 24)) as run:
            await run.press("d")
            first = await draw(run)
            assert "not known" not in first
            assert " of 3" in first.splitlines()[-1]
            await run.pilot.press("end")
            last = await draw(run)
            assert "RANKTOP_GPM=1 turns it on" in " ".join(last.split())
            assert last.splitlines()[0] == first.splitlines()[0], "the names stay"
            await run.pilot.press("home", "down", "up", "pagedown", "pageup")
            assert (await draw(run)) == first

    asyncio.run(scrolling())


def test_it_is_live_and_sends_only_what_changed() -> None:
    async def living() -> None:
        async with dashboard(fsdp_job(), (120, 40)) as run:
            await run.press("d")
            before = await draw(run)
            screen = run.app.screen
            assert isinstance(screen, DeviceScreen)
            assert screen.parts["text"].show(screen.content()["text"], run.app.palette) == 0
            run.clock.advance(3.0)
            run.app.drain()
            changed = screen.parts["text"].show(screen.content()["text"], run.app.palette)
            assert 0 < changed <= 8, "step, utilisation, power, clocks"
            assert (await draw(run)) != before

    asyncio.run(living())


def test_a_condition_ends_on_screen_when_it_ends() -> None:
    async def ending() -> tuple[str, str, str]:
        job = fsdp_job()
        async with dashboard(job, (120, 40)) as run:
            await run.press("d")
            sound = await draw(run)
            job.lost.add(0)
            await run.after(2.0)
            lost = await draw(run)
            job.lost.clear()
            await run.after(2.0)
            return sound, lost, await draw(run)

    sound, lost, again = asyncio.run(ending())
    assert "✗ GPU lost 12s" in lost.splitlines()[1]
    assert "lost" not in sound + again


def test_freezing_stands_for_both_screens() -> None:
    async def freezing() -> None:
        async with dashboard(fsdp_job(), (120, 40)) as run:
            await run.press("d")
            await run.pilot.press("space")
            before = await draw(run)
            assert "FROZEN" in before.splitlines()[1]
            await run.after(5.0)
            assert (await draw(run)).splitlines()[2:-1] == before.splitlines()[2:-1]
            await run.press("escape")
            assert "FROZEN" in run.text().splitlines()[0]
            await run.press("d")
            await run.pilot.press("space", "escape")
            await run.draw()
            assert "FROZEN" not in run.text()

    asyncio.run(freezing())


def test_help_names_every_key() -> None:
    async def help_screen() -> None:
        async with dashboard(fsdp_job(), (84, 40)) as run:
            await run.press("d")
            await run.pilot.press("question_mark")
            await run.pilot.pause()
            assert isinstance(run.app.screen, HelpScreen)
            text = run.text()
            for key in DEVICE_KEYS:
                assert f"  {key.shown:<10}{key.words}" in text, key.id
            assert "Ctrl+C" in text, "all of it fits"
            await run.pilot.press("escape", "escape")
            await run.pilot.pause()
            assert isinstance(run.app.screen, RanksScreen)

    asyncio.run(help_screen())


def test_bindings_have_ids_and_no_two_share_a_key() -> None:
    names = [name for key in DEVICE_KEYS for name in key.keys.split(",")]
    assert len(names) == len(set(names))
    assert len({key.id for key in DEVICE_KEYS}) == len(DEVICE_KEYS)


@pytest.mark.parametrize("ascii", [False, True])
def test_any_size_and_theme(ascii: bool) -> None:
    async def storm() -> None:
        async with dashboard(stray_job(), ascii=ascii) as run:
            await run.press("d")
            for width, height in ((1, 1), (2, 2), (3, 9), (20, 5), (75, 23), (76, 24), (120, 40), (300, 4)):
                await run.pilot.resize_terminal(width, height)
                text = await draw(run)
                assert all(len(line) <= width for line in text.splitlines())
                assert text.isascii() or not ascii
            for _ in PALETTES:
                await run.pilot.press("t")
                await draw(run)

    asyncio.run(storm())


def test_the_list_flags_the_gpu_that_others_are_on_and_not_the_others() -> None:
    async def flagged() -> None:
        async with dashboard(stray_job(), (120, 40)) as run:
            assert "! 7 strays" in run.row_of(0)
            for rank in (1, 2, 4, 5, 7):
                assert run.row_of(rank).endswith("  ok")
            text = run.text()
            assert (
                "! ranks 1-7 hold 3.6 GiB on the GPU of rank 0: set_device missing, or torch.load without map_location"
                in text
            )
            other = next(line for line in text.splitlines() if line.startswith(" ■ other "))
            assert "ranks 1-7" in other
            await run.press("down", "down")
            assert "! rank 2 also holds 520.0 MiB on rank 0's GPU" in run.text()
            await run.press("slash", "exclamation_mark", "enter")
            assert run.ranks.last is not None
            assert [row.view.rank for row in run.ranks.last.table.rows] == [0, 3, 6]

    asyncio.run(flagged())


def test_a_slowed_or_ailing_gpu_is_flagged_where_nothing_else_is() -> None:
    async def flagged() -> list[str]:
        job = fsdp_job()
        job.reading_changes[1] = {"throttle": ("hardware thermal slowdown",)}
        job.reading_changes[2] = {"throttle": ("hardware power brake",)}
        job.reading_changes[3] = {"throttle": ("hardware thermal slowdown",)}
        job.detail_changes[4] = {"ecc_uncorrected": 2}
        job.detail_changes[5] = {"recovery": "reset"}
        async with dashboard(job, (120, 40)) as run:
            return [run.row_of(rank) for rank in range(6)]

    rows = asyncio.run(flagged())
    words = ("  ok", "! too hot", "! power brake", "! act +38%", "! ECC errors", "! reset asked")
    for row, word in zip(rows, words, strict=True):
        assert row.endswith(word)


def test_old_readings_say_so_where_there_is_room() -> None:
    async def aged() -> tuple[str, str]:
        job = fsdp_job()
        job.reading_changes[1] = {"ages": {"power": 12.0}}
        job.reading_changes[2] = {"utilization": 0, "power": None}
        async with dashboard(job, (200, 40)) as run:
            return run.row_of(1), run.row_of(2)

    old, zero = asyncio.run(aged())
    assert old.endswith("  ok, GPU 12 s old")
    assert "   0%     –" in zero


def test_mig_instances_are_named_in_their_column() -> None:
    async def named() -> str:
        async with dashboard(mig_job(), (160, 40)) as run:
            return run.text()

    text = asyncio.run(named())
    assert "cuda:0 MIG 0" in text
    assert "cuda:0 MIG 2" in text
    assert "not known: utilization: not told for a MIG instance" in text


def test_a_host_tells_what_it_has() -> None:
    async def host() -> tuple[str, str]:
        async with dashboard(host_job(), (120, 40)) as run:
            await run.press("tab")
            side = run.text()
            await run.press("d")
            return side, await draw(run)

    side, whole = asyncio.run(host())
    assert "free RAM  18.6 GiB of 24.0 GiB" in side
    assert "others on the host" in whole
    assert "allocator: malloc" in whole
    for word in ("NVLink", "PCIe", "power", "None"):
        assert word not in whole
