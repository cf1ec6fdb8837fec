"""Two ranks side by side: the selected one and a typical peer, or any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from ranktop.tui.keys import DIFF_KEYS, Key
from ranktop.tui.screens.above import AboveScreen
from ranktop.tui.screens.live import LiveScreen, bindings
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.diff import Pair, diff_lines, partner
from ranktop.tui.view.text import Line


class DiffScreen(AboveScreen):
    """Shows only what differs. The left rank is the one that is selected below."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(DIFF_KEYS)
    KEYS: ClassVar[tuple[Key, ...]] = DIFF_KEYS

    def __init__(self, below: LiveScreen) -> None:
        """``below`` is the screen that it was called from."""
        super().__init__(below)
        self.pair = Pair()

    def draw_lines(self, snapshot: Snapshot, size: tuple[int, int]) -> Sequence[Line]:
        """Return the screen's lines."""
        if self.options.selected is None and snapshot.ranks:
            self.options.selected = snapshot.ranks[0].rank
        if self.options.selected != self.pair.left:
            self.pair = Pair(self.options.selected)
        return diff_lines(snapshot, self.app.link(), self.pair, self.options, size, self.news())

    def action_scroll(self, by: int) -> None:
        """Scroll the lines."""
        self.pair.top = max(0, self.pair.top + by)
        self.hurry()

    def action_partner(self, by: int) -> None:
        """Put another rank beside it."""
        snapshot = self.snapshot()
        others = [view.rank for view in snapshot.ranks if view.rank != self.pair.left]
        if others:
            now = partner(self.pair, snapshot)
            at = others.index(now) if now in others else 0
            self.pair.right = others[(at + by) % len(others)]
        self.hurry()

    def action_typical(self) -> None:
        """Put the most typical peer beside it again."""
        self.pair.right = None
        self.say("beside the most typical of its peers")

    def action_swap(self) -> None:
        """Swap the two; the other one becomes the selected rank."""
        other = partner(self.pair, self.snapshot())
        if other is not None:
            self.pair = Pair(other, self.pair.left)
            self.options.selected = other
        self.hurry()
