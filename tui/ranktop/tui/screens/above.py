"""A screen that was called from another one and shows the same picture: the base of the later ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.app import ComposeResult

from ranktop.tui.screens.live import LiveScreen
from ranktop.tui.screens.ways import WaysScreen
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.text import Line
from ranktop.tui.widgets.lines import Lines


class AboveScreen(WaysScreen):
    """One part, full of lines; what is selected, and a picture that stands still, are those of the screen below."""

    AUTO_FOCUS = ""

    def __init__(self, below: LiveScreen) -> None:
        """``below`` is the screen that it was called from."""
        super().__init__()
        self.below, self.options, self.frozen = below, below.options, below.frozen

    def compose(self) -> ComposeResult:
        """Yield the one widget."""
        yield Lines(id="text")

    def content(self) -> Mapping[str, Sequence[Line]]:
        """Return the screen's lines."""
        return {"text": self.framed(self.draw_lines)}

    def draw_lines(self, snapshot: Snapshot, size: tuple[int, int]) -> Sequence[Line]:
        """Return exactly as many lines as the size has, the hints last."""
        raise NotImplementedError

    def action_freeze(self) -> None:
        """Freeze the picture here and below, or go on."""
        super().action_freeze()
        for screen in self.app.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.frozen = self.frozen

    def action_back(self) -> None:
        """Go back to where it was called."""
        self.dismiss()

    def action_rank(self, by: int) -> None:
        """Select another rank."""
        ranks = [view.rank for view in self.snapshot().ranks]
        if ranks:
            at = ranks.index(self.options.selected) if self.options.selected in ranks else 0
            self.options.selected = ranks[max(0, min(len(ranks) - 1, at + by))]
        self.hurry()
