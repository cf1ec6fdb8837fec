"""Styled lines for a terminal that scrolls: the terminal's own colours, and the categories in ours."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from typing import Final

from rich.color import ColorSystem
from rich.style import Style

from ranktop.tui.theme import ANSI_DARK, ANSI_LIGHT, DARK, LIGHT, Palette, choose, resolve, speaks_unicode
from ranktop.tui.view.text import Line

_SYSTEMS: Final = {"truecolor": ColorSystem.TRUECOLOR, "24bit": ColorSystem.TRUECOLOR}


@lru_cache(maxsize=1)
def _palette() -> tuple[Palette, ColorSystem]:
    """Return the palette: what lies under the text is the terminal's own, so its words are in its colours."""
    chosen = choose(None)
    system = _SYSTEMS.get(os.environ.get("COLORTERM", "").lower(), ColorSystem.STANDARD)
    if system is ColorSystem.STANDARD and "256" in os.environ.get("TERM", ""):
        system = ColorSystem.EIGHT_BIT
    words = ANSI_LIGHT if chosen in (LIGHT, ANSI_LIGHT) else ANSI_DARK
    mixed = {DARK: DARK.keys, LIGHT: LIGHT.keys}.get(chosen)
    if mixed is None or system is ColorSystem.STANDARD:
        return words, ColorSystem.STANDARD
    return replace(words, name=f"{chosen.name}-printed", keys={**mixed, ".": ""}), system


def printed(line: Line) -> str:
    """Return a line with its control sequences (SGR), without the blanks at its end."""
    palette, system = _palette()
    spans = list(line)
    while spans and not spans[-1][0].strip() and "head" not in spans[-1][1]:
        spans.pop()
    return "".join(
        _style(name, palette, system).render(text, color_system=ColorSystem.TRUECOLOR) for text, name in spans
    )


@lru_cache(maxsize=512)
def _style(name: str, palette: Palette, system: ColorSystem) -> Style:
    """Return a style in the colours that the terminal has: Rich remembers the codes of the system first asked for."""
    style = resolve(name, palette)
    color, ground = (part.downgrade(system) if part is not None else None for part in (style.color, style.bgcolor))
    return style + Style(color=color, bgcolor=ground)


_WORDS: Final = {
    "Δ": "D", "≈": "~", "→": "->", "≤": "<=", "≥": ">=", "–": "-", "—": "-", "·": "-", "×": "x", "…": "~", "✖": "X",
}  # fmt: skip


def legible(text: str) -> str:
    """Return a text in ASCII where the locale has nothing else."""
    if text.isascii() or speaks_unicode():
        return text
    return "".join(_WORDS.get(character, character if character.isascii() else "?") for character in text)
