"""Spans, lines and the way numbers are written: units, signs, ages, fitting into cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rich.cells import cell_len, set_cell_size

Span = tuple[str, str]
"""Text and the name of its style (space-separated words that the theme knows)."""

Line = tuple[Span, ...]
"""One row of cells."""

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters that differ between terminals with and without Unicode."""

    ascii: bool
    select: str = "▶"
    live: str = "●"
    waiting: str = "○"
    dash: str = "–"
    delta: str = "Δ"
    dot: str = "·"
    swatch: str = "■"
    end: str = "▏"
    rule: str = "│"
    failed: str = "✗"
    ended: str = "✓"
    silent: str = "?"
    starting: str = "◌"
    alert: str = "!"
    critical: str = "✖"
    note: str = "·"
    missing: str = "·"
    ellipsis: str = "…"
    about: str = "≈"
    either: str = "±"
    at_most: str = "≤"
    at_least: str = "≥"
    degree: str = "°C"
    arrow: str = "→"
    up: str = "▲"
    down: str = "▼"
    vertical: str = " ▁▂▃▄▅▆▇█"
    horizontal: str = " ▏▎▍▌▋▊▉█"


UNICODE: Final = Glyphs(ascii=False)
ASCII: Final = Glyphs(
    ascii=True, select=">", live="*", waiting="o", dash="-", delta="d", dot="-", swatch="#", end="|", rule="|",
    failed="x", ended="=", silent="?", starting="~", alert="!", critical="X", note="-", missing=".", ellipsis="~",
    about="~", either="+/-", at_most="<", at_least=">", degree="C", arrow="->", up="^", down="v",
    vertical=" .:-=+*#@", horizontal="         ",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unit:
    """The one unit in which a screen writes sizes."""

    name: str
    bytes: int


_UNITS: Final = (Unit("GiB", GIB), Unit("MiB", MIB), Unit("KiB", KIB))


def unit_for(largest_bytes: int | None) -> Unit:
    """Return the unit in which the largest number of a screen has two digits or more before the point."""
    for unit in _UNITS:
        if largest_bytes is not None and largest_bytes >= 4 * unit.bytes:
            return unit
    return _UNITS[-1]


def size(value: int | None, unit: Unit, decimals: int = 1, dash: str = "–") -> str:
    """Write bytes in a unit, without its name; a dash for unknown. Four digits need no decimals.

    What is so much larger than the screen's unit that its column would overflow is written in GiB, marked ``G``.
    """
    if value is None:
        return dash
    number = value / unit.bytes
    if abs(number) >= 100_000 and unit.bytes < GIB:
        return f"{value / GIB:,.1f}G"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.{decimals}f}"


def whole(value: int, unit: Unit) -> str:
    """Write bytes in a unit with as few decimals as say the same."""
    text = f"{value / unit.bytes:.1f}"
    return text.removesuffix(".0")


def signed(delta: int | None, unit: Unit, decimals: int, glyphs: Glyphs) -> str:
    """Write a difference with its sign: ``0`` when there is none, about zero when the unit is too coarse for it."""
    if delta is None:
        return glyphs.dash
    if delta == 0:
        return "0"
    if round(abs(delta) / unit.bytes, decimals) == 0:
        return f"{glyphs.about}{'+' if delta > 0 else '-'}0"
    return f"{delta / unit.bytes:+.{decimals}f}"


def human(value: int, *, sign: bool = False) -> str:
    """Write bytes with the unit that suits them, e.g. ``300 B``, ``1.5 KiB``."""
    mark = "+" if sign else ""
    for unit in _UNITS:
        if abs(value) >= unit.bytes:
            return f"{value / unit.bytes:{mark}.1f} {unit.name}"
    return f"{value:{mark}d} B"


def count(value: int) -> str:
    """Write a count with thousands separated."""
    return f"{value:,}"


def short_count(value: int) -> str:
    """Write a large count in the field's short form, e.g. ``8.03B``."""
    for limit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if value >= limit:
            return f"{value / limit:.3g}{name}"
    return str(value)


