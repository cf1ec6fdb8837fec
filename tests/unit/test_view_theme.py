"""Colours: told apart by every kind of eye, on sixteen colours, and absent when there are to be none."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from rich.color import Color, ColorSystem

from ranktop.tui.theme import (
    ANSI_DARK,
    ANSI_LIGHT,
    DARK,
    LIGHT,
    MONO,
    PALETTES,
    Palette,
    after,
    choose,
    in_sixteen,
    resolve,
    speaks_unicode,
)

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
BLINDNESS = {
    "none": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
NEIGHBOURS = "pgoabcrx"
"""Letters of the categories in the order in which bars stack them."""


def lab(text: str, blindness: str) -> tuple[float, float, float]:
    """CIE L*a*b* (D65) of a colour as that eye sees it."""
    triplet = Color.parse(text).get_truecolor()
    linear = [(value / 255 / 12.92 if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4) for value in triplet]
    seen = [min(1.0, max(0.0, sum(m * v for m, v in zip(row, linear, strict=True)))) for row in BLINDNESS[blindness]]
    red, green, blue = seen
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883

    def f(t: float) -> float:
        return t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116

    return (116 * f(y) - 16, 500 * (f(x) - f(y)), 200 * (f(y) - f(z)))


def distance(one: str, other: str, blindness: str) -> float:
    pairs = zip(lab(one, blindness), lab(other, blindness), strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs) ** 0.5)


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=lambda palette: palette.name)
def test_neighbours_in_a_bar_are_told_apart(palette: Palette, blindness: str) -> None:
    for one, other in pairwise(NEIGHBOURS):
        # Gradients may be absent, so parameters and optimizer meet as well.
        assert distance(palette.keys[one], palette.keys[other], blindness) > 20, one + other
    assert distance(palette.keys["p"], palette.keys["o"], blindness) > 20
    for letter in NEIGHBOURS:
        assert distance(palette.keys[letter], palette.keys["."], blindness) > 20, letter


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=lambda palette: palette.name)
def test_all_categories_differ_for_the_usual_eye(palette: Palette) -> None:
    for one, other in combinations(NEIGHBOURS, 2):
        assert distance(palette.keys[one], palette.keys[other], "none") > 15, one + other


@pytest.mark.parametrize("palette", [ANSI_DARK, ANSI_LIGHT], ids=lambda palette: palette.name)
def test_sixteen_colours_are_enough(palette: Palette) -> None:
    used = [palette.keys[letter] for letter in NEIGHBOURS]
    assert len(set(used)) == len(used)
    for name in [*palette.words.values(), *used]:
        assert "#" not in name
    # Red stays for what needs a person.
    assert not any("red" in name for name in used)


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=lambda palette: palette.name)
def test_256_colours_keep_the_categories_apart(palette: Palette) -> None:
    numbers = [Color.parse(palette.keys[letter]).downgrade(ColorSystem.EIGHT_BIT).number for letter in NEIGHBOURS]
    assert len(set(numbers)) == len(numbers)


def test_without_colour_there_are_only_attributes() -> None:
    names = [*DARK.words, "bar:pg", "bar:..", "key:p", "key:. faded", "head bad bold", "text selected"]
    for name in names:
        style = resolve(name, MONO)
        assert style.color is None or style.color.is_default, name
        assert style.bgcolor is None or style.bgcolor.is_default, name
    assert resolve("head", MONO).reverse
    assert resolve("bad", MONO).bold


def test_every_style_word_is_known_to_every_palette_with_colours() -> None:
    for palette in PALETTES:
        assert set(palette.words) == set(DARK.words)


def test_a_dead_bar_is_paler() -> None:
    alive, dead = resolve("bar:aa", DARK), resolve("bar:aa faded", DARK)
    assert alive.color is not None
    assert dead.color is not None
    ground = DARK.ground
    assert distance(dead.color.name, ground, "none") < distance(alive.color.name, ground, "none") / 2
    assert resolve("bar:aa faded", ANSI_DARK).dim


def test_choice_of_palette() -> None:
    truecolor = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    assert choose(None, truecolor) is DARK
    assert choose(None, {**truecolor, "COLORFGBG": "0;15"}) is LIGHT
    assert choose(None, {"TERM": "linux"}) is ANSI_DARK
    assert choose(None, {"TERM": "linux", "COLORFGBG": "0;7"}) is ANSI_LIGHT
    assert choose(None, {"TERM": "dumb"}) is MONO
    assert choose("light", truecolor) is LIGHT
    assert choose(None, {**truecolor, "TEXTUAL_THEME": "ansi-light"}) is ANSI_LIGHT
    assert choose(None, {**truecolor, "TEXTUAL_THEME": "nord"}) is DARK
    assert choose("light", {**truecolor, "NO_COLOR": "1"}) is MONO
    with pytest.raises(ValueError, match="choose one of dark, light"):
        choose("mauve", truecolor)


def test_themes_go_round() -> None:
    palette, seen = DARK, []
    for _ in PALETTES:
        seen.append(palette)
        palette = after(palette)
    assert tuple(seen) == PALETTES
    assert palette is DARK
    assert after(MONO) is MONO
    assert [in_sixteen(palette) for palette in (DARK, LIGHT, ANSI_LIGHT, MONO)] == [
        ANSI_DARK, ANSI_LIGHT, ANSI_LIGHT, MONO,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "speaks"),
    [
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LANG": "C.UTF-8"}, True),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, False),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),
        ({"LANG": "POSIX"}, False),
        ({"LANG": "de_DE.ISO-8859-1"}, False),
        ({"LC_CTYPE": "C.UTF-8"}, True),
        ({}, True),
    ],
    ids=str,
)
def test_ascii_without_a_utf8_locale(environment: dict[str, str], speaks: bool) -> None:
    assert speaks_unicode(environment, "utf-8") is speaks


def test_an_output_that_is_not_utf8_gets_ascii() -> None:
    assert not speaks_unicode({}, "ascii")
    assert not speaks_unicode({"LANG": "en_US"}, "iso8859-1")


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=lambda palette: palette.name)
def test_shades_of_the_grid_are_told_apart_and_can_be_read(palette: Palette, blindness: str) -> None:
    cells = [palette.words[f"heat{level}"].split(" on ") for level in range(10)]
    grounds = [ground for _, ground in cells]
    for far in (grounds[0], grounds[9]):
        assert distance(far, grounds[4], blindness) > 35
    assert distance(grounds[0], grounds[9], blindness) > 35
    for level in (0, 1, 2, 7, 8):
        assert distance(grounds[level], grounds[level + 1], blindness) > 8, "neighbours beyond the middle differ"
    for ink, ground in cells:
        assert abs(lab(ink, blindness)[0] - lab(ground, blindness)[0]) > 35, (ink, ground)
