"""An application whose every frame goes through the canvas, at the pace that the terminal takes."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from rich.console import RenderableType
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.driver import Driver
from textual.screen import Screen

from ranktop.tui.pacing import REPEAT, SELDOM, Pacer
from ranktop.tui.terminal.canvas import Canvas
from ranktop.tui.terminal.driver import TerminalDriver
from ranktop.tui.terminal.encode import NOWHERE
from ranktop.tui.terminal.flow import LEAST, TELLING, Flow
from ranktop.tui.terminal.kind import kind_of, link_limit
from ranktop.tui.terminal.pens import Pens

QUESTION: Final = "\x1b[6n"
"""DSR: asks the terminal for its cursor position."""

SETTLE: Final = 0.05
"""Seconds without a change of size before the screen is drawn anew."""

SYNC: Final = ("\x1b[?2026h", "\x1b[?2026l")
"""Asks the terminal to hold its picture meanwhile."""

LARGE: Final = 1024
"""Bytes of a piece that could be seen half done."""

HUNGUP: Final = 129
"""Exit code of a program whose terminal is gone, as after SIGHUP."""


class PacedApp(App[int]):
    """Sends what differs from what the terminal shows, and never more than it can take within a moment."""

    def __init__(self, *, interval: float = 0.5, ascii: bool = False) -> None:
        super().__init__(driver_class=TerminalDriver)
        self.flow = Flow(time.monotonic, link_limit())
        kind = kind_of()
        self.pacer = Pacer(time.monotonic, self.flow, interval, SELDOM if kind.relays else REPEAT)
        self.canvas = Canvas(kind, Pens(kind, self.console._color_system), ascii=ascii)
        self._settled_at = 0.0
        self._places: dict[tuple[int, int], int] = {}
        """Where the cursor stood at a question -> the question's number."""

    def leave(self, code: int) -> None:
        """End with this exit code."""
        self.exit(code)

    def terminal_lost(self) -> None:
        """End: the terminal is gone."""
        self.leave(HUNGUP)

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        """Take a frame (Textual's own method, which it calls for each) and send what may be sent of it now."""
        if not isinstance(self._driver, TerminalDriver) or not isinstance(renderable, (LayoutUpdate, ChopsUpdate)):
            super()._display(screen, renderable)
            return
        try:
            if self._running and not self._closed and not self._batch_count:
                if self.canvas.take(renderable):
                    self.flush()
                else:
                    self.screen.refresh()
        except Exception as error:
            self._handle_exception(error)
        finally:
            self.post_display_hook()

    def flush(self) -> None:
        """Send what the terminal does not show yet, as much as it takes now."""
        driver = self._driver
        if isinstance(driver, TerminalDriver) and driver.active and time.monotonic() >= self._settled_at:
            self._send(driver)
        self.pacer.behind = self.canvas.behind

    def _send(self, driver: TerminalDriver) -> None:
        canvas, flow = self.canvas, self.flow
        while canvas.behind and (room := flow.room()) > 0:
            if room < LEAST // 4 and not flow.idle():
                return
            data = canvas.piece(min(room, max(LEAST, flow.window // 2)))
            size = len(data.encode("utf-8", "replace"))
            if size >= TELLING and flow.idle():
                # Its answer tells when this piece begins to be read, and so how long the piece takes.
                data = self._question(flow.sent(0)) + data
            if self._sync_available and size > LARGE and not canvas.behind:
                data = data.join(SYNC)
            driver.write(data + self._question(flow.sent(size), canvas.cursor))

    def _question(self, number: int, cursor: tuple[int, int] = NOWHERE) -> str:
        """Return a question that can be told from others by the place of the (hidden) cursor that it asks for.

        ``cursor``: its row and column, where they are known; it need not be moved when no other question has them.
        """
        width, height = self.canvas.width, self.canvas.height
        if width < 8 or height < 4:
            return QUESTION
        if min(cursor) > 0 and cursor[::-1] not in self._places:
            self._note_place(cursor[1], cursor[0], number)
            return QUESTION
        # Never the first row or column: a terminal that always answers the same answers that.
        x, y = 1 + number % (width - 1), 1 + number // (width - 1) % (height - 1)
        self._note_place(x, y, number)
        return f"\x1b[{y + 1};{x + 1}H{QUESTION}"

    def _note_place(self, x: int, y: int, number: int) -> None:
        self._places[x, y] = number
        if len(self._places) > 64:
            self._places.pop(next(iter(self._places)))

    def on_cursor_position(self, event: events.CursorPosition) -> None:
        """Take the terminal's answer: it has read all before the question."""
        self.flow.answered(self._places.get((event.x, event.y)), event.time)
        self.go_on()

    def go_on(self) -> None:
        """Send more, or draw: there may be room now."""
        self.flush()

    async def on_event(self, event: events.Event) -> None:
        """Note keys and changes of the size before anything else does."""
        if isinstance(event, events.Key):
            self.flow.pressed()
        elif isinstance(event, events.Resize) and isinstance(self._driver, TerminalDriver):
            # Even when it is as large as before: what a terminal shows after two changes of its size is its own affair.
            self._afresh()
        await super().on_event(event)

    def _afresh(self) -> None:
        self.canvas.forget()
        self._places.clear()
        self._settled_at = time.monotonic() + SETTLE
        asyncio.get_running_loop().call_later(SETTLE + 0.001, self.flush)

    def on_driver_signal_resume(self, event: Driver.SignalResume) -> None:
        """Draw all again after a pause."""
        self.flow.forget()
        self._afresh()
        self.screen.refresh(layout=True)

    def heal(self) -> None:
        """Make up for a timer of Textual's that was lost: a new size is told to the screens by one."""
        if self._resize_event is not None:
            self._check_resize()
        self.flush()
