"""The application: which screen, which source, and how it ends."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.theme import Theme
from textual.timer import Timer

from ranktop.tui import keymap
from ranktop.tui.config import given
from ranktop.tui.exit import end_on_signals, guarded
from ranktop.tui.garbage import collect_seldom
from ranktop.tui.keys import KEYS, REPLAY_KEYS
from ranktop.tui.pacing import pace
from ranktop.tui.replay.theatre import Theatre
from ranktop.tui.screens.choose import StartScreen
from ranktop.tui.screens.help import HelpScreen
from ranktop.tui.screens.live import LiveScreen
from ranktop.tui.screens.ranks import RanksScreen
from ranktop.tui.session.source import Link, Source
from ranktop.tui.session.state import Session
from ranktop.tui.terminal.kind import kind_of
from ranktop.tui.terminal.paced import PacedApp
from ranktop.tui.terminal.plain import look_once
from ranktop.tui.theme import DARK, LIGHT, after, choose, in_sixteen, speaks_unicode
from ranktop.tui.view.text import ASCII, UNICODE, plain

if TYPE_CHECKING:
    from ranktop.tui.replay.player import Player
    from ranktop.wire.endpoints import Found, JobEntry

FIND_EVERY = 1.0
"""Seconds between two searches for a job."""

DRAIN_EVERY = 0.1
"""Seconds between two looks at what has arrived, until there is a picture and for jobs of many ranks."""

FEW_RANKS = 256
BEATS = 2
"""Looks from one picture to the next for jobs of at most ``FEW_RANKS`` ranks: each wake-up costs."""

ASK_EVERY = 1.8
"""Seconds between two times that the rules are asked, unless something happened: every other picture, for they look
back over many."""

Find = Callable[[], "Found"]
Connect = Callable[["JobEntry"], Source]


class RanktopApp(PacedApp):
    """Drains the source into the session and shows it; without a source it looks for a job first."""

    CSS_PATH = "ranktop.tcss"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "ranktop"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, key.words, id=key.id, show=False, priority=key.priority)
        for key in (*KEYS, *REPLAY_KEYS)
        if key in REPLAY_KEYS or key.group == "program"
    ]

    def __init__(
        self,
        source: Source | None,
        *,
        find: Find | None = None,
        connect: Connect | None = None,
        theme: str | None = None,
        ascii: bool | None = None,
        interval: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        place: str = "",
    ) -> None:
        self.place = place
        """The other machine whose jobs are looked for; empty: this one."""
        self.palette = choose(theme)
        self.glyphs = ASCII if (not speaks_unicode() if ascii is None else ascii) else UNICODE
        super().__init__(interval=interval, ascii=self.glyphs.ascii)
        self._interval = interval
        if theme is None and self.console.color_system == "standard":
            self.palette = in_sixteen(self.palette)
        self.clock = clock
        self.live = Session(clock, budget_slice=0.03, findings_every=ASK_EVERY, keep_views=True)
        """The job that is watched; ``session`` is what is shown."""
        self.replay = Theatre(self)
        self.source = source
        self.trouble = ""
        """The last failure of a part of the dashboard itself, in one line."""
        self.on_quit: Callable[[int], None] = lambda code: None
        """Called with the exit code as soon as someone wants to quit."""
        self._find, self._connect = find, connect
        self._started = clock()
        self._busy = False
        self._beats: Timer | None = None
        self._beats_every = 0.0
        for palette in (DARK, LIGHT):
            self.register_theme(_textual_theme(palette.textual, palette is DARK))
        self.theme = self.palette.textual
        self.set_keymap(keymap.for_textual())

    def on_mount(self) -> None:
        """Show the first screen and begin to listen."""
        self.pacer.asks = not self.is_headless
        if not self.is_headless:
            end_on_signals(self.leave)
        self._look_every(DRAIN_EVERY)
        if self.source is not None or self.replay.on:
            self._watch(self.source)
            return
        self.push_screen(StartScreen())
        self.set_interval(FIND_EVERY, self.look)
        self.look()

    def waited(self) -> float:
        """Return the seconds since the dashboard started."""
        return self.clock() - self._started

    def link(self) -> Link:
        """Return how the connection is doing."""
        return self.replay.link() or (self.source.link() if self.source is not None else Link())

    @property
    def session(self) -> Session:
        """The job that is shown: as it is live, or as it was."""
        return self.replay.session() or self.live

    def beat(self) -> None:
        """Take what has arrived and draw when a frame is due: one timer for both, each wake-up costs."""
        self.heal()
        self.drain()
        self.pacer.interval = max(self._interval, pace(None if self.replay.on else self.live.interval))
        if self.screen_stack and isinstance(self.screen, LiveScreen):  # none, while the program ends
            self.screen.tick()
        few = 0 < len(self.session.ranks) <= FEW_RANKS
        collect_seldom(len(self.session.ranks))
        self._look_every(self.pacer.interval / BEATS if few else DRAIN_EVERY)

    def _look_every(self, seconds: float) -> None:
        if self._beats is not None:
            if self._beats_every == seconds:
                return
            self._beats.stop()
        self._beats, self._beats_every = self.set_interval(seconds, self.beat), seconds

    def drain(self) -> None:
        """Feed the session with what has arrived; a failure is shown and the rest goes on."""
        known = bool(self.session.ranks)
        self.replay.beat()
        try:
            if self.source is not None:
                received, link = self.source.drain(), self.source.link()
                self.live.unheard = (link.age or 0.0) if link.state == "lost" else 0.0
                self.live.feed(received)
            if self.session.failure:
                self.trouble = plain(f"! {self.session.failure}")
        except Exception as error:
            self.report(error)
        if self.session.ranks and not known:
            self.pacer.hurry()  # the first picture of a job need not wait for its turn

    def report(self, error: BaseException) -> None:
        """Show a failure in the last line; nothing closes because of it."""
        self.trouble = plain(f"! {type(error).__name__}: {error}")

    def look(self) -> None:
        """Search for jobs on a thread of its own, so that a hung file system does not hang the keys."""
        find = self._find
        if find is None or self._busy or self.source is not None:
            return
        self.in_background(find, self._take_found)

    def _take_found(self, found: Found) -> None:
        if self.source is not None:
            return
        if (job := found.obvious()) is not None:
            self.take(job)
        for screen in self.screen_stack:
            if isinstance(screen, StartScreen):
                screen.show(found)

    def take(self, job: JobEntry) -> None:
        """Attach to a job."""
        connect = self._connect
        if connect is not None and self.source is None:
            self.in_background(lambda: connect(job), self._watch)

    def in_background(self, work: Callable[[], object], then: Callable[..., None]) -> None:
        """Run on a daemon thread: unlike a worker's, the end of the program does not wait for it."""

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                self._back(self.report, error)
            else:
                self._back(then, result)

        self._busy = True
        threading.Thread(target=run, daemon=True, name="ranktop-find").start()

    def _back(self, then: Callable[..., None], result: object) -> None:
        def finish() -> None:
            self._busy = False
            try:
                then(result)
            except Exception as error:  # a recording that cannot be opened, above all
                self.report(error)

        # The loop is gone when the program ended while the thread was at work.
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self.call_later, finish)

    def _watch(self, source: Source | None) -> None:
        self.source = source
        self.trouble = ""
        self.drain()
        screen = RanksScreen(self.glyphs)
        if self.screen_stack and isinstance(self.screen, StartScreen):
            self.switch_screen(screen)
        else:
            self.push_screen(screen)

    def go_on(self) -> None:
        """Draw the newest picture if one is wanted, else send the rest of the last one."""
        if self.pacer.urgent and isinstance(self.screen, LiveScreen):
            self.screen.tick()
        if self.pacer.urgent or self.pacer.behind:
            self.flush()
        elif isinstance(self.screen, LiveScreen):
            self.screen.tick()

    def action_theme(self) -> None:
        """Go to the next theme."""
        self.palette = after(self.palette)
        self.theme = self.palette.textual
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.say(f"theme: {self.palette.name}")
            elif isinstance(screen, StartScreen):
                screen.draw()

    def action_help(self) -> None:
        """Show the keys."""
        if isinstance(self.screen, HelpScreen):
            return
        screen = self.screen
        if isinstance(screen, LiveScreen):
            self.push_screen(HelpScreen(screen.options, screen.KEYS))
        else:
            self.push_screen(HelpScreen(RanksScreen(self.glyphs).options, KEYS))

    def action_replay(self, what: str, by: float = 0.0) -> None:
        """Do what a key of the replay says."""
        self.replay.key(what, by)

    def action_findings(self) -> None:
        """Show what is out of line."""
        if isinstance(self.screen, LiveScreen):
            self.screen.action_findings()

    def reveal(self, kind: type[LiveScreen]) -> bool:
        """Go back to the topmost screen of this kind; False where there is none below."""
        found = next((screen for screen in reversed(self.screen_stack) if isinstance(screen, kind)), None)
        while found is not None and self.screen is not found:
            self.pop_screen()
        return found is not None

    def show_rank(self, rank: int | None) -> None:
        """Go back to the ranks, to this one; a filter that hides it is dropped."""
        if self.reveal(RanksScreen) and isinstance(self.screen, RanksScreen):
            self.screen.show(rank)

    async def action_quit(self) -> None:
        """End with exit code 0."""
        self.leave(0)

    def leave(self, code: int) -> None:
        """End with this exit code; whatever hangs is left behind."""
        self.on_quit(code)
        self.exit(code)


