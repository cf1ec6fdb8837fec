"""Style names to colours: dark, light, the terminal's own sixteen, and none at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from rich.color import Color
from rich.style import Style

_SHADES: Final = {
    "dark": ("#d6e6ff on #2f62b5", "#c6d6f2 on #2a4d86", "#aab8d2 on #25395c", "#8b97ad on #1f2838",
             "#7d8698 on #1b1f29", "#7d8698 on #1b1f29", "#a89a80 on #2e2a22", "#d0b27c on #4a3a1e",
             "#f4cf8a on #77551c", "#201708 on #f0a733"),
    "light": ("#ffffff on #2f62b5", "#0d2a58 on #7fa6e8", "#1a3560 on #b7cff5", "#41506a on #dbe5f7",
              "#69707e on #eef0f4", "#69707e on #eef0f4", "#6d5a33 on #f5ead2", "#5d430c on #efd39a",
              "#4a3200 on #e6b050", "#ffffff on #a85f00"),
    "ansi": ("bold white on blue", "white on blue", "blue", "blue", "bright_black", "bright_black", "yellow", "yellow",
             "black on yellow", "bold black on yellow"),
}  # fmt: skip
"""Shades of the grid of all ranks, from far below to far above: blue and amber hold apart for every eye, and what is
at the median stays pale. Red is left for what needs a person."""

_BASE_STYLES: Final = ("bold", "dim", "italic", "reverse", "underline")


@dataclass(frozen=True)
class Palette:
    """Colours of one theme, by word."""

    name: str
    textual: str
    """Name of the Textual theme that goes with it."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Style word -> Rich style definition."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Letter of a category -> colour; ``.`` is the empty part of a bar, empty for the terminal's own."""
    ground: str = ""
    """Background of the screen; empty: the terminal's own. The bars of a dead rank fade towards it."""

    def __hash__(self) -> int:
        return hash(self.name)


def _words(text: str, dim: str, accent: str, good: str, warn: str, bad: str, head: str, panel: str,
           selected: str, muted: str, fill: str, shades: str) -> dict[str, str]:  # fmt: skip
    return {
        "text": text, "number": text, "dim": dim, "label": dim, "axis": muted, "rule": muted, "track": muted,
        "accent": accent, "key": accent, "cursor": f"bold {accent}", "good": good, "warn": warn, "bad": bad,
        "notice": warn, "head": f"{text} on {head}", "panel": f"{text} on {panel}",
        "selected": f"on {selected}", "frozen": f"bold {head} on {warn}", "spark": dim, "spark-fill": fill,
        "chart": accent, "chart-fill": fill, "phase": accent, **_heat(shades),
    }  # fmt: skip


def _heat(shades: str) -> dict[str, str]:
    """Return the words of the grid's shades, and of the bars that show distances."""
    steps = _SHADES[shades]
    cold, warm = (steps[0].rpartition(" ")[2], steps[-1].rpartition(" ")[2])
    return {**{f"heat{level}": step for level, step in enumerate(steps)}, "cold": cold, "warm": warm}


# Okabe and Ito's idea: neighbours differ in lightness, so that they hold apart whatever hues an eye confuses.
# tests/unit/test_view_theme.py measures it under the three common colour blindnesses.
DARK: Final = Palette(
    "dark", "ranktop-dark",
    _words(text="#d6dae3", dim="#8b93a5", accent="#7fb0ff", good="#7fbf7f", warn="#e6b450", bad="#ff6b6b",
           head="#26334d", panel="#222a3a", selected="#2b3550", muted="#4a5263", fill="#272d3a", shades="dark"),
    {"p": "#7fa8ff", "g": "#f0b13c", "o": "#8a55d7", "a": "#3fc28f", "b": "#ca57b4", "c": "#525b6a",
     "r": "#a3abba", "x": "#e8e3d0", ".": "#1b1f29"},
    ground="#14171f",
)  # fmt: skip

LIGHT: Final = Palette(
    "light", "ranktop-light",
    _words(text="#20242c", dim="#69707e", accent="#1f5fd0", good="#2f7d3a", warn="#8f5a00", bad="#c8102e",
           head="#d5e0f5", panel="#e6eaf2", selected="#dbe5fa", muted="#b4bac6", fill="#dfe3ec", shades="light"),
    {"p": "#2f6fed", "g": "#d58a00", "o": "#6422a4", "a": "#4fb777", "b": "#cc277a", "c": "#95a4bd",
     "r": "#4a4f53", "x": "#8a7a3c", ".": "#e9ecf2"},
    ground="#fbfbfd",
)  # fmt: skip

_ANSI_WORDS: Final = {
    "text": "", "number": "", "dim": "bright_black", "label": "bright_black", "axis": "bright_black",
    "rule": "bright_black", "track": "bright_black", "accent": "blue", "key": "cyan", "cursor": "bold",
    "good": "green", "warn": "yellow", "bad": "bright_red", "notice": "yellow", "head": "reverse",
    "panel": "reverse", "selected": "bold", "frozen": "bold black on yellow", "spark": "cyan",
    "spark-fill": "bright_black", "chart": "blue", "chart-fill": "bright_black", "phase": "blue", **_heat("ansi"),
}  # fmt: skip
_ANSI_KEYS: Final = {"p": "blue", "g": "yellow", "o": "magenta", "a": "green", "b": "cyan", "c": "bright_black",
                     "r": "white", "x": "bright_yellow", ".": ""}  # fmt: skip

ANSI_DARK: Final = Palette("ansi", "ansi-dark", _ANSI_WORDS, _ANSI_KEYS)
ANSI_LIGHT: Final = Palette(
    "ansi-light", "ansi-light", {**_ANSI_WORDS, "bad": "red"},
    {**_ANSI_KEYS, "r": "black", "x": "bright_magenta"},
)  # fmt: skip

