"""Ranks that died, fell silent or lost their device look different; nothing closes the dashboard."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from dashboard import Dashboard, dashboard
from fake_job import FakeJob, fsdp_job, host_job
from textual.geometry import Size

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.live import NOT_RECOGNISED
from ranktop.tui.session.source import Link, Received, Reset
from ranktop.wire.schema import End


def test_every_state_has_its_own_words() -> None:
    async def states() -> dict[int, str]:
        job = fsdp_job()
        job.absent.add(7)
        async with dashboard(job, (120, 30)) as run:
            job.ends[0] = End(rank=0, how="signal", code=9, detail="SIGKILL")
            job.ends[1] = End(rank=1, how="exception", code=1, detail="OutOfMemoryError: CUDA out of memory")
            job.ends[2] = End(rank=2, how="exit", code=0)
            job.ends[5] = End(rank=5, how="vanished")
            job.lost.add(3)
            job.no_answer.add(4)
            job.silent.add(6)
            await run.after(4.0)
            await run.after(8.0)
            return {rank: run.row_of(rank) for rank in range(8)}

    rows = asyncio.run(states())
    words = {0: "✗ SIGKILL", 1: "✗ out of memory", 2: "✓ ended", 3: "✗ GPU lost 12s", 4: "? no answer 12s",
             5: "✗ vanished", 6: "? silent 12 s", 7: "· not seen yet"}  # fmt: skip
    for rank, word in words.items():
        assert word in rows[rank]
    # The last picture of a dead rank stays; one that was never seen has none.
    assert "48.1" in rows[0]
    assert "55.0" in rows[6]
    assert "█" not in rows[7]


def test_an_end_is_told_whole() -> None:
    async def end() -> str:
        job = fsdp_job()
        async with dashboard(job, (120, 40)) as run:
            job.ends[0] = End(rank=0, how="exception", code=1, detail="ValueError: [bold]x[/bold]\x1b[31m\nnext")
            await run.after(2.0)
            return run.text()

    text = asyncio.run(end())
    assert "rank 0 failed (exit code 1): ValueError: [bold]x[/bold] next" in text
    assert "\x1b" not in text


LOST = "Connection closed by peer [127.0.0.1]:41273. This may be caused by a crash of the other process."


@pytest.mark.parametrize(
    ("detail", "tells"),
    [
        (f"RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] {LOST}", LOST),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: not enough memory: you "
         "tried to allocate 4398046511104 bytes.", "DefaultCPUAllocator: not enough memory"),
        ("DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, remote process exited",
         "NCCL error remote process exited"),
        ("ValueError: [1, 2] is not in [4, 5]", "[1, 2] is not in [4, 5]"),
    ],
)  # fmt: skip
def test_what_went_wrong_is_not_lost_behind_where_a_library_raised_it(detail: str, tells: str) -> None:
    async def end(size: tuple[int, int]) -> str:
        job = fsdp_job()
        async with dashboard(job, size) as run:
            job.ends[0] = End(rank=0, how="exception", code=1, detail=detail)
            await run.after(2.0)
            text = run.text()
            assert all(len(line) <= size[0] for line in text.splitlines())
            return text

    wide = asyncio.run(end((120, 40)))
    assert tells in " ".join(wide.split())
    assert "third_party" not in wide
    narrow = asyncio.run(end((80, 24)))
    beside = " ".join(line[51:].strip() for line in narrow.splitlines())
    assert tells in " ".join(beside.split())


def test_stale_values_show_their_age() -> None:
    text = asyncio.run(silent_for_9_seconds(Link(state="live", age=0.2)))
    assert "live, data 9.0 s old" in text.splitlines()[0]
    assert "values are 9.0 s old" in text
    assert text.count("? silent 9.0 s") == 8


def test_a_lost_link_shows_its_age_and_calls_no_rank_silent() -> None:
    text = asyncio.run(silent_for_9_seconds(Link(state="lost", age=9.0)))
    assert "! link lost 9.0 s" in text.splitlines()[0]
    assert "silent" not in text


async def silent_for_9_seconds(link: Link) -> str:
    job = fsdp_job()
    async with dashboard(job) as run:
        job.silent.update(range(8))
        run.source.state = link
        await run.after(9.0)
        return run.text()


def test_stalled_and_ended_jobs_say_so() -> None:
    async def headers() -> list[str]:
        job = fsdp_job(2)
        async with dashboard(job) as run:
            job.silent.update(range(2))
            await run.after(40.0)
            seen = [run.text().splitlines()[0]]
            job.ends.update({rank: End(rank=rank, how="exit", code=0) for rank in range(2)})
            await run.after(1.0)
            return [*seen, run.text().splitlines()[0]]

    stalled, ended = asyncio.run(headers())
    assert "! stalled 40 s" in stalled
    assert "✓ ended   ○ link to ended job" in ended
    assert "live" not in ended


def test_which_rank_broke_an_ended_job_is_told_where_it_is_narrow_too() -> None:
    async def ended() -> str:
        job = fsdp_job(2)
        async with dashboard(job) as run:
            job.ends[0] = End(rank=0, how="exit", code=3, detail="exit code 3")
            job.ends[1] = End(rank=1, how="signal", code=15, detail="SIGTERM")
            await run.after(1.0)
            return run.text()

    text = asyncio.run(ended())
    assert text.splitlines()[0].endswith("✗ ended: rank 0 exit code 3   ○ link to ended job")
    assert "rank 0 failed (exit code 3)\n" in text, "once is enough"


def test_a_replaced_hub_is_told() -> None:
    async def told() -> str:
        async with dashboard(fsdp_job()) as run:
            run.source.extra.append(Reset(run.source.script.job, "hub-2", True))
            run.source.sent = -1
            await run.after(1.0)
            return run.text()

    assert "hub replaced" in asyncio.run(told()).splitlines()[-1]


def test_a_failing_source_is_shown_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Received | Reset]:
        raise RuntimeError("the [red]wire[/red] is cut")

    async def failing() -> str:
        async with dashboard(host_job()) as run:
            monkeypatch.setattr(run.source, "drain", broken)
            await run.after(1.0)
            assert run.app.is_running
            return run.text()

    text = asyncio.run(failing())
    assert "! RuntimeError: the [red]wire[/red] is cut" in text.splitlines()[-1]
    assert "135.10" in text


def test_what_cannot_be_shown_of_a_search_is_told_and_closes_nothing() -> None:
    def refused(_: object) -> None:
        raise RuntimeError("the recording is damaged")

    async def failing() -> str:
        async with dashboard(host_job()) as run:
            run.app.in_background(lambda: None, refused)
            for _ in range(500):
                if run.app.trouble:
                    break
                await asyncio.sleep(0.01)
            await run.draw()
            assert run.app.is_running
            return run.text().splitlines()[-1]

    assert "! RuntimeError: the recording is damaged" in asyncio.run(failing())


def test_resize_storm() -> None:
    sizes = [(1, 1), (2, 1), (1, 2), (3, 3), (80, 1), (1, 60), (20, 5), (79, 23), (200, 60), (40, 12), (7, 9), (300, 4)]

    async def storm() -> None:
        async with dashboard(fsdp_job(16)) as run:
            run.app.session.snapshot()
            for detail in (True, False):
                run.ranks.options.detail = detail
                for width, height in sizes:
                    await run.pilot.resize_terminal(width, height)
                    await run.draw()
                    assert run.app.trouble == ""
                    assert run.app.screen.size == Size(width, height)
                    assert all(len(line) <= width for line in run.text().splitlines())
                await run.press("question_mark")
                await run.pilot.resize_terminal(1, 1)
                await run.press("escape")
            await run.pilot.resize_terminal(80, 24)
            await run.draw()
            assert "live" in run.text()

    asyncio.run(storm())


@pytest.mark.timeout(60)
def test_thousands_of_ranks_scroll() -> None:
    async def many() -> None:
        job = fsdp_job(8)
        big = fsdp_job(8)
        big.specs = {rank: job.specs[rank % 8] for rank in range(2048)}
        big.history_seconds = 0
        async with dashboard(big, (100, 30), budgets=False) as run:
            await run.press("end")
            assert run.ranks.options.selected == 2047
            assert "▶ 2047" in run.text()
            assert "of 2048" in run.text()
            await run.press("pageup", "s")
            assert run.app.trouble == ""

    asyncio.run(many())


async def _unchanged(run: Dashboard) -> int:
    """Draw again at the same time and return how many lines were sent anew."""
    screen = run.ranks
    return sum(screen.parts[name].show(lines, run.app.palette) for name, lines in screen.content().items())


def test_nothing_is_sent_when_nothing_changed() -> None:
    async def quiet() -> tuple[int, int]:
        async with dashboard(fsdp_job()) as run:
            nothing = await _unchanged(run)
            run.clock.advance(1.0)
            run.app.drain()
            return nothing, await _unchanged(run)

    nothing, something = asyncio.run(quiet())
    assert nothing == 0
    assert 0 < something <= 24


def test_a_broken_job_names_the_rank_that_broke_it() -> None:
    async def broken() -> str:
        job = fsdp_job(4)
        async with dashboard(job, (120, 24)) as run:
            job.ends[2] = End(rank=2, how="signal", code=9, detail="SIGKILL")
            await run.after(1.0)
            job.ends.update({rank: End(rank=rank, how="signal", code=15, detail="SIGTERM") for rank in (0, 1, 3)})
            await run.after(1.0)
            return run.text().splitlines()[0]

    assert "✗ ended: rank 2 SIGKILL" in asyncio.run(broken())


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (120, 60)])
def test_what_is_not_expected_says_why(size: tuple[int, int]) -> None:
    async def unknown(job: FakeJob) -> str:
        async with dashboard(job, size) as run:
            return " ".join(run.text().split())

    odd = Inventory.of([Kind((513, 77), "float32", unit=unit) for unit in range(5)])
    text = asyncio.run(unknown(replace(host_job(), inventory=odd, model="Odd")))
    assert f"no expected activations: {NOT_RECOGNISED}" in text
    assert "no expected" not in asyncio.run(unknown(host_job()))
