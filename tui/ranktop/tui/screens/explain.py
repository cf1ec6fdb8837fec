"""What one strategy does for this job, to be scrolled through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ranktop.budget.fit import Speeds
from ranktop.budget.run import Run
from ranktop.tui.keys import EXPLAIN_KEYS, Key
from ranktop.tui.screens.live import LiveScreen, bindings
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.hints import hint_line, place, window
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line, in_ascii, pad
from ranktop.tui.widgets.lines import Lines

HINTS = (("↑↓ PgUp PgDn", "scroll"), ("esc", "back"), ("?", "help"), ("q", "quit"))


class ExplainScreen(LiveScreen):
    """Explains a strategy for the run that was asked for when the screen was opened."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(EXPLAIN_KEYS)
    AUTO_FOCUS = ""
    KEYS: ClassVar[tuple[Key, ...]] = EXPLAIN_KEYS

    def __init__(self, run: Run, strategy: str, options: Options, at: Speeds) -> None:
        super().__init__()
        self.asked, self.strategy, self.options, self.at = run, strategy, options, at
        self._top = 0
        self._drawn: tuple[tuple[int, bool], list[Line]] | None = None

    def compose(self) -> ComposeResult:
        """Yield the one widget."""
        yield Lines(id="text")

    def content(self) -> Mapping[str, Sequence[Line]]:
        """Return the lines that the screen has room for, and where they are in the whole."""
        return {"text": self.framed(self._page)}

    def _page(self, _: Snapshot, size: tuple[int, int]) -> list[Line]:
        width, height = size
        lines = self._lines(width)
        room = max(1, height - 1)
        self._top, shown = window(lines, self._top, room)
        shown += [pad((), width)] * (room - len(shown))
        return [*shown, self._footer(len(lines), room, width)][:height]

    def _lines(self, width: int) -> list[Line]:
        letters = self.letters
        if self._drawn is None or self._drawn[0] != (width, letters):
            from ranktop.budget.explain import explain
            from ranktop.tui.view.explain import explain_lines

            found = explain_lines(explain(self.asked, self.strategy, at=self.at), width, self.options.glyphs, letters)
            self._drawn = (width, letters), found
        return self._drawn[1]

    def _footer(self, lines: int, room: int, width: int) -> Line:
        glyphs = self.options.glyphs
        line = hint_line(HINTS, self.news(), place(self._top, room, lines, glyphs), glyphs, width, EXPLAIN_KEYS)
        return in_ascii(line) if glyphs.ascii else line

    def action_scroll(self, by: int) -> None:
        """Scroll the text."""
        self._top = max(0, self._top + by)
        self.hurry()

    def action_back(self) -> None:
        """Go back to where it was called."""
        self.dismiss()