MONO: Final = Palette(
    "none", "ansi-dark",
    {"dim": "dim", "label": "dim", "axis": "dim", "rule": "dim", "track": "dim", "cursor": "bold", "warn": "bold",
     "bad": "bold", "notice": "bold", "head": "reverse", "panel": "reverse", "selected": "bold",
     "frozen": "bold reverse", "key": "bold"},
)  # fmt: skip

PALETTES: Final = (DARK, LIGHT, ANSI_DARK, ANSI_LIGHT)
BY_NAME: Final = {
    "dark": DARK, "light": LIGHT, "ansi": ANSI_DARK, "ansi-dark": ANSI_DARK, "ansi-light": ANSI_LIGHT, "none": MONO,
}  # fmt: skip
"""Names that a person may ask for."""


def choose(name: str | None, environment: Mapping[str, str] | None = None) -> Palette:
    """Return the palette asked for, else the one that suits the terminal; ValueError for an unknown name."""
    environment = os.environ if environment is None else environment
    if "NO_COLOR" in environment:
        return MONO
    if name:
        if name not in BY_NAME:
            raise ValueError(f"no theme is named {name!r}: choose one of {', '.join(BY_NAME)}")
        return BY_NAME[name]
    named = BY_NAME.get(environment.get("TEXTUAL_THEME", ""))
    if named is not None:
        return named
    if environment.get("TERM", "") in ("dumb", "vt100", "vt220"):
        return MONO
    light = environment.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
    few = environment.get("TERM", "") in ("linux", "ansi", "xterm", "screen") and (
        environment.get("COLORTERM", "") not in ("truecolor", "24bit")
    )
    if few:
        return ANSI_LIGHT if light else ANSI_DARK
    return LIGHT if light else DARK


def in_sixteen(palette: Palette) -> Palette:
    """Return what stands for a palette on a terminal of sixteen colours: mixed ones would fall together there."""
    return {DARK: ANSI_DARK, LIGHT: ANSI_LIGHT}.get(palette, palette)


def speaks_unicode(environment: Mapping[str, str] | None = None, encoding: str | None = None) -> bool:
    """Tell whether the terminal's locale can show the blocks that bars are made of.

    Python itself turns the C locale into UTF-8 (PEP 538 and 540), so its encoding alone would not tell. Where no
    locale is set at all, as in most containers, that guess of Python's is the best there is.
    """
    environment = os.environ if environment is None else environment
    encoding = encoding or getattr(sys.__stdout__, "encoding", None) or "ascii"
    lang = environment.get("LANG", "")
    kind = environment.get("LC_CTYPE", "")
    if lang in ("C", "POSIX") and kind.upper() in ("C.UTF-8", "C.UTF8", "UTF-8"):
        kind = ""  # set by PEP 538
    name = environment.get("LC_ALL", "") or kind or lang
    if name in ("C", "POSIX"):
        return False
    return "utf" in (name if "." in name else encoding).lower()


def after(palette: Palette) -> Palette:
    """Return the next palette in turn; without colour there is no other."""
    if palette is MONO:
        return MONO
    return PALETTES[(PALETTES.index(palette) + 1) % len(PALETTES)]


@lru_cache(maxsize=16)
def base(palette: Palette) -> Style:
    """Return the style of an empty cell."""
    return Style(color=palette.words["text"], bgcolor=palette.ground) if palette.ground else Style.null()


@lru_cache(maxsize=4096)
def resolve(name: str, palette: Palette) -> Style:
    """Return the Rich style of a style name: words separated by spaces, later ones on top."""
    style = base(palette)
    words = name.split()
    if {"head", "panel"} & set(words) and palette.words.get("head") == "reverse":
        # In reverse a foreground becomes a block: only what needs a person may.
        words = [word for word in words if word not in ("accent", "good", "dim", "label")]
    faded = "faded" in words
    for word in words:
        if word.startswith("bar:"):
            style += _bar(word[4], word[5], palette, faded)
        elif word.startswith("key:"):
            style += _key(word[4], palette, faded)
        elif word in palette.words:
            style += Style.parse(palette.words[word] or "none")
        elif word in _BASE_STYLES:
            style += Style.parse(word)
    return style


def _bar(upper: str, lower: str, palette: Palette, faded: bool) -> Style:
    up, low = (_color(key, palette, faded) for key in (upper, lower))
    style = Style(dim=True) if faded and not palette.ground else Style.null()
    if upper == lower:
        # Empty cells show their background, full ones only need the foreground.
        return style + (Style(bgcolor=low) if lower == "." else Style(color=low))
    if upper == ".":
        return style + Style(color=low, bgcolor=up)
    return style + Style(color=up, bgcolor=low)


def _key(key: str, palette: Palette, faded: bool) -> Style:
    color = palette.keys.get(key)
    if key == ".":
        return Style.parse(palette.words.get("track", "none"))
    dim = True if faded and not palette.ground else None
    return Style(color=_color(key, palette, faded) if color else None, dim=dim)


def _color(key: str, palette: Palette, faded: bool) -> Color | None:
    text = palette.keys.get(key, "")
    if not text:
        return None
    color = Color.parse(text)
    if faded and palette.ground and key != ".":
        color = _mixed(color, Color.parse(palette.ground), 0.68)
    return color


def _mixed(color: Color, other: Color, share: float) -> Color:
    mine, theirs = color.get_truecolor(), other.get_truecolor()
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(mine, theirs, strict=True))
    return Color.from_rgb(red, green, blue)
