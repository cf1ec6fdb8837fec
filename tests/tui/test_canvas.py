"""What is sent to the terminal, shown by an emulator: the wanted cells, whatever the pieces, in few bytes."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence

import pytest
from dashboard import Dashboard, dashboard
from fake_job import fsdp_job
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from slow_link import Cell, Emulator
from textual._compositor import LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from ranktop.tui.terminal.canvas import Canvas
from ranktop.tui.terminal.driver import enter, leave
from ranktop.tui.terminal.kind import Kind, kind_of
from ranktop.tui.terminal.pens import PLAIN, Pens
from ranktop.tui.view.text import Line
from ranktop.tui.widgets.lines import changed_cells

TERMS = ("xterm-256color", "screen", "linux", "vt100", "vt220", "xterm-kitty", "putty")

STYLES = [Style.parse(text) for text in (
    "none", "red", "bright_red on blue", "bold #102030 on #405060", "#102030 on #405060", "dim #102030", "bold dim red",
    "reverse", "underline green", "italic on #405060", "#405060 on #405060", "on #405060", "bold",
)]  # fmt: skip

WORDS = (
    "a",
    "42.1",
    "    ",
    "          ",
    " x ",
    "▀▀▀▀",
    "█████████████",
    "▄",
    "█▀▄",
    "node1",
    "·",
    "日本",
    "e\u0301",
    "-" * 30,
)


def canvas_for(term: str, system: ColorSystem | None = ColorSystem.TRUECOLOR, *, ascii: bool = False) -> Canvas:
    kind = kind_of({"TERM": term})
    return Canvas(kind, Pens(kind, system), ascii=ascii)


def frame(rows: Sequence[Sequence[tuple[str, Style]]], size: tuple[int, int]) -> LayoutUpdate:
    width, height = size
    strips = [Strip([Segment(text, style) for text, style in row]).adjust_cell_length(width) for row in rows]
    return LayoutUpdate([[strip] for strip in strips], Region(0, 0, width, height))


def random_rows(chance: random.Random, size: tuple[int, int]) -> list[list[tuple[str, Style]]]:
    rows: list[list[tuple[str, Style]]] = []
    for _ in range(size[1]):
        pieces = [(chance.choice(WORDS), chance.choice(STYLES)) for _ in range(chance.randrange(12))]
        rows.append(pieces if chance.random() < 0.8 else [])
    return rows


def shown_at_once(update: LayoutUpdate, term: str, size: tuple[int, int]) -> list[list[Cell]]:
    """What a terminal shows that gets this frame and nothing else."""
    canvas, emulator = canvas_for(term), Emulator(size)
    canvas.take(update)
    emulator.read(canvas.piece(10**9).replace("\n", "\x1b[B").encode())
    return emulator.cells()


@pytest.mark.parametrize("term", TERMS)
def test_pictures_that_follow_each_other_are_shown_as_if_each_were_alone(term: str) -> None:
    """... although only some pieces of each were sent, of any length."""
    chance = random.Random(term)
    size = (40, 12)
    canvas, emulator = canvas_for(term), Emulator(size)
    rows = random_rows(chance, size)
    for turn in range(15):
        for y in chance.sample(range(size[1]), chance.randrange(1, size[1])):
            rows[y] = random_rows(chance, (size[0], 1))[0]
        update = frame(rows, size)
        canvas.take(update)
        if chance.random() < 0.1:
            canvas.forget()
        for _ in range(chance.randrange(4)):
            emulator.read(canvas.piece(chance.choice((1, 30, 300))).replace("\n", "\x1b[B").encode())
        if turn % 3 == 0:
            while canvas.behind:
                emulator.read(canvas.piece(200).replace("\n", "\x1b[B").encode())
            assert canvas.piece(200) == ""
            assert emulator.cells() == shown_at_once(update, term, size)


def test_what_is_shown_is_what_was_wanted() -> None:
    """Read back without the canvas: styles as Rich has them."""
    size = (60, 4)
    rows = [
        [("rank ", STYLES[3]), ("▀▀", STYLES[2]), ("████", STYLES[1]), ("  ", STYLES[11]), ("x", STYLES[6])],
        [("日本", STYLES[1]), ("1", STYLES[1])],
        [("e\u0301t", STYLES[0])],
        [("tail", STYLES[12])],
    ]
    canvas, emulator = canvas_for("xterm"), Emulator(size)
    canvas.take(frame(rows, size))
    emulator.read(canvas.piece(10**9).replace("\n", "\x1b[B").encode())
    first = emulator.cells()[0]
    assert first[0] == ("r", "102030", "405060", True, False, False, False)
    assert first[4] == (" ", "", "405060", False, False, False, False)
    assert first[5] == ("▀", "brightred", "blue", False, False, False, False)
    assert {cell[2] for cell in first[7:11]} == {"red"}
    assert {cell[2] for cell in first[11:13]} == {"405060"}
    assert first[13] == ("x", "red", "default", True, False, False, False)
    assert emulator.text().splitlines()[1:] == ["日本1", "\u00e9t", "tail"]  # pyte composes


def test_another_size_is_drawn_whole() -> None:
    canvas = canvas_for("xterm")
    rows = [[("abc", STYLES[1])], [("def", STYLES[1])]]
    for size in ((40, 2), (1, 1), (40, 2)):
        emulator = Emulator(size)
        canvas.take(frame(rows[: size[1]], size))
        emulator.read(canvas.piece(10**9).encode())
        assert emulator.text() == "\n".join(row[0][0][: size[0]] for row in rows[: size[1]])


def test_a_terminal_without_unicode_gets_none() -> None:
    size = (30, 2)
    canvas, emulator = canvas_for("xterm", ascii=True), Emulator(size)
    canvas.take(frame([[("日本·▀", STYLES[1]), ("é", STYLES[0])]], size))
    sent = canvas.piece(10**9)
    emulator.read(sent.encode())
    assert sent.isascii()
    assert emulator.text().splitlines()[0] == "???????"[:7]


SEQUENCES = re.compile(r"\x1b\[[\x30-\x3f]*[\x20-\x2f]*[\x40-\x7e]")


def sequences(text: str) -> set[str]:
    found = set(SEQUENCES.findall(text))
    assert "\x1b" not in SEQUENCES.sub("", text)
    return found


def everything(kind: Kind, system: ColorSystem | None) -> str:
    chance = random.Random(1)
    canvas = Canvas(kind, Pens(kind, system))
    sent = enter(kind) + leave(kind)
    for _ in range(8):
        canvas.take(frame(random_rows(chance, (60, 20)), (60, 20)))
        sent += canvas.piece(10**9)
    return sent


COLOURS = (*range(30, 38), 39, *range(40, 48), 49, *range(90, 108))
KNOWN = {
    # term: (final bytes, private modes, SGR codes)
    "vt100": ("HJCDm", {7}, {0, 1, 4, 5, 7}),
    "vt220": ("HJCDm", {7, 25}, {0, 1, 4, 5, 7}),
    "linux": ("HJCDKXm", {7, 25}, {0, 1, 2, 4, 5, 7, 22, 24, 25, 27, *COLOURS}),
    "screen": ("HJCDm", {7, 25, 1049, 2004}, {*range(8), 22, 23, 24, 25, 27, *COLOURS}),
}  # fmt: skip


@pytest.mark.parametrize("term", KNOWN)
def test_terminals_get_only_what_they_know(term: str) -> None:
    finals, modes, codes = KNOWN[term]
    for sequence in sequences(everything(kind_of({"TERM": term}), ColorSystem.STANDARD)):
        if found := re.fullmatch(r"\x1b\[\?(\d+)[hl]", sequence):
            assert int(found[1]) in modes, sequence
        else:
            assert re.fullmatch(rf"\x1b\[[\d;]*[{finals}]", sequence), sequence
            if sequence.endswith("m"):
                assert {int(code or 0) for code in sequence[2:-1].split(";")} <= codes, sequence


def test_without_colour_none_is_sent() -> None:
    sent = everything(kind_of({"TERM": "xterm-256color"}), None)
    codes = {code for sequence in sequences(sent) if sequence.endswith("m") for code in sequence[2:-1].split(";")}
    assert codes <= {"", *"0123456789", "22", "23", "24", "25", "27", "28", "29"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"plain": True}),
        ({"TERM": "dumb"}, {"plain": True}),
        ({"TERM": "emacs"}, {"plain": True}),
        ({"TERM": "xterm-256color"}, {"erases_in_colour": True, "modern": True}),
        ({"TERM": "xterm-256color", "STY": "1.pts"}, {"erases_in_colour": False, "modern": False}),
        ({"TERM": "screen", "TMUX": "/tmp/x"}, {"erases_in_colour": True, "relays": True}),
        ({"TERM": "screen-256color"}, {"erases_in_colour": False, "modern": False}),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "Apple_Terminal"}, {"modern": False}),
        ({"TERM": "linux"}, {"alternate": False, "modern": False}),
        ({"TERM": "something-new"}, {"erases_in_colour": False, "alternate": True}),
    ],
)
def test_kinds(environment: dict[str, str], expected: dict[str, bool]) -> None:
    kind = kind_of(environment)
    assert {name: getattr(kind, name) for name in expected} == expected


async def whole(run: Dashboard) -> LayoutUpdate:
    return run.app.screen._compositor.render_full_update()


@pytest.mark.parametrize(
    ("ranks", "size", "most"), [(8, (80, 24), 4100), (64, (120, 40), 7600), (64, (200, 50), 12_500)]
)
def test_a_whole_frame_is_small(ranks: int, size: tuple[int, int], most: int) -> None:
    """Counts that do not depend on the machine: a whole frame, one key, one second."""

    async def measure() -> tuple[list[int], int]:
        async with dashboard(fsdp_job(ranks), size) as run:
            canvas = canvas_for("xterm")
            console = Console(color_system="truecolor", force_terminal=True)
            textuals = len((await whole(run)).render_segments(console).encode())
            sizes = []
            for turn in range(3):
                if turn == 1:
                    await run.press("down")
                if turn == 2:
                    await run.after(1.0)
                canvas.take(await whole(run))
                sizes.append(len(canvas.piece(10**9).encode()))
            return sizes, textuals

    (first, key, second), textuals = asyncio.run(measure())
    assert first < most
    assert first < textuals / 3
    assert key < 1200
    assert second < 900


def test_a_pen_turns_into_another_in_few_bytes() -> None:
    pens = Pens(kind_of({"TERM": "xterm"}), ColorSystem.TRUECOLOR)
    plain, bold, dim = (pens.of(Style.parse(text)) for text in ("#102030 on #405060", "bold #102030 on #405060", "dim"))
    assert pens.turn(plain, plain) == ""
    assert pens.turn(plain, bold) == "\x1b[1m"
    assert pens.turn(bold, plain) == "\x1b[22m"
    assert pens.turn(bold, PLAIN) == "\x1b[m"
    assert pens.turn(dim, PLAIN) == "\x1b[m"
    assert pens.turn(pens.of(Style.parse("bold dim")), pens.of(Style.parse("bold"))) == "\x1b[0;1m"
    assert pens.of(Style.parse("#102030 on #405060")) is plain
    vt100 = Pens(kind_of({"TERM": "vt100"}), ColorSystem.TRUECOLOR)
    assert vt100.turn(vt100.of(Style.parse("bold red")), vt100.of(Style.parse("underline"))) == "\x1b[0;4m"


@pytest.mark.parametrize(
    ("old", "new", "cells"),
    [
        ((("step 12 ", "a"), ("94%", "b")), (("step 12 ", "a"), ("97%", "b")), (9, 10)),
        ((("step 12 ", "a"), ("94%", "b")), (("step 13 ", "a"), ("94%", "b")), (6, 7)),
        ((("step 12 ", "a"), ("94%", "b")), (("step 13 ", "a"), ("97%", "b")), (6, 10)),
        ((("1" + "." * 12 + "2", "a"),), (("3" + "." * 12 + "4", "a"),), (0, 14)),
        ((("step 12 ", "a"), ("94%", "b")), (("step 12 ", "a"), ("94%", "c")), (8, 11)),
        ((("aaa", "a"),), (("aa", "a"), ("a", "b")), (2, 3)),
        ((("aa", "a"),), (("ab", "a"),), (1, 2)),
        ((("aab", "a"),), (("ab", "a"), ("b", "a")), (1, 2)),
        ((("██▀▄", "a"), ("  ", "b")), (("███▄", "a"), ("  ", "b")), (2, 3)),
        ((("日本語 1", "a"),), (("日本国 1", "a"),), (0, 8)),
        ((("e\u03011", "a"), ("2", "b")), (("e\u03011", "a"), ("3", "b")), (0, 3)),
        ((("ab", "a"),), (("abc", "a"),), (0, 3)),
    ],
)  # fmt: skip
def test_changed_cells(old: Line, new: Line, cells: tuple[int, int]) -> None:
    assert changed_cells(old, new) == cells
    assert changed_cells(new, old) == cells
