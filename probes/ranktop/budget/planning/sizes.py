"""How sizes, times and long lines are written: three digits, one unit for the whole page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

DASH: Final = "–"


@dataclass(frozen=True, slots=True)
class Unit:
    """The one unit of a page."""

    name: str
    bytes: int

    def write(self, size: int | None) -> str:
        """Write bytes with three digits and without the unit; a dash for unknown. At most five cells."""
        if size is None:
            return DASH
        number = abs(size) / self.bytes
        sign = "-" if size < 0 else ""
        if number == 0:
            return "0"
        if number < 0.005:
            return f"{sign}<.01"
        if number < 9.995:
            return f"{sign}{number:.2f}"
        if number < 99.95:
            return f"{sign}{number:.1f}"
        return f"{sign}{number:.0f}" if number < 9999.5 else f"{sign}{number / 1024:.0f}K"

    def named(self, size: int | None) -> str:
        """Write bytes with the unit."""
        return f"{self.write(size)} {self.name}"


GIB: Final = Unit("GiB", 2**30)
MIB: Final = Unit("MiB", 2**20)

SMALL: Final = 2**30 // 8
"""A model of which no part is larger is shown in MiB."""


def unit_for(sizes: Iterable[int]) -> Unit:
    """Return GiB, and MiB where all sizes would be hundredths of it."""
    return MIB if 0 < max(sizes, default=0) < SMALL else GIB


def seconds(value: float) -> str:
    """Write seconds with two digits."""
    if value == 0:
        return "0"
    if value < 0.000995:
        return "<1ms"
    if value < 0.0995:
        return f"{1000 * value:.2g}ms"
    return f"{value:.2f}s" if value < 9.95 else f"{value:.0f}s"


def fold(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text in lines of at most ``width`` cells; names with a hyphen stay whole."""
    return wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or [""]
