"""What a rank left behind: the account of an out-of-memory, or of another death."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from ranktop.tui.keys import POSTMORTEM_KEYS, Key
from ranktop.tui.screens.above import AboveScreen
from ranktop.tui.screens.live import LiveScreen, bindings
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.postmortem import Account, dead, postmortem_lines
from ranktop.tui.view.text import Line


class PostmortemScreen(AboveScreen):
    """Tells of the selected rank."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(POSTMORTEM_KEYS)
    KEYS: ClassVar[tuple[Key, ...]] = POSTMORTEM_KEYS

    def __init__(self, below: LiveScreen) -> None:
        """``below`` is the screen that it was called from."""
        super().__init__(below)
        self.account = Account()

    def draw_lines(self, snapshot: Snapshot, size: tuple[int, int]) -> Sequence[Line]:
        """Return the screen's lines."""
        return postmortem_lines(snapshot, self.app.link(), self.account, self.options, size, self.news())

    def action_scroll(self, by: int) -> None:
        """Scroll the lines."""
        self.account.top = max(0, self.account.top + by)
        self.hurry()

    def action_death(self, by: int) -> None:
        """Go to another rank that died."""
        ranks = dead(self.snapshot())
        if len(ranks) < 2:
            self.say("no other rank has left a post-mortem")
            return
        at = ranks.index(self.options.selected) if self.options.selected in ranks else 0
        self.options.selected = ranks[(at + by) % len(ranks)]
        self.account.top = 0
        self.hurry()
