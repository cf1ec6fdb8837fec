"""The ways to and between the screens of what is out of line, and that every key of them does something."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from dashboard import Dashboard, dashboard
from fake_findings import all_kinds, many, usual_findings
from fake_gpu_jobs import hung_job, oom_job, staged_job
from fake_job import FakeJob, fsdp_job

from ranktop.tui.keys import DIFF_KEYS, EVIDENCE_KEYS, FINDINGS_KEYS, IMBALANCE_KEYS, POSTMORTEM_KEYS, shown_keys
from ranktop.tui.screens.diff import DiffScreen
from ranktop.tui.screens.findings import EvidenceScreen, FindingsScreen
from ranktop.tui.screens.help import HelpScreen
from ranktop.tui.screens.imbalance import ImbalanceScreen
from ranktop.tui.screens.live import LiveScreen
from ranktop.tui.screens.postmortem import PostmortemScreen
from ranktop.tui.screens.ranks import RanksScreen
from ranktop.tui.session.source import Link
from ranktop.tui.view.header import title_line
from ranktop.tui.view.metrics import METRICS


async def press(run: Dashboard, *keys: str) -> str:
    await run.press(*keys)
    assert run.app.trouble == ""
    return run.text()


def job_with_all_kinds() -> FakeJob:
    return replace(hung_job(), findings=all_kinds())


def test_one_key_leads_to_the_findings_from_every_screen_and_back() -> None:
    async def ways() -> None:
        async with dashboard(job_with_all_kinds(), (100, 30)) as run:
            for there in ((), ("d",), ("s",), ("i",), ("c",), ("s", "e"), ("s", "g")):
                text = await press(run, *there)
                assert "the job has stood for 42 s" in "".join(text.splitlines()[-4:]), there
                before = type(run.app.screen)
                await press(run, "exclamation_mark")
                assert isinstance(run.app.screen, FindingsScreen), there
                await press(run, "exclamation_mark")
                assert type(run.app.screen) is before
                while not isinstance(run.app.screen, RanksScreen):
                    await press(run, "escape")
            await press(run, "f", "enter", "exclamation_mark")
            assert isinstance(run.app.screen, FindingsScreen)
            assert len(run.app.screen_stack) == 3, "no screen is there twice"

    asyncio.run(ways())


def test_the_list_and_the_evidence() -> None:
    async def reading() -> None:
        async with dashboard(job_with_all_kinds(), (120, 40)) as run:
            assert "▶✖ 5" in await press(run, "f")
            assert "▶! 3" in await press(run, "j")
            assert "▶· 0-3" in await press(run, "end")
            assert "▶✖ 5" in await press(run, "home", "down", "up")
            text = await press(run, "enter")
            assert "data/loader.py:88                   read_shard" in text
            assert "where rank 5 stands" in text
            assert "memory (activations), rank 3" in await press(run, "right")
            assert "hang (behind), rank 5" in await press(run, "left")
            await press(run, "right", "escape")
            assert "▶! 3" in run.text(), "the list stands where the evidence was left"
            await press(run, "enter", "r")
            assert run.ranks.options.selected == 3
            await press(run, "slash", "1", "enter")
            await press(run, "f", "r")
            assert run.row_of(5).startswith("▶"), "a filter that hides the rank is dropped"
            assert run.ranks.options.filter == ""

    asyncio.run(reading())


def test_a_single_finding_is_told_whole_in_a_small_window() -> None:
    async def whole() -> None:
        job = job_with_all_kinds()
        (one,) = (finding for finding in job.findings if finding.rule == "memory" and finding.ranks == (3,))
        job.findings = (replace(one, sentence=one.sentence * 3, advice=one.advice * 2),)
        async with dashboard(job, (80, 24)) as run:
            text = " ".join((await press(run, "f")).split())
            assert one.advice * 2 in text
            assert "since step 1,166 (90 s ago)" in text

    asyncio.run(whole())


def test_what_the_job_does_never_runs_into_its_name() -> None:
    async def apart() -> None:
        async with dashboard(hung_job(), (80, 24)) as run:
            stalled = replace(run.app.session.snapshot(), state="stalled", step_age=29.0)
            for width in range(16, 120):
                line = title_line("findings", stalled, Link("live", "", 0.2), run.ranks.options, width)
                text = "".join(part for part, _ in line)
                assert len(text) == width
                assert "findings" in text or width < 20
                _, name, right = text.partition("llama8b-sft")
                assert not name or right.startswith("    "), text

    asyncio.run(apart())


def test_keys_for_the_ranks_of_a_finding() -> None:
    async def turning() -> None:
        job = job_with_all_kinds()
        job.findings = tuple(one for one in job.findings if one.rule == "pause")
        async with dashboard(job, (120, 40)) as run:
            assert "enter rank 0" in await press(run, "f", "enter")
            assert "enter rank 1" in await press(run, "tab")
            await press(run, "c")
            assert isinstance(run.app.screen, DiffScreen)
            assert "rank 1 ·" in run.text()
            await press(run, "escape", "d")
            assert run.text().startswith(" rank 1 ")
            await press(run, "escape", "p")
            assert "rank 1 has left no post-mortem" in run.text()
            await press(run, "i")
            assert isinstance(run.app.screen, ImbalanceScreen)

    asyncio.run(turning())


def test_a_finding_that_is_over_says_so_and_stays_readable() -> None:
    async def over() -> None:
        job = job_with_all_kinds()
        async with dashboard(job, (120, 40)) as run:
            await press(run, "f", "enter")
            job.findings = ()
            await run.after(12.0)
            assert "the job has stood for 42 s" in run.text()
            await run.after(3.0)
            assert "over: it was last seen 3.0 s ago" in run.text()
            assert "nothing out of line" in await press(run, "escape")
            await press(run, "enter", "r")
            assert "there is no finding" in run.text()

    asyncio.run(over())


def test_the_grid() -> None:
    async def moving() -> None:
        job = replace(fsdp_job(64), findings=usual_findings(16))
        async with dashboard(job, (100, 30)) as run:
            await press(run, "i")
            chosen = run.ranks_options
            for key, rank in (("right", 1), ("down", 9), ("left", 8), ("left", 8), ("up", 0), ("l", 1), ("end", 63)):
                await press(run, key)
                assert chosen().selected == rank, key
            for key, rank in (("home", 0), ("n", 3), ("n", 6), ("N", 3), ("N", 14), ("n", 3)):
                await press(run, key)
                assert chosen().selected == rank, key
            assert "rank 3 holds" in run.text()
            titles = []
            for _ in METRICS:
                screen = run.app.screen
                assert isinstance(screen, ImbalanceScreen)
                titles.append(METRICS[screen.grid.metric].title)
                assert titles[-1].split()[-1] in await press(run, "m")
            assert len(set(titles)) == len(METRICS) == 9
            await press(run, "left_square_bracket")
            assert "step time" in run.text()
            assert "nodes are its only axes" in await press(run, "x")
            zoomed = await press(run, "enter")
            assert "from peers" in zoomed
            await press(run, "down")
            assert chosen().selected == 4
            assert isinstance((await press(run, "escape"), run.app.screen)[1], ImbalanceScreen)
            await press(run, "enter", "enter")
            assert run.ranks.options.selected == 4

    asyncio.run(moving())


def test_the_grid_by_the_axes_of_the_mesh() -> None:
    async def mesh() -> None:
        async with dashboard(staged_job(), (120, 40)) as run:
            assert "by node and local rank" in await press(run, "i")
            text = await press(run, "x")
            assert "by replica, stage and tensor rank" in text
            assert "d0 s1  28.4   27.9" in text
            await press(run, "n")
            assert run.ranks_options().selected == 13

    asyncio.run(mesh())


def test_two_ranks_side_by_side() -> None:
    async def beside() -> None:
        async with dashboard(fsdp_job(), (120, 40)) as run:
            text = await press(run, "down", "down", "down", "c")
            assert "activations          40.8 GiB" in text
            assert "typical peer" in text
            assert "typical peer" not in await press(run, "n")
            assert "typical peer" in await press(run, "o")
            swapped = await press(run, "tab")
            assert "activations          29.6 GiB" in swapped
            await press(run, "tab", "r")
            assert run.ranks.options.selected == 3

    asyncio.run(beside())


def test_a_post_mortem_is_offered_where_there_is_one() -> None:
    async def dead() -> None:
        async with dashboard(oom_job(), (120, 40)) as run:
            assert "rank 0 has left no post-mortem" in await press(run, "p")
            assert "p: post-mortem" in await press(run, "down", "down", "down")
            text = await press(run, "p")
            assert "asked for 22.0 GiB, free 19.3 GiB, of 79.6 GiB, largest free block 1.2 GiB" in text
            assert "torch/nn/functional.py:3479" in text
            assert text.count("CUDA out of memory") == 1, "what went wrong is told once"
            assert "no other rank has left a post-mortem" in await press(run, "n")
            await press(run, "escape", "f", "enter")
            assert isinstance(run.app.screen, EvidenceScreen)
            await press(run, "p")
            assert isinstance(run.app.screen, PostmortemScreen)
            assert "p post-mortem" in await press(run, "escape", "c")
            await press(run, "p")
            assert isinstance(run.app.screen, PostmortemScreen)

    asyncio.run(dead())


def test_a_frozen_picture_is_frozen_on_all_screens_of_the_stack() -> None:
    async def freezing() -> None:
        async with dashboard(fsdp_job(), (100, 30)) as run:
            before = await press(run, "i", "space")
            assert "FROZEN" in before
            await run.after(20.0)
            assert run.text().splitlines()[1:-1] == before.splitlines()[1:-1]
            assert "FROZEN" in await press(run, "f")
            await press(run, "space", "escape", "escape")
            assert "FROZEN" not in run.text()
            assert all(screen.frozen is None for screen in run.app.screen_stack if isinstance(screen, LiveScreen))

    asyncio.run(freezing())


def test_the_help_of_each_screen_lists_its_keys() -> None:
    async def helps() -> None:
        async with dashboard(oom_job(), (90, 80)) as run:
            ways = (
                (("f",), FINDINGS_KEYS), (("f", "enter"), EVIDENCE_KEYS), (("i",), IMBALANCE_KEYS), (("c",), DIFF_KEYS),
                (("home", "down", "down", "down", "p"), POSTMORTEM_KEYS),
            )  # fmt: skip
            for way, keys in ways:
                text = await press(run, *way, "question_mark")
                assert isinstance(run.app.screen, HelpScreen)
                for key in shown_keys(keys):
                    assert key.group == "back" or key.words in text, key.id
                assert " ranktop  help" in text
                await press(run, "escape")
                while not isinstance(run.app.screen, RanksScreen):
                    await press(run, "escape")

    asyncio.run(helps())


def test_any_size_takes_every_screen() -> None:
    sizes = [(1, 1), (2, 1), (1, 2), (3, 3), (80, 1), (1, 60), (20, 5), (79, 23), (40, 12), (7, 9), (300, 4), (200, 60)]

    async def storm(keys: tuple[str, ...], job: FakeJob) -> None:
        async with dashboard(job, (100, 30)) as run:
            await press(run, *keys)
            for width, height in sizes:
                await run.pilot.resize_terminal(width, height)
                await run.draw()
                assert run.app.trouble == "", (keys, width, height)
                assert all(len(line) <= width for line in run.text().splitlines())
            await run.pilot.resize_terminal(80, 24)
            await run.draw()
            assert "ranktop" in run.text()

    dead = ("down", "down", "down", "p")
    for keys, job in ((("f",), many_job()), (("f", "enter"), job_with_all_kinds()), (("i",), fsdp_job(64)),
                      (("i", "enter"), fsdp_job(16)), (("c",), fsdp_job()), (dead, oom_job())):  # fmt: skip
        asyncio.run(storm(keys, job))


def many_job() -> FakeJob:
    job = fsdp_job()
    job.findings = many(60)
    return job
