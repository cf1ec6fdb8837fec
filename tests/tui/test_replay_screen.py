"""The dashboard on a recording: its keys, its labels on every screen, and the way from live to past and back."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from pathlib import Path

import pytest
from fake_job import fsdp_job
from hand_tape import HandTape, tape
from made_recording import Told, items_of, record
from replayed import Replayed, replayed

from ranktop.tui.keys import KEYS, REPLAY_KEYS, shown_keys
from ranktop.tui.screens.live import LiveScreen
from ranktop.tui.theme import PALETTES
from ranktop.wire.recording_file import RecordingError


@lru_cache
def hung() -> HandTape:
    return tape("hang", 2, seconds=100, start=40)


def lines(run: Replayed) -> list[str]:
    return run.text().splitlines()


def test_it_opens_the_same_dashboard() -> None:
    async def opening() -> None:
        async with replayed(hung(), at=1090.0) as run:
            assert re.search(r"^ REPLAY  SIMULATED .* \d\d:\d\d:\d\d paused$", lines(run)[0])
            assert "holds up all" in run.text()
            assert lines(run)[-1].endswith("1:30 / 1:40")
            assert re.match(r" [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d paused ━+✖━+●─+ ", lines(run)[-1])
            assert run.app.trouble == ""
            rank2 = run.app.session.ranks[2]
            assert rank2.age() == pytest.approx(1090.0 - (rank2.received or 0.0))

    asyncio.run(opening())


def test_every_key_does_something() -> None:
    async def pressing() -> None:
        async with replayed(hung(), at=1050.0) as run:
            await run.press("full_stop")
            assert (run.place, run.player.state()) == (51, "paused")
            await run.press("comma", "comma")
            assert run.place == 49
            await run.press("left_parenthesis")
            assert run.place == 0
            assert "the beginning" in run.text()
            await run.press("right_parenthesis")
            assert run.place == 60
            await run.press("dollar_sign")
            assert (run.place, run.player.state()) == (100, "end")
            await run.press("0")
            assert run.place == 0
            for tenth in range(1, 10):
                await run.press(str(tenth))
                assert run.place == pytest.approx(10 * tenth)
            await run.press("0", "right_curly_bracket")
            begins = run.place
            assert 41 < begins < 60
            assert "hang of rank 2 begins at" in run.text()
            await run.press("right_curly_bracket")
            assert run.place == begins
            assert "no warning or critical finding later" in run.text()
            await run.press("9", "left_curly_bracket")
            assert run.place == begins
            await run.press("greater_than_sign", "greater_than_sign", "less_than_sign")
            assert run.player.deck.head.speed == 2
            assert "speed: 2x (paused; space plays)" in run.text()
            await run.press("space")
            assert run.player.deck.head.playing
            assert "playing at 2x" in run.text()
            await run.press("space")
            assert "paused at" in run.text()
            await run.press("R")
            assert "nothing live to go to" in run.text()

    asyncio.run(pressing())


def test_the_help_names_all_of_them() -> None:
    async def reading() -> None:
        async with replayed(hung(), (100, 80), at=1050.0) as run:
            await run.pilot.press("question_mark")
            await run.pilot.pause()
            text = run.text()
            assert " REPLAY " in text
            assert "freeze" not in text, "a recording is paused"
            for key in REPLAY_KEYS:
                if key.group != "back":
                    assert re.search(rf"^ *{re.escape(key.shown)} +{re.escape(key.words)}", text, re.MULTILINE), key.id

    asyncio.run(reading())


def test_no_screen_uses_a_key_of_the_replay() -> None:
    from ranktop.tui import keys as module

    tables = [getattr(module, name) for name in dir(module) if name.endswith("KEYS") and name != "REPLAY_KEYS"]
    assert len(tables) > 8
    taken = {name for key in REPLAY_KEYS for name in key.keys.split(",")} - {"space"}
    for table in tables:
        assert not taken & {name for key in table for name in key.keys.split(",")}
    assert [key for key in shown_keys(KEYS) if key.group == "replay"]


def test_the_clock_is_the_recordings() -> None:
    async def playing() -> None:
        async with replayed(hung(), at=1010.0) as run:
            await run.press("space")
            await run.beats(3.0)
            assert run.place == pytest.approx(13.0)
            await run.press("greater_than_sign", "greater_than_sign")
            await run.beats(2.0)
            assert run.place == pytest.approx(21.0)
            assert lines(run)[0].endswith(f"{run.player.wall()} 4x")
            await run.press("space")
            before = lines(run)
            await run.beats(600.0, 60.0)
            after = lines(run)
            assert after[:-2] == before[:-2]
            assert after[-1] == before[-1]

    asyncio.run(playing())


SCREENS = {
    "ranks": (), "imbalance": ("i",), "findings": ("f",), "evidence": ("f", "enter"), "device": ("d",), "diff": ("c",),
    "strategies": ("s",), "explain": ("s", "e"), "fit": ("s", "g"), "postmortem": ("p",),
}  # fmt: skip


SIZES = ((80, 24), (120, 40), (40, 10), (20, 4))
LOOKS = list(zip([palette.name for palette in PALETTES] + ["none"], cycle(SIZES), strict=False))


@pytest.mark.parametrize(("palette", "size"), LOOKS)
def test_no_screen_can_be_taken_for_live(palette: str, size: tuple[int, int]) -> None:
    async def looking() -> None:
        async with replayed(hung(), size, palette, at=1090.0) as run:
            for name, keys in SCREENS.items():
                await run.pilot.press(*keys)
                await run.settle()
                assert lines(run)[0].startswith(" REPLAY "), (name, size)
                assert "live" not in lines(run)[0], (name, size)
                assert "freeze" not in lines(run)[-2], (name, size)
                assert "R live" not in lines(run)[-2], "there is nothing live"
                if size[1] >= 5:
                    assert "paused" in lines(run)[-1], (name, size)
                else:
                    assert "●" not in lines(run)[-1]
                if size == (80, 24) and name not in ("explain", "fit"):
                    heads = lines(run)[:4]
                    assert any(line.rstrip().endswith("paused") for line in heads), (name, heads)
                assert run.app.trouble == ""
                while len(run.app.screen_stack) > 2:
                    run.app.pop_screen()
                await run.pilot.pause()

    asyncio.run(looking())


def test_from_live_to_past_and_back() -> None:
    async def turning() -> None:
        async with replayed(hung(), live=fsdp_job(), at=1090.0) as run:
            run.app.drain()
            await run.draw()
            assert "● live" in lines(run)[0]
            await run.pilot.press("comma")
            assert "this is live; R looks back" in run.text()
            await run.pilot.press("space")
            await run.draw()
            assert "FROZEN" in lines(run)[0]
            run.app.replay.open(run.player)
            await run.settle()
            assert lines(run)[0].startswith(" REPLAY ")
            assert "FROZEN" not in run.text()
            assert "hand" not in run.text()
            assert isinstance(run.app.screen, LiveScreen)
            run.app.screen.notice_until = 0.0
            await run.draw()
            assert "R live" in run.text()
            known = run.app.live.ranks[0].received
            run.clock.advance(5.0)
            run.app.drain()
            assert (run.app.live.ranks[0].received or 0) > (known or 0), "new data keeps arriving"
            assert run.app.session is not run.app.live
            await run.pilot.press("R")
            await run.draw()
            assert "live again" in run.text()
            assert "● live" in lines(run)[0]
            assert "REPLAY" not in run.text()
            assert run.app.session is run.app.live
            assert hung().closed

    asyncio.run(turning())


def test_of_a_job_on_another_machine_the_whole_command_is_told() -> None:
    async def turning() -> None:
        async with replayed(hung(), live=fsdp_job(), at=1090.0) as run:
            run.app.replay.close()
            run.app.drain()
            link = run.app.link()
            run.app.link = lambda: replace(link, place="trainer@gpu01.example:2222")  # type: ignore[method-assign]
            await run.pilot.press("R")
            await run.draw()
            command = f"ranktop replay trainer@gpu01.example:2222/{run.app.live.job.id}"  # type: ignore[union-attr]
            assert command in lines(run)[-1]

    asyncio.run(turning())


def test_a_copy_of_a_recording_on_another_machine_is_brought(tmp_path: Path) -> None:
    job = fsdp_job()
    told: list[Told] = [(1.0 + rank, rank, job.card(rank)) for rank in range(4)]
    path = record(job.job, items_of(told), path=tmp_path / "fetched.ranktop")
    answers: list[Path | Exception] = [OSError("no connection to far now"), path]

    def recording(of: str) -> Path:
        assert of == job.job.id
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def turning() -> None:
        async with replayed(hung(), live=job) as run:
            run.app.replay.close()
            run.app.drain()
            link = run.app.link()
            run.app.link = lambda: replace(link, place="far")  # type: ignore[method-assign]
            run.app.source.recording = recording  # type: ignore[union-attr]
            for wanted in (f"ranktop replay far/{job.job.id} (no connection to far now)", "where the copy ends"):
                await run.pilot.press("R")
                deadline = time.monotonic() + 10
                while wanted not in run.text() and time.monotonic() < deadline:
                    await run.pilot.pause(0.02)
                    await run.draw()
                assert wanted in run.text()
            assert lines(run)[0].startswith(" REPLAY ")

    asyncio.run(turning())


def test_a_job_without_a_recording_says_so() -> None:
    async def turning() -> None:
        async with replayed(hung(), live=fsdp_job()) as run:
            run.app.drain()
            await run.pilot.press("R")
            deadline = time.monotonic() + 10
            while "no recording here" not in run.text() and time.monotonic() < deadline:
                await run.pilot.pause(0.02)
                await run.draw()
            assert "this job has no recording here" in run.text()
            assert run.app.source is not None
            run.app.source.state = type(run.app.source.state)(state="live", place="me@gpu01")  # type: ignore[attr-defined]
            await run.pilot.press("R")
            await run.draw()
            assert f"ranktop replay me@gpu01/{run.app.live.job.id}" in run.text()  # type: ignore[union-attr]

    asyncio.run(turning())


def test_a_damaged_recording_is_told_and_closes_nothing() -> None:
    class Damaged(HandTape):
        def items(self, after: float, until: float):  # type: ignore[no-untyped-def]  # noqa: ANN202
            raise RecordingError("the recording is damaged: a part of it is missing")

    async def breaking() -> None:
        sound = hung()
        async with replayed(sound, at=1030.0) as run:
            run.player.deck.tape.__class__ = Damaged
            try:
                await run.pilot.press("1")
                await run.pilot.pause()
                await run.draw()
                assert "a part of it is missing" in run.text()
                assert isinstance(run.app.screen, LiveScreen)
            finally:
                sound.__class__ = HandTape

    asyncio.run(breaking())


def test_it_quits_while_it_plays() -> None:
    async def quitting() -> float:
        async with replayed(hung(), at=1010.0) as run:
            await run.press("space", "greater_than_sign", "greater_than_sign")
            began = time.monotonic()
            await run.pilot.press("q")
            await run.pilot.pause()
            assert run.app.return_code == 0
            return time.monotonic() - began

    assert asyncio.run(quitting()) < 5.0
