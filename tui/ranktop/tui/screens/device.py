"""The device of one rank in all that it says, live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ranktop.tui.keys import DEVICE_KEYS, Key
from ranktop.tui.screens.live import LiveScreen, bindings
from ranktop.tui.view.device_screen import Look, device_lines
from ranktop.tui.view.text import Line
from ranktop.tui.widgets.lines import Lines


class DeviceScreen(LiveScreen):
    """Shows the selected rank's device; another rank that is selected here stays selected below."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(DEVICE_KEYS)
    AUTO_FOCUS = ""
    KEYS: ClassVar[tuple[Key, ...]] = DEVICE_KEYS

    def __init__(self, below: LiveScreen) -> None:
        """``below`` is the screen that it was called from: options and a picture that stands still are the same."""
        super().__init__()
        self.below, self.options, self.frozen = below, below.options, below.frozen
        self.look = Look()

    def compose(self) -> ComposeResult:
        """Yield the one widget."""
        yield Lines(id="text")

    def content(self) -> Mapping[str, Sequence[Line]]:
        """Return the screen's lines."""
        self.options.letters = self.letters
        size = (self.size.width, self.size.height)
        lines = device_lines(self.snapshot(), self.app.link(), self.look, self.options, size, self.news())
        return {"text": lines}

    def action_scroll(self, by: int) -> None:
        """Scroll the lines."""
        self.look.top = max(0, self.look.top + by)
        self.hurry()

    def action_rank(self, by: int) -> None:
        """Go to another rank's device."""
        ranks = [view.rank for view in self.snapshot().ranks]
        if ranks:
            at = ranks.index(self.options.selected) if self.options.selected in ranks else 0
            self.options.selected = ranks[max(0, min(len(ranks) - 1, at + by))]
        self.hurry()

    def action_freeze(self) -> None:
        """Freeze the picture here and below, or go on."""
        super().action_freeze()
        self.below.frozen = self.frozen

    def action_back(self) -> None:
        """Go back to the ranks."""
        self.dismiss()