def seconds(value: float | None, dash: str = "–") -> str:
    """Write a step's or phase's seconds with three significant digits."""
    if value is None:
        return dash
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def duration(value: float) -> str:
    """Write an age in one unit, e.g. ``0.4 s``, ``12 s``, ``3 min``, ``2 h``, ``5 d``."""
    if value < 9.95:
        return f"{max(value, 0.0):.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.0f} h" if value < 48 * 3600 else f"{value / 86400:.0f} d"


def short_duration(value: float) -> str:
    """Write an age in three or four cells, e.g. ``12s``, ``3m``, ``2h``."""
    if value < 100:
        return f"{max(value, 0.0):.0f}s"
    return f"{value / 60:.0f}m" if value < 5970 else f"{value / 3600:.0f}h"


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """Return text from the wire as one line without control characters."""
    # Not at the top: commands that only print would wait for the wire's libraries.
    from ranktop.wire.codec import clean

    return " ".join(clean(text).split())


def fit(text: str, width: int, align: str = "<", ellipsis: str = "…") -> str:
    """Crop or pad text to exactly ``width`` cells."""
    if width <= 0:
        return ""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + ellipsis
    gap = " " * (width - length)
    return gap + text if align == ">" else text + gap


def length(line: Iterable[Span]) -> int:
    """Return the cells that a line takes."""
    return sum(cell_len(text) for text, _ in line)


def merge(spans: Iterable[Span]) -> Line:
    """Join neighbours of equal style and drop empty spans."""
    merged: list[Span] = []
    for text, style in spans:
        if not text:
            continue
        if merged and merged[-1][1] == style:
            merged[-1] = (merged[-1][0] + text, style)
        else:
            merged.append((text, style))
    return tuple(merged)


def pad(spans: Iterable[Span], width: int, style: str = "") -> Line:
    """Crop or pad a line to exactly ``width`` cells."""
    left = width
    out: list[Span] = []
    for text, name in spans:
        cells = cell_len(text)
        if cells > left:
            if left > 0:
                out.append((set_cell_size(text, left), name))
            left = 0
            break
        out.append((text, name))
        left -= cells
    if left > 0:
        out.append((" " * left, style))
    return merge(out)


def cut(line: Line, at: int) -> tuple[Line, Line]:
    """Split a line into its first ``at`` cells and the rest; a wide character across the cut becomes two blanks."""
    right: list[Span] = []
    done = 0
    for text, name in line:
        cells = cell_len(text)
        if done + cells > at:
            kept = max(0, at - done)
            if cells == len(text):
                rest = text[kept:]
            else:
                rest = text
                while cell_len(rest) > cells - kept:
                    rest = rest[1:]
                rest = rest.rjust(len(rest) + cells - kept - cell_len(rest))
            right.append((rest, name))
        done += cells
    return pad(line, at), merge(right)


def in_ascii(line: Line) -> Line:
    """Return the line without a character that is not ASCII, as wide as before."""
    return tuple((text if text.isascii() else "".join(map(_ascii, text)), name) for text, name in line)


def _ascii(character: str) -> str:
    known = {"·": "-", "×": "x", "–": "-", "…": "~", "°": " "}
    return character if character.isascii() else known.get(character, "?" * cell_len(character))


def beside(left: Iterable[Span], right: Iterable[Span], width: int, style: str = "") -> Line:
    """Put one line at each edge of ``width`` cells; the left one is cropped when they meet."""
    right = tuple(right)
    room = max(0, width - length(right))
    return pad((*pad(left, room, style), *right), width, style)


def first_that_fits(texts: Iterable[str], width: int) -> str:
    """Return the first text that fits, else the last one cropped."""
    text = ""
    for text in texts:
        if cell_len(text) <= width:
            return text
    return fit(text, width).rstrip() if width > 0 else ""


def ranges(numbers: Iterable[int], shortest: int = 3) -> str:
    """Write numbers with runs of ``shortest`` and more as ranges.

    >>> ranges([0, 1, 2, 3, 5, 6]), ranges([0, 1, 2, 3, 5, 6], 2)
    ('0-3, 5, 6', '0-3, 5-6')
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) >= shortest else [str(number) for number in run]
    return ", ".join(parts)
