"""The ranks screen: one line per rank, the selected one in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from ranktop.tui.keys import KEYS, Key
from ranktop.tui.screens.actions import RankActions
from ranktop.tui.screens.habits import habits
from ranktop.tui.screens.live import bindings
from ranktop.tui.view.frame import Frame, frame
from ranktop.tui.view.text import Glyphs, Line
from ranktop.tui.widgets.lines import Lines

HOLD: Final = 1.5
"""Pictures for which the detail panel's numbers stand: every other one has new ones."""


class RanksScreen(RankActions):
    """Draws the session's snapshots; every key changes the options and asks for a frame."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(KEYS)
    AUTO_FOCUS = ""
    KEYS: ClassVar[tuple[Key, ...]] = KEYS

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self.options = habits(glyphs)

    def compose(self) -> ComposeResult:
        """Yield the parts from top to bottom."""
        yield Lines(id="header")
        yield Lines(id="heading")
        with Horizontal(id="list"):
            yield Lines(id="bars")
            yield Lines(id="numbers")
        yield Lines(id="legend")
        with Horizontal(id="detail"):
            yield Lines(id="facts")
            yield Lines(id="side")
        yield Lines(id="findings")
        yield Lines(id="footer")

    def content(self) -> Mapping[str, Sequence[Line]]:
        """Return the lines of every part of the next frame."""
        app, options = self.app, self.options
        options.letters = self.letters
        # After a key everything is as new as it can be.
        options.hold = 0.0 if app.pacer.urgent or app.replay.on else HOLD * app.pacer.interval
        width, height = self.room
        now = frame(self.snapshot(), app.link(), options, (width, height), self.news(), app.session.clock())
        before, self.last = self.last, now
        if self.resized or before is None or before.heights != now.heights or before.right != now.right:
            self._lay_out(now)
            self.resized = False
        return {
            "header": (now.header,), "heading": (now.heading,), "bars": now.bars, "numbers": now.numbers,
            "legend": (now.legend,), "facts": now.facts, "side": now.side,
            "findings": now.findings, "footer": (now.footer,),
        }  # fmt: skip

    def show(self, rank: int | None) -> None:
        """Select a rank; a filter that hides it is dropped."""
        options = self.options
        options.selected = rank if rank is not None else options.selected
        if self.last is not None and self.last.table.index(rank) is None:
            options.filter = ""
        self.hurry()

    def _lay_out(self, now: Frame) -> None:
        rows = now.heights
        for name in ("header", "heading", "legend", "findings", "footer"):
            self.query_one(f"#{name}").display = getattr(rows, name) > 0
        self.query_one("#findings").styles.height = rows.findings
        panel = self.query_one("#detail")
        panel.display = rows.detail > 0
        panel.styles.height = rows.detail
        self.query_one("#numbers").styles.width = now.right
