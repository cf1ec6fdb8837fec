"""A screen that draws the session's snapshots at the pace that the terminal can read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.screen import Screen

from ranktop.tui.keys import Key
from ranktop.tui.session.state import Snapshot
from ranktop.tui.theme import MONO
from ranktop.tui.view.findings import SMALL, strip, with_notes
from ranktop.tui.view.label import labelled, simulated
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line, in_ascii
from ranktop.tui.widgets.lines import Lines

if TYPE_CHECKING:
    from ranktop.tui.app import RanktopApp

NOTICE_SECONDS = 3.0

SLICE: Final = 0.025
"""Seconds of arithmetic between two looks at the keys."""

PAUSE: Final = 0.001


def bindings(keys: Iterable[Key]) -> list[BindingType]:
    """Return what Textual needs of a screen's own keys."""
    return [
        Binding(key.keys, key.action, key.words, id=key.id, show=False, priority=key.priority)
        for key in keys
        if key.group != "program"
    ]


class LiveScreen(Screen[None]):
    """Asks the pacer when a frame is due; a subclass says what each of its parts shows."""

    KEYS: ClassVar[tuple[Key, ...]] = ()
    """The screen's own keys, for the help."""

    STRIP: ClassVar[bool] = True
    """Tell the gravest finding above the last line."""

    reads: tuple[str, str, tuple[int, ...]] | None = None
    """Key of the finding that the whole screen is about."""

    app: RanktopApp
    options: Options
    frozen: Snapshot | None = None
    """The picture that stands still, None while live."""
    notice: str = ""
    notice_until: float = 0.0
    resized: bool = True
    """Lay everything out anew with the next frame."""
    parts: Mapping[str, Lines] = {}
    """Widgets by id; empty until the screen is there."""

    @property
    def letters(self) -> bool:
        """Bars are drawn with letters: there is no colour, or no half block."""
        return self.options.glyphs.ascii or self.app.palette is MONO

    def on_mount(self) -> None:
        """Draw as soon as there is a size; from then on the application's timer asks whether a frame is due."""
        if not self.query("#scrubber"):  # a subclass may have called this before
            self.mount(Lines(id="scrubber"))
        self.parts = {part.id or "": part for part in self.query(Lines)}
        self.hurry()

    def on_resize(self, event: events.Resize) -> None:
        """Lay everything out anew."""
        self.resized = True
        self.hurry()

    def on_screen_resume(self) -> None:
        """Draw when the screen above has gone."""
        self.hurry()

    def tick(self) -> None:
        """Draw a frame when one is due."""
        if self.parts and self.is_current and self.app.pacer.due():
            self.draw()

    def hurry(self) -> None:
        """Draw at once unless the terminal still owes an answer; then as soon as it came."""
        self.app.pacer.hurry()
        self.tick()
        if wait := self.app.pacer.wait():  # a key is held down: its last picture must not be forgotten
            asyncio.get_running_loop().call_later(wait, self.call_later, self.tick)

    def say(self, text: str) -> None:
        """Tell something in the last line for a few seconds."""
        self.notice = text
        self.notice_until = self.app.clock() + NOTICE_SECONDS
        self.hurry()

    def soon(self, work: Callable[[], None]) -> None:
        """Do the next slice of some work after the keys that were pressed meanwhile.

        Not at once: callbacks that follow each other would leave the keys no turn. Not by ``set_timer``: Textual never
        fires a single timer that is late before it begins to wait, as happens on a busy machine, and the work would
        stand still.
        """
        asyncio.get_running_loop().call_later(PAUSE, self.call_later, work)

    def news(self) -> str:
        """Return what the last line should tell now: the last key's effect, or the dashboard's own trouble."""
        return self.notice if self.app.clock() < self.notice_until else self.app.trouble

    def snapshot(self) -> Snapshot:
        """Return what is to be shown."""
        return self.frozen or self.app.session.snapshot()

    @property
    def room(self) -> tuple[int, int]:
        """The (width, height) that there is for the screen's own lines."""
        width, height = self.size
        return width, height - self.app.replay.rows(height)

    def action_freeze(self) -> None:
        """Freeze the picture, or go on; a recording is paused, and played on."""
        if self.app.replay.on:
            self.app.replay.key("pause")
        elif self.frozen is None:
            self.frozen = self.app.session.snapshot(copy_history=True)
            self.options.frozen_at = self.frozen.now
            self.hurry()
        else:
            self.frozen = self.options.frozen_at = None
            self.say("live again")

    def draw(self) -> None:
        """Draw one snapshot; an exception becomes a notice, the screen keeps its last picture."""
        self.options.replaying, self.options.live_beside = self.app.replay.on, self.app.source is not None
        try:
            content = self.content()
            if simulated(state.card for state in self.app.session.ranks.values()):
                content = labelled(content)
            content = {**self.app.replay.marked(content), "scrubber": self._scrubber()}
            for name, lines in content.items():
                self.parts[name].show(lines, self.app.palette)
        except Exception as error:
            self.app.report(error)
        self.app.pacer.drawn()
        self.call_after_refresh(self.app.flush)

    def _scrubber(self) -> Sequence[Line]:
        """Return the last line of a replay; none while live."""
        width, height = self.size
        line = self.app.replay.line(self.options.glyphs, width)
        shown = line is not None and self.app.replay.rows(height) > 0
        self.parts["scrubber"].display = shown
        return (line,) if line is not None and shown else ()

    def content(self) -> Mapping[str, Sequence[Line]]:
        """Return the lines of every part of the next frame."""
        raise NotImplementedError

    def framed(self, draw: Callable[[Snapshot, tuple[int, int]], Sequence[Line]]) -> list[Line]:
        """Return the lines of a screen of one part: what ``draw`` makes of the snapshot and the (width, height) that
        the strip of findings leaves, with the strip above its last line."""
        snapshot, glyphs = self.snapshot(), self.options.glyphs
        self.options.letters = self.letters
        width, height = max(1, self.room[0]), max(1, self.room[1])
        above = strip(snapshot, glyphs, width, 1, self.reads) if self.STRIP and height >= SMALL else []
        lines = list(draw(snapshot, (width, height - len(above))))
        foot = [with_notes(line, snapshot, glyphs, width) for line in lines[-1:]] if height > 1 else lines[-1:]
        whole = [*lines[:-1], *above, *foot]
        return [in_ascii(line) for line in whole] if glyphs.ascii else whole

    def action_findings(self) -> None:
        """Go to what is out of line."""
        from ranktop.tui.screens.findings import FindingsScreen

        if not self.app.reveal(FindingsScreen):
            self.app.push_screen(FindingsScreen(self))