def _textual_theme(name: str, dark: bool) -> Theme:
    palette = DARK if dark else LIGHT
    words = palette.words
    return Theme(
        name=name, primary=words["accent"], secondary=words["dim"], warning=words["warn"], error=words["bad"],
        success=words["good"], accent=words["accent"], foreground=words["text"],
        background="#14171f" if dark else "#fbfbfd", surface="#14171f" if dark else "#fbfbfd",
        panel="#222a3a" if dark else "#e6eaf2", dark=dark,
    )  # fmt: skip


def run(
    source: Source | None,
    *,
    find: Find | None = None,
    connect: Connect | None = None,
    theme: str | None = None,
    ascii: bool | None = None,
    interval: float = 0.5,
    place: str = "",
    player: Player | None = None,
) -> int:
    """Run the dashboard until it is quit and return its exit code; the source is closed at the end.

    An unknown theme is bad usage: one line and code 2. A terminal that cannot place text gets one plain table.
    """
    if player is None and kind_of().plain:
        return look_once(source, find, connect, os.environ.get("TERM", ""))
    gc.freeze()
    collect_seldom()
    theme, ascii = given("dashboard.theme", theme), given("dashboard.ascii", ascii)
    theme, ascii = None if theme == "auto" else theme, None if ascii == "auto" else ascii
    try:
        app = RanktopApp(source, find=find, connect=connect, theme=theme, ascii=ascii, interval=interval, place=place)
    except ValueError as error:
        print(f"ranktop: {error}", file=sys.stderr)
        return 2
    if player is not None:
        app.replay.open(player)
    try:
        return guarded(app)
    finally:
        app.replay.close()
