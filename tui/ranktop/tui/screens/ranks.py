"""The ranks screen: one line per rank, the selected one in detail."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from ranktop.tui.keys import KEYS
from ranktop.tui.pacing import QUESTION
from ranktop.tui.screens.actions import RankActions
from ranktop.tui.theme import MONO
from ranktop.tui.view.frame import Frame, frame
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Glyphs
from ranktop.tui.widgets.lines import Lines


class RanksScreen(RankActions):
    """Draws the session's snapshots; every key changes the options and asks for a frame."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, key.words, id=key.id, show=False, priority=key.priority)
        for key in KEYS
        if key.group != "program"
    ]
    AUTO_FOCUS = ""

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self.options = Options(glyphs=glyphs)
        self._resized = True
        self._parts: dict[str, Lines] = {}
        """Widgets by id; empty until the screen is there."""

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
        yield Lines(id="footer")

    def on_mount(self) -> None:
        """Draw as soon as there is a size; from then on the application's timer asks whether a frame is due."""
        self._parts = {part.id or "": part for part in self.query(Lines)}
        self.hurry()

    def on_resize(self, event: events.Resize) -> None:
        """Lay everything out anew."""
        self._resized = True
        self.hurry()

    def tick(self) -> None:
        """Draw a frame when one is due."""
        if self._parts and self.is_current and self.app.pacer.due():
            self.draw()

    def hurry(self) -> None:
        """Draw at once unless the terminal still owes an answer; then as soon as it came."""
        self.app.pacer.hurry()
        self.tick()

    def draw(self) -> None:
        """Draw one snapshot; an exception becomes a notice, the screen keeps its last picture."""
        changed = 1
        try:
            changed = self._draw()
        except Exception as error:
            self.app.report(error)
        if self.app.pacer.drawn(changed):
            self.call_after_refresh(self.app.ask_terminal, QUESTION)

    def _draw(self) -> int:
        app, options = self.app, self.options
        snapshot = self.frozen or app.session.snapshot()
        options.letters = options.glyphs.ascii or app.palette is MONO
        notice = self.notice if app.clock() < self.notice_until else app.trouble
        width, height = self.size
        now = frame(snapshot, app.link(), options, (width, height), notice, app.clock())
        before, self.last = self.last, now
        if self._resized or before is None or before.heights != now.heights or before.right != now.right:
            self._lay_out(now)
            self._resized = False
        parts = {
            "header": (now.header,), "heading": (now.heading,), "bars": now.bars, "numbers": now.numbers,
            "legend": (now.legend,), "facts": now.facts, "side": now.side, "footer": (now.footer,),
        }  # fmt: skip
        changed = 0
        for name, lines in parts.items():
            changed += self._parts[name].show(lines, app.palette)
        return changed

    def _lay_out(self, now: Frame) -> None:
        rows = now.heights
        for name in ("header", "heading", "legend", "footer"):
            self.query_one(f"#{name}").display = getattr(rows, name) > 0
        panel = self.query_one("#detail")
        panel.display = rows.detail > 0
        panel.styles.height = rows.detail
        self.query_one("#numbers").styles.width = now.right
