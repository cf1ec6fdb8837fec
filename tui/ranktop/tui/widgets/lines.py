"""The one widget of the dashboard: lines of spans, repainted only in the cells that changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ranktop.tui.theme import DARK, Palette, base, resolve
from ranktop.tui.view.text import Line, Span, length

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
        width = self.size.width
        dirty: list[Region] = []
        changed = 0
        for y in range(max(len(new), len(old))):
            before, after = _at(old, y), _at(new, y)
            if before != after:
                changed += 1
                start, stop = changed_cells(before or (), after or ())
                if start < width:
                    dirty.append(Region(start, y, min(stop, width) - start, 1))
        if dirty:
            self.refresh(*dirty)
        return changed

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

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the strips of a region (called by Textual for every widget of a frame, changed or not).

        On a ground of its own a line's colours are complete: there is no border, padding, tint or colour of the
        terminal's to resolve, and so no need for what Textual does to every line of every frame.
        """
        if not self.palette.ground:
            return super().render_lines(crop)
        width, ground = self.size.width, base(self.palette)
        strips = [self.render_line(y).adjust_cell_length(width, ground) for y in crop.line_range]
        if crop.column_span != (0, width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips


def _at(lines: tuple[Line, ...], y: int) -> Line | None:
    return lines[y] if y < len(lines) else None


def changed_cells(old: Line, new: Line) -> tuple[int, int]:
    """Return the first cell in which two lines differ, and the one behind the last.

    What is equal between them is left out later, by the terminal's canvas. Everything, when the lines are not equally
    wide or hold characters that do not take exactly one cell.
    """
    before, after = _width(old), _width(new)
    if before is None or before != after:
        return 0, max(length(old), length(new))
    first = _alike(old, new)
    backwards = ([(text[::-1], style) for text, style in reversed(line)] for line in (old, new))
    return first, before - min(before - first, _alike(*backwards))


def _alike(one: Iterable[Span], other: Iterable[Span]) -> int:
    """Return how many cells two lines have in common from their beginning on."""
    cells = 0
    for (text, style), (another, its) in zip(one, other, strict=False):
        if style != its:
            break
        if text != another:
            return cells + next(
                (at for at, pair in enumerate(zip(text, another, strict=False)) if pair[0] != pair[1]),
                min(len(text), len(another)),
            )
        cells += len(text)
    return cells


def _width(line: Line) -> int | None:
    """Return the characters of a line, None when one of them does not take exactly one cell."""
    return sum(len(text) for text, _ in line) if all(text.isascii() or _single(text) for text, _ in line) else None


@lru_cache(maxsize=4096)
def _single(text: str) -> bool:
    """Tell whether every character of a text takes one cell."""
    return all(cell_len(character) == 1 for character in text)
