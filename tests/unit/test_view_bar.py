"""The two-in-one bar: proportions, boundaries, halves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranktop.budget.terms import CATEGORIES
from ranktop.tui.view.bar import DRAWN, LETTERS, cells, half_blocks, letters
from ranktop.tui.view.text import ASCII, UNICODE


def test_cells_are_in_proportion() -> None:
    amounts = {"parameters": 10, "gradients": 10, "optimizer": 20, "activations": 40}
    assert cells(amounts, 100, 10) == "pgooaaaa.."
    assert cells(amounts, 200, 10) == "pgoaa....." or cells(amounts, 200, 10).count(".") == 6
    assert cells({}, 100, 4) == "...."
    assert cells(amounts, 0, 4) == "...."
    assert cells(amounts, 100, 0) == ""


def test_more_than_the_scale_is_cropped() -> None:
    assert cells({"parameters": 50, "activations": 500}, 100, 10) == "pppppaaaaa"


def test_a_difference_shows_where_it_is() -> None:
    expected = cells({"parameters": 20, "activations": 30, "buffers": 10}, 100, 20)
    measured = cells({"parameters": 20, "activations": 50, "buffers": 10}, 100, 20)
    assert expected == "ppppaaaaaabb........"
    assert measured == "ppppaaaaaaaaaabb...."
    line = half_blocks(expected, measured, faded=False)
    assert line == (
        ("████", "bar:pp"),
        ("██████", "bar:aa"),
        ("▀▀", "bar:ba"),
        ("▄▄", "bar:.a"),
        ("▄▄", "bar:.b"),
        ("    ", "bar:.."),
    )


def test_letters_say_with_capitals_what_is_as_expected() -> None:
    line = letters("ppgg....oo", "ppgooa....", faded=False, glyphs=ASCII)
    assert "".join(text for text, _ in line) == "PPGooa..::"
    assert "".join(text for text, _ in letters("..", "..", False, UNICODE)) == "··"


def test_every_category_has_a_letter_of_its_own() -> None:
    assert set(DRAWN) == set(CATEGORIES) - {"free"}
    assert len(set(LETTERS.values())) == len(DRAWN)


@given(
    st.dictionaries(st.sampled_from(DRAWN), st.one_of(st.none(), st.integers(0, 2**40))),
    st.integers(1, 2**40),
    st.integers(0, 200),
)
def test_a_bar_always_fills_its_width_and_keeps_its_order(
    amounts: dict[str, int | None], scale: int, width: int
) -> None:
    text = cells(amounts, scale, width)
    assert len(text) == width
    order = [LETTERS[name] for name in DRAWN] + ["."]
    positions = [order.index(letter) for letter in text]
    assert positions == sorted(positions)
    total = sum(value or 0 for value in amounts.values())
    filled = width - text.count(".")
    assert abs(filled - min(width, total / scale * width)) <= 0.5 + 1e-6


@pytest.mark.parametrize("drawn", [("parameters", "gradients"), ("activations",)])
def test_only_the_drawn_categories_are_drawn(drawn: tuple[str, ...]) -> None:
    text = cells(dict.fromkeys(DRAWN, 10), 100, 50, drawn)
    assert set(text) - {"."} == {LETTERS[name] for name in drawn}
