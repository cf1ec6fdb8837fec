"""Screens as text and as a map of styles. ``RANKTOP_UPDATE_GOLDEN=1`` writes them anew; read the diff."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from dashboard import dashboard
from fake_job import FakeJob, fsdp_job, host_job

SCREENS = Path(__file__).parent / "screens"
UPDATE = os.environ.get("RANKTOP_UPDATE_GOLDEN") == "1"


def compare(name: str, text: str) -> None:
    path = SCREENS / f"{name}.txt"
    if UPDATE:
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing: run once with RANKTOP_UPDATE_GOLDEN=1"
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()


async def picture(job: FakeJob, size: tuple[int, int], *keys: str, theme: str = "dark", ascii: bool = False) -> str:
    async with dashboard(job, size, theme, ascii=ascii) as run:
        await run.press(*keys)
        await run.after(4.0)
        return run.painted()


@pytest.fixture(autouse=True)
def colour(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_FILTERS"):
        monkeypatch.delenv(name, raising=False)


SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_ranks_in_colour(size: tuple[int, int]) -> None:
    width, height = size
    text = asyncio.run(picture(fsdp_job(), size, "down", "down", "down"))
    compare(f"ranks-{width}x{height}", text)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_ranks_without_colour(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    width, height = size
    text = asyncio.run(picture(fsdp_job(), size, "down", "down", "down"))
    legend = text.rsplit("\n\n", 1)[1]
    assert "#" not in legend
    assert "color" not in legend
    compare(f"ranks-{width}x{height}-nocolor", text)


def test_ranks_in_ascii() -> None:
    text = asyncio.run(picture(fsdp_job(), (80, 24), "down", "down", "down", ascii=True))
    assert text.isascii()
    compare("ranks-80x24-ascii", text)


def test_ranks_light() -> None:
    compare("ranks-80x24-light", asyncio.run(picture(fsdp_job(), (80, 24), theme="light")))


def test_ranks_in_the_terminals_own_colours() -> None:
    text = asyncio.run(picture(fsdp_job(), (80, 24), theme="ansi"))
    assert "#" not in text.rsplit("\n\n", 1)[1]
    compare("ranks-80x24-ansi", text)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
def test_host_demo(size: tuple[int, int]) -> None:
    width, height = size
    compare(f"host-{width}x{height}", asyncio.run(picture(host_job(), size)))


def test_help() -> None:
    async def help_text() -> str:
        async with dashboard(fsdp_job(), (84, 50)) as run:
            await run.press("question_mark")
            return run.text()

    compare("help-84x50", asyncio.run(help_text()))
