"""How numbers and lines are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ranktop.tui.view.hints import hint_line
from ranktop.tui.view.text import (
    ASCII,
    GIB,
    KIB,
    MIB,
    UNICODE,
    Line,
    Unit,
    cut,
    duration,
    first_that_fits,
    fit,
    human,
    length,
    merge,
    pad,
    plain,
    seconds,
    short_count,
    signed,
    size,
    unit_for,
    whole,
)

GIBS = Unit("GiB", GIB)
MIBS = Unit("MiB", MIB)


def test_units() -> None:
    assert unit_for(80 * GIB).name == "GiB"
    assert unit_for(600 * MIB).name == "MiB"
    assert unit_for(100 * KIB).name == "KiB"
    assert unit_for(None).name == "KiB"
    assert size(int(56.14 * GIB), GIBS) == "56.1"
    assert size(0, GIBS) == "0.0"
    assert size(None, GIBS) == "–"
    assert size(19_078 * MIB, MIBS, 2) == "19,078"
    assert whole(24 * GIB, GIBS) == "24"
    assert whole(85_520_809_984, GIBS) == "79.6"


def test_differences_keep_small_ones_apart_from_none() -> None:
    assert signed(0, GIBS, 1, UNICODE) == "0"
    assert signed(300, GIBS, 1, UNICODE) == "≈+0"
    assert signed(-300, GIBS, 1, ASCII) == "~-0"
    assert signed(2 * GIB, GIBS, 1, UNICODE) == "+2.0"
    assert signed(-int(11.66 * GIB), GIBS, 1, UNICODE) == "-11.7"
    assert signed(None, GIBS, 1, UNICODE) == "–"
    assert human(300, sign=True) == "+300 B"
    assert human(-1536) == "-1.5 KiB"
    assert human(3 * GIB) == "3.0 GiB"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04, "0.0 s"),
        (0.44, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (119.0, "119 s"),
        (121.0, "2 min"),
        (7300.0, "2 h"),
        (47 * 3600.0, "47 h"),
        (5 * 86400.0, "5 d"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert duration(value) == text


def test_seconds_have_three_digits() -> None:
    assert [seconds(value) for value in (0.0123, 0.71, 2.314, 23.14, 231.4, None)] == [
        "0.012", "0.710", "2.31", "23.1", "231", "–",
    ]  # fmt: skip
    assert short_count(8_030_261_248) == "8.03B"
    assert short_count(4_270_000) == "4.27M"
    assert short_count(12) == "12"


def test_text_from_the_wire_is_one_plain_line() -> None:
    assert plain("a\x1b[31mb\nc\td\x07") == "ab c d"
    assert plain("[bold]x[/bold]") == "[bold]x[/bold]"


def test_fitting() -> None:
    assert fit("node1", 8) == "node1   "
    assert fit("node1", 8, ">") == "   node1"
    assert fit("a-long-node", 6) == "a-lon…"
    assert fit("x", 0) == ""
    assert first_that_fits(["long text", "short"], 6) == "short"
    assert first_that_fits(["long text", "short"], 3) == "sh…"
    assert first_that_fits(["long"], 0) == ""


SPANS = st.lists(st.tuples(st.text(st.sampled_from("ab ▀日é"), max_size=6), st.sampled_from(["x", "y"])), max_size=6)


@given(SPANS, st.integers(0, 30))
def test_padded_lines_have_their_width(spans: list[tuple[str, str]], width: int) -> None:
    line = pad(spans, width)
    assert length(line) == width
    assert merge(line) == line


@given(SPANS, st.integers(0, 30), st.integers(0, 30))
def test_cut_lines_have_their_widths(spans: list[tuple[str, str]], width: int, at: int) -> None:
    line: Line = pad(spans, width)
    left, right = cut(line, min(at, width))
    assert length(left) == min(at, width)
    assert length(right) == width - min(at, width)
    if all(cell_len(text) == len(text) for text, _ in line):
        assert "".join(text for text, _ in (*left, *right)) == "".join(text for text, _ in line)


def test_a_notice_that_is_cut_off_shows_it() -> None:
    for glyphs, mark in ((UNICODE, "…"), (ASCII, "~")):
        for right in ((), ((" rows 1-9 ", "label"),)):
            (said, *_) = hint_line((), "a server forbids to forward sockets", right, glyphs, 30)
            assert said[0].rstrip().endswith(mark)
            line = hint_line((), "short", right, glyphs, 30)
            assert line[0][0].rstrip() == " short"
            assert sum(cell_len(text) for text, _ in line) == 30
