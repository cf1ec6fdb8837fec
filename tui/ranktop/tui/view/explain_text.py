"""What every part of an explanation is written with: width, glyphs, unit."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from ranktop.budget.planning.notes import ranks_words as ranks_words
from ranktop.budget.planning.sizes import GIB, MIB, Unit
from ranktop.budget.planning.table import MOMENT_WORDS as MOMENT_WORDS
from ranktop.tui.view.bar import LETTERS
from ranktop.tui.view.text import Glyphs, Line, Span

_ASCII: Final = str.maketrans(
    {"→": "->", "×": "x", "–": "-", "·": "-", "≥": ">=", "±": "+-", "…": "~", "“": '"', "”": '"'}
)

WHEN: Final = {
    "load": "while loading", "step_start": "at the start of the step", "forward": "in forward",
    "forward_end": "at the end of forward", "backward_start": "at the start of backward", "backward": "in backward",
    "backward_end": "at the end of backward", "optimizer_step": "in the optimizer's step",
    "step_end": "at the end of the step", "checkpoint_save": "while saving",
}  # fmt: skip
"""Moments within a sentence."""

_KIB: Final = Unit("KiB", 1024)


@dataclass(frozen=True, slots=True)
class Paper:
    """Where lines are put: how wide it is and what it can show."""

    width: int
    glyphs: Glyphs
    letters: bool
    """Bars are drawn with letters: there is no colour, or no block."""
    unit: Unit = GIB
    """Of tables."""

    def plain(self, text: str) -> str:
        """Return a text in the characters that there are."""
        return text.translate(_ASCII) if self.glyphs.ascii else text

    def size(self, value: int | None) -> str:
        """Write bytes with the unit that suits them, for sentences."""
        if value is None:
            return self.glyphs.dash
        unit = next((unit for unit in (GIB, MIB, _KIB) if abs(value) >= unit.bytes // 10), None)
        return f"{value} B" if unit is None else unit.named(value)

    def cell(self, value: int | None) -> str:
        """Write bytes in the tables' unit."""
        return self.plain(self.unit.write(value))

    def swatch(self, category: str) -> Span:
        """Return the sign of a category in its colour."""
        letter = LETTERS.get(category, ".")
        return (letter.upper() if self.letters else self.glyphs.swatch, f"key:{letter}")

    def heading(self, text: str, remark: str = "") -> list[Line]:
        """Return the line above a section."""
        title, aside = f" {self.plain(text)}", self.plain(remark)
        if len(title) + len(aside) + 2 <= self.width:
            return [((title, "accent bold"), (f"  {aside}" if aside else "", "dim"))]
        return [((title, "accent bold"),), *self.told(aside, "dim", indent=3)]

    def fold(self, text: str, room: int) -> list[str]:
        """Return a text in lines of at most ``room`` cells."""
        return wrap(self.plain(text), max(8, room), break_on_hyphens=False) or [""]

    def told(self, text: str, style: str = "text", indent: int = 1) -> list[Line]:
        """Return a text as lines with an indent."""
        return [((" " * indent + part, style),) for part in self.fold(text, self.width - indent)] if text else []

    def hanging(self, lead: str, lead_style: str, text: str, style: str = "text") -> list[Line]:
        """Return a text behind a sign, its further lines indented under its beginning."""
        indent = len(lead) + 2
        first, *rest = self.fold(text, self.width - indent)
        return [((f" {lead} ", lead_style), (first, style)), *(((" " * indent + part, style),) for part in rest)]
