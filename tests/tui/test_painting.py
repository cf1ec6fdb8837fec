"""What is sent to the terminal, read back by a small terminal of the test's own: same cells, few bytes."""

from __future__ import annotations

import asyncio
import re

import pytest
from dashboard import Dashboard, dashboard
from fake_job import fsdp_job
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate

from ranktop.tui.painting import SpansUpdate, turn
from ranktop.tui.view.text import Line
from ranktop.tui.widgets.lines import changed_cells

Cell = tuple[str, tuple[str, ...], tuple[str, ...], frozenset[str]]
"""Character, foreground, background, attributes."""

SEQUENCE = re.compile(r"\x1b\[(?P<move>\d+;\d+)H|\x1b\[(?P<codes>[\d;]*)m|(?P<text>[^\x1b\n]|\n)")


class Grid:
    """Understands cursor moves, SGR and text, as ECMA-48 has them."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], Cell] = {}
        self.reset()

    def reset(self) -> None:
        self.front: tuple[str, ...] = ()
        self.back: tuple[str, ...] = ()
        self.attributes: set[str] = set()

    def feed(self, data: str) -> None:
        x = y = 0
        end = 0
        for found in SEQUENCE.finditer(data):
            assert found.start() == end, f"not understood: {data[end : found.start()]!r}"
            end = found.end()
            if found["move"]:
                y, x = (int(number) - 1 for number in found["move"].split(";"))
            elif found["codes"] is not None:
                self.turn(found["codes"].split(";"))
            elif found["text"] == "\n":
                x, y = 0, y + 1
            else:
                blank = found["text"] == " " and not self.attributes & {"4", "7", "9"}
                # Nobody sees in what colour or weight a blank was written.
                front, attributes = ((), frozenset[str]()) if blank else (self.front, frozenset(self.attributes))
                self.cells[x, y] = (found["text"], front, self.back, attributes)
                x += 1
        assert end == len(data)

    def turn(self, codes: list[str]) -> None:
        while codes:
            code = codes.pop(0)
            if code in ("", "0"):
                self.reset()
            elif code in ("38", "48"):
                size = 4 if codes[0] == "2" else 2
                color = (code, *codes[:size])
                del codes[:size]
                self.front, self.back = (color, self.back) if code == "38" else (self.front, color)
            elif int(code) in (*range(30, 38), *range(90, 98)):
                self.front = (code,)
            elif int(code) in (*range(40, 48), *range(100, 108)):
                self.back = (code,)
            else:
                assert 1 <= int(code) <= 9
                self.attributes.add(code)


def console() -> Console:
    return Console(color_system="truecolor", force_terminal=True, width=80, height=24)


def whole_screen(run: Dashboard) -> str:
    """Return the screen as Textual itself would send it."""
    update = run.app.screen._compositor.render_full_update()
    assert isinstance(update, LayoutUpdate)
    return update.render_segments(console())


def catch_updates(run: Dashboard, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    caught: list[object] = []
    monkeypatch.setattr(run.app, "_display", lambda screen, renderable: caught.append(renderable))
    return caught


@pytest.mark.parametrize("theme", ["dark", "light", "ansi"])
def test_partial_frames_leave_the_screen_as_a_whole_one_would(theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(compare_frames(theme, monkeypatch))


async def compare_frames(theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with dashboard(fsdp_job(8), (120, 40), theme) as run:
        grid = Grid()
        grid.feed(whole_screen(run))
        caught = catch_updates(run, monkeypatch)
        sizes: list[tuple[int, int]] = []
        for turn in range(12):
            caught.clear()
            if turn in (4, 8):
                await run.press("down" if turn == 4 else "o")
            await run.after(1.0)
            for update in caught:
                if isinstance(update, ChopsUpdate):
                    sent = SpansUpdate.of(update).render_segments(console())
                    sizes.append((len(sent), len(update.render_segments(console()))))
                    grid.feed(sent)
            fresh = Grid()
            fresh.feed(whole_screen(run))
            assert grid.cells == fresh.cells
        assert len(sizes) >= 10
        ours, textuals = (sum(column) for column in zip(*sizes, strict=True))
        assert ours < textuals / 2


def test_a_quiet_second_of_eight_ranks_is_a_few_hundred_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that does not depend on the machine: rows change in three numbers, the panel in a few."""

    async def ten_seconds() -> list[object]:
        async with dashboard(fsdp_job(8), (120, 24)) as run:
            await run.after(1.0)
            caught = catch_updates(run, monkeypatch)
            for _ in range(10):
                await run.after(1.0)
            return caught

    caught = asyncio.run(ten_seconds())
    updates = [SpansUpdate.of(update) for update in caught if isinstance(update, ChopsUpdate)]
    sent = sum(len(update.render_segments(console()).encode()) for update in updates)
    assert updates
    assert sent / 10 < 900


def test_the_end_of_an_update_leaves_no_colour_set() -> None:
    assert turn(Style(bold=True), Style.null(), ColorSystem.TRUECOLOR) == "\x1b[0m"


@pytest.mark.parametrize(
    ("old", "new", "cells"),
    [
        ((("step 12 ", "a"), ("94%", "b")), (("step 12 ", "a"), ("97%", "b")), [(9, 10)]),
        ((("step 12 ", "a"), ("94%", "b")), (("step 13 ", "a"), ("94%", "b")), [(6, 7)]),
        ((("step 12 ", "a"), ("94%", "b")), (("step 13 ", "a"), ("97%", "b")), [(6, 10)]),
        ((("1" + "." * 12 + "2", "a"),), (("3" + "." * 12 + "4", "a"),), [(0, 1), (13, 14)]),
        ((("step 12 ", "a"), ("94%", "b")), (("step 12 ", "a"), ("94%", "c")), [(8, 11)]),
        ((("aaa", "a"),), (("aa", "a"), ("a", "b")), [(2, 3)]),
        ((("██▀▄", "a"), ("  ", "b")), (("███▄", "a"), ("  ", "b")), [(2, 3)]),
        ((("日本語 1", "a"),), (("日本国 1", "a"),), [(0, 8)]),
        ((("e\u03011", "a"), ("2", "b")), (("e\u03011", "a"), ("3", "b")), [(0, 3)]),
        ((("ab", "a"),), (("abc", "a"),), [(0, 3)]),
    ],
)  # fmt: skip
def test_changed_cells(old: Line, new: Line, cells: list[tuple[int, int]]) -> None:
    assert changed_cells(old, new) == cells
    assert changed_cells(new, old) == cells
