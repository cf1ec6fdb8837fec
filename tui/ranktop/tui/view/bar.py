"""The two-in-one bar: upper half expected, lower half measured, one colour a category, one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ranktop.budget.terms import CATEGORIES
from ranktop.tui.view.text import Glyphs, Line, merge

LETTERS: Final = {
    "parameters": "p", "gradients": "g", "optimizer": "o", "activations": "a", "buffers": "b",
    "cache": "c", "runtime": "r", "other": "x",
}  # fmt: skip
"""One letter per category, for terminals without colour."""

DRAWN: Final = tuple(name for name in CATEGORIES if name != "free")

_KEYS: Final = {name: LETTERS[name] for name in DRAWN}


def cells(amounts: Mapping[str, int | None], scale: int, width: int, drawn: Sequence[str] = DRAWN) -> str:
    """Return one letter per cell for the stacked categories, ``.`` for what is left of ``width``.

    A boundary falls on the nearest cell; what exceeds the scale is cropped.
    """
    if scale <= 0 or width <= 0:
        return "." * max(width, 0)
    out: list[str] = []
    filled, sum_bytes = 0, 0
    for name in drawn:
        value = amounts.get(name)
        if not value or value < 0:
            continue
        sum_bytes += value
        edge = min(width, round(sum_bytes / scale * width))
        if edge > filled:
            out.append(_KEYS[name] * (edge - filled))
            filled = edge
    out.append("." * (width - filled))
    return "".join(out)


def half_blocks(upper: str, lower: str, faded: bool) -> Line:
    """Draw two rows of cells as one line of half blocks.

    Styles are named ``bar:ul`` after the letters of the halves, with ``faded`` for a rank that is gone.
    """
    spans: list[tuple[str, str]] = []
    suffix = " faded" if faded else ""
    for up, low in zip(upper, lower, strict=True):
        if up == low:
            glyph = " " if up == "." else "█"
        elif up == ".":
            glyph = "▄"
        else:
            glyph = "▀"
        spans.append((glyph, f"bar:{up}{low}{suffix}"))
    return merge(spans)


def letters(upper: str, lower: str, faded: bool, glyphs: Glyphs) -> Line:
    """Draw both rows as one line of letters: a capital where both agree, ``:`` where only expected reaches."""
    spans: list[tuple[str, str]] = []
    suffix = " faded" if faded else ""
    free = "." if glyphs.ascii else "·"
    for up, low in zip(upper, lower, strict=True):
        if low == ".":
            spans.append((free, f"track{suffix}") if up == "." else (":", f"key:{up}{suffix}"))
        else:
            spans.append((low.upper() if up == low else low, f"key:{low}{suffix}"))
    return merge(spans)
