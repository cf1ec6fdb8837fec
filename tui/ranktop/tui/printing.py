"""Styled lines for a terminal that scrolls: the terminal's own colours, and the categories in ours."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from typing import Final

from rich.color import ColorSystem

from ranktop.tui.theme import ANSI_DARK, ANSI_LIGHT, DARK, LIGHT, Palette, choose, resolve
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
    return "".join(resolve(style, palette).render(text, color_system=system) for text, style in spans)
