"""The one widget of the dashboard: lines of spans, repainted only where they changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ranktop.tui.theme import DARK, Palette, base, resolve
from ranktop.tui.view.text import Line

_CACHE_LIMIT = 2048


class Lines(Widget, can_focus=False):
    """Shows lines by Textual's line API. A line that is equal to the last one is not sent again."""

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.palette: Palette = DARK
        self._shown: tuple[Line, ...] = ()
        self._strips: dict[Line, Strip] = {}

    @property
    def lines(self) -> tuple[Line, ...]:
        """What is shown, line by line."""
        return self._shown

    def show(self, lines: Sequence[Line], palette: Palette) -> int:
        """Show these lines and return how many of them changed."""
        new = tuple(lines)
        old = self._shown
        if palette is not self.palette:
            self.palette = palette
            self._strips.clear()
            old = ()
        if new == old:
            return 0
        self._shown = new
        changed = [y for y in range(max(len(new), len(old))) if _at(new, y) != _at(old, y)]
        width = self.size.width
        for start, stop in _runs(changed):
            self.refresh(Region(0, start, width, stop - start))
        return len(changed)

    def render_line(self, y: int) -> Strip:
        """Return one line as a strip (Textual's line API)."""
        if not 0 <= y < len(self._shown):
            return Strip.blank(self.size.width, base(self.palette))
        line = self._shown[y]
        strip = self._strips.get(line)
        if strip is None:
            if len(self._strips) > _CACHE_LIMIT:
                self._strips.clear()
            palette = self.palette
            strip = Strip([Segment(text, resolve(style, palette)) for text, style in line])
            self._strips[line] = strip
        return strip


def _at(lines: tuple[Line, ...], y: int) -> Line | None:
    return lines[y] if y < len(lines) else None


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Group neighbouring numbers into (start, stop)."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs
