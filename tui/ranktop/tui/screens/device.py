"""The device of one rank in all that it says, live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from ranktop.tui.keys import DEVICE_KEYS, Key
from ranktop.tui.screens.above import AboveScreen
from ranktop.tui.screens.live import LiveScreen, bindings
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.device_screen import Look, device_lines
from ranktop.tui.view.text import Line


class DeviceScreen(AboveScreen):
    """Shows the selected rank's device; another rank that is selected here stays selected below."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(DEVICE_KEYS)
    KEYS: ClassVar[tuple[Key, ...]] = DEVICE_KEYS

    def __init__(self, below: LiveScreen) -> None:
        """``below`` is the screen that it was called from."""
        super().__init__(below)
        self.look = Look()

    def draw_lines(self, snapshot: Snapshot, size: tuple[int, int]) -> Sequence[Line]:
        """Return the screen's lines."""
        return device_lines(snapshot, self.app.link(), self.look, self.options, size, self.news())

    def action_scroll(self, by: int) -> None:
        """Scroll the lines."""
        self.look.top = max(0, self.look.top + by)
        self.hurry()
