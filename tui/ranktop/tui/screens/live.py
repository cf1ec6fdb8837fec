"""A screen that draws the session's snapshots at the pace that the terminal can read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.screen import Screen

from ranktop.tui.keys import Key
from ranktop.tui.pacing import QUESTION
from ranktop.tui.session.state import Snapshot
from ranktop.tui.theme import MONO
from ranktop.tui.view.label import labelled, simulated
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line
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

    def action_freeze(self) -> None:
        """Freeze the picture, or go on."""
        if self.frozen is None:
            self.frozen = self.app.session.snapshot(copy_history=True)
            self.options.frozen_at = self.frozen.now
            self.hurry()
        else:
            self.frozen = self.options.frozen_at = None
            self.say("live again")

    def draw(self) -> None:
        """Draw one snapshot; an exception becomes a notice, the screen keeps its last picture."""
        changed = 1
        try:
            content = self.content()
            if simulated(state.card for state in self.app.session.ranks.values()):
                content = labelled(content)
            changed = sum(self.parts[name].show(lines, self.app.palette) for name, lines in content.items())
        except Exception as error:
            self.app.report(error)
        if self.app.pacer.drawn(changed):
            self.call_after_refresh(self.app.ask_terminal, QUESTION)

    def content(self) -> Mapping[str, Sequence[Line]]:
        """Return the lines of every part of the next frame."""
        raise NotImplementedError
