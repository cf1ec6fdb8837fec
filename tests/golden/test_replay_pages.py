"""Pages of a replay as text and as a map of styles (``golden_screens``)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from functools import lru_cache

import pytest
from golden_screens import compare
from hand_tape import HandTape, tape
from replayed import replayed

from ranktop.tui.view.scrubber import Scrub, scrubber
from ranktop.tui.view.text import ASCII, UNICODE


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(os.environ, "TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@lru_cache
def restarted() -> HandTape:
    return tape("restart", 2, seconds=100, start=40)


@pytest.mark.parametrize(
    ("name", "size", "theme", "ascii"),
    [
        ("replay-80x24", (80, 24), "dark", False),
        ("replay-120x40", (120, 40), "dark", False),
        ("replay-80x24-ascii", (80, 24), "dark", True),
        ("replay-80x24-none", (80, 24), "none", False),
    ],
)
def test_pages(name: str, size: tuple[int, int], theme: str, ascii: bool) -> None:
    async def drawing() -> str:
        async with replayed(restarted(), size, theme, ascii=ascii, at=1070.0) as run:
            return run.painted()

    text = asyncio.run(drawing())
    assert not ascii or text.isascii()
    compare(name, text)


SCRUB = Scrub(
    place=0.52, wall="12:03:41", date="Nov 30", state="64x (real 21x)", done="41:20", whole="1:36:21", spacing=60.0,
    marks=((0.1, "warning"), (0.3, "critical"), (0.301, "death"), (0.33, "restart"), (0.6, "gap"), (0.999, "end")),
    seen=((0.0, 0.25), (0.5, 1.0)),
)  # fmt: skip


def test_the_scrubber_at_every_width() -> None:
    lines = []
    for width in (120, 100, 80, 60, 40, 30, 20, 8, 1):
        for glyphs in (UNICODE, ASCII):
            text = "".join(part for part, _ in scrubber(SCRUB, glyphs, width))
            assert len(text) == width
            lines.append(f"{width:3} |{text}|")
    compare("scrubber", "\n".join(lines) + "\n")


def test_of_several_marks_in_a_cell_the_gravest_is_shown() -> None:
    text = "".join(part for part, _ in scrubber(SCRUB, ASCII, 80))
    assert "X" in text
    assert "x" not in text.split("21x)")[1]
    assert text.count("O") == 1
