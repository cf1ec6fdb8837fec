"""The replay within the dashboard: opened at the start, or on the recording of the job that is watched live."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranktop.tui.keymap import of
from ranktop.tui.screens.live import LiveScreen
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Session
from ranktop.tui.view.label import REPLAY, labelled
from ranktop.tui.view.scrubber import scrubber
from ranktop.tui.view.text import Glyphs, Line, in_ascii, plain

if TYPE_CHECKING:
    from ranktop.tui.app import RanktopApp
    from ranktop.tui.replay.player import Player

LEAST_ROWS: Final = 5
"""Rows of a screen from which on the scrubber has one of its own; below that the header alone tells."""

BUSY: Final = 0.14
"""Seconds of work between two beats of the dashboard: the rest is for its pictures and its keys."""

WAIT: Final = 0.03
"""Seconds between two looks whether what is sought is ready."""


def _hints() -> str:
    return f"{of('replay-minute-back')} a minute back, {of('replay-pause').lower()} plays, {of('replay')}: live again"


class Theatre:
    """Whether the dashboard shows a recording, and what the keys of the replay do then."""

    def __init__(self, app: RanktopApp) -> None:
        self.player: Player | None = None
        self._app = app
        self._spent = 0.0
        self._going = False
        self._surveyed = False
        self._failed = False
        self._fetching = False

    @property
    def on(self) -> bool:
        """Whether a recording is shown."""
        return self.player is not None

    def session(self) -> Session | None:
        """Return the session that is shown; None while live."""
        return self.player.deck.session if self.player is not None else None

    def link(self) -> Link | None:
        """Return where the replay stands; None while live."""
        return self.player.link() if self.player is not None else None

    def open(self, player: Player) -> None:
        """Show a recording."""
        self.close()
        self.player, self._going = player, False
        self._surveyed = False
        self._thaw()
        self.beat()

    def close(self) -> None:
        """Let go of the recording: live again, where there is a live job."""
        player, self.player = self.player, None
        if player is not None:
            player.close()

    # Where it stands, on the screen.

    def rows(self, height: int) -> int:
        """Return the rows that the scrubber takes of a screen of that height."""
        return int(self.on and height >= LEAST_ROWS)

    def line(self, glyphs: Glyphs, width: int) -> Line | None:
        """Return the scrubber; None while live."""
        if self.player is None:
            return None
        line = scrubber(self.player.scrub(), glyphs, width)
        return in_ascii(line) if glyphs.ascii else line

    def marked(self, parts: Mapping[str, Sequence[Line]]) -> Mapping[str, Sequence[Line]]:
        """Say in the first line of a screen that it is a replay; unchanged while live."""
        return labelled(parts, REPLAY) if self.on else parts

    # Work.

    def beat(self) -> None:
        """Go on as far as is due."""
        self._spent = 0.0
        if not self._going:
            self._go()

    def _go(self) -> None:
        app, player = self._app, self.player
        self._going = False
        if player is None:
            return
        sought = player.deck.seeking
        began = app.clock()
        try:
            there = player.deck.work()
        except Exception as error:  # a damaged recording: told, and the picture stays
            app.report(error)
            player.deck.head.pause()
            self._failed = True
            return
        self._spent += app.clock() - began
        if there and not self._surveyed:
            self._surveyed = True  # only now: the first picture comes first
            player.survey.start()
        screen = app.screen if app.screen_stack else None
        if not isinstance(screen, LiveScreen):
            return
        if there and sought:
            screen.hurry()
        elif player.deck.waiting:
            self._going = True
            asyncio.get_running_loop().call_later(WAIT, screen.call_later, self._go)
        elif not there and (player.deck.seeking or self._spent < BUSY):
            self._going = True
            screen.soon(self._go)

    # Keys.

    def key(self, what: str, by: float = 0.0) -> None:
        """Do what a key of the replay says, and tell what it did."""
        screen = self._app.screen
        if not isinstance(screen, LiveScreen):
            return
        if what == "live":
            self._turn(screen)
            return
        player = self.player
        if player is None:
            screen.say("this is live; R looks back in the job's recording")
            return
        keys: dict[str, Callable[[], str]] = {
            "pause": player.toggle,
            "speed": partial(player.faster, int(by)),
            "step": partial(player.step, by),
            "skip": partial(player.skip, by),
            "share": partial(player.share, by / 10),
            "finding": partial(player.finding, int(by)),
        }
        try:
            said = keys[what]()
        except Exception as error:  # as above
            self._app.report(error)
            return
        self._failed = False
        if not self._going:
            self._go()
        if self._failed:
            screen.notice_until = 0.0  # what went wrong stands there then
            screen.hurry()
        else:
            screen.say(said)

    def _turn(self, screen: LiveScreen) -> None:
        """From live to the recording, or back."""
        app = self._app
        if self.on and app.source is None:
            screen.say("this is a recording: there is nothing live to go to; q quits")
        elif self.on:
            self.close()
            self._thaw()
            screen.say("live again")
        elif app.live.job is None:
            screen.say("nothing is known of the job yet")
        elif place := app.link().place:
            self._fetch(screen, plain(place), app.live.job.id)
        else:
            app.in_background(partial(_recording_of, app.live.job.id), self._found)

    def _fetch(self, screen: LiveScreen, place: str, job: str) -> None:
        """Have a copy of the recording brought here from where the hub is."""
        fetch: Callable[[str], Path] | None = getattr(self._app.source, "recording", None)
        command = f"quit, then: ranktop replay {place}/{plain(job)}"
        if fetch is None:
            screen.say(f"recorded there; {command}")
            return
        screen.say(f"fetching the recording from {place}; live goes on meanwhile")
        if self._fetching:
            return
        self._fetching = True

        def work() -> Path | str:
            try:
                return fetch(job)
            except Exception as error:  # what goes wrong with ssh has many names
                return f"{command} ({plain(str(error))})"

        self._app.in_background(work, self._fetched)

    def _fetched(self, found: Path | str) -> None:
        self._fetching = False
        screen = self._app.screen
        if not isinstance(screen, LiveScreen) or self.on:
            return
        if isinstance(found, str):
            screen.say(found)
            return
        player = player_of(found, growing=False, real=self._app.clock)
        self.open(player)
        screen.say(f"paused at {player.wall()}, where the copy ends; {_hints()}")

    def _found(self, path: Path | None) -> None:
        screen = self._app.screen
        if not isinstance(screen, LiveScreen) or self.on:
            return
        if path is None:
            screen.say("this job has no recording here; where its hub has another RANKTOP_STATE_DIR, set the same")
            return
        player = player_of(path, growing=True, real=self._app.clock)
        self.open(player)
        screen.say(f"paused at {player.wall()}; {_hints()}")

    def _thaw(self) -> None:
        """Let pictures that stand still go on: they are of another time."""
        for screen in self._app.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.frozen = None
                screen.options.frozen_at = None
                screen.resized = True


def _recording_of(job_id: str) -> Path | None:
    """Return the newest recording of a job on this machine."""
    from ranktop.wire.recordings import list_recordings

    own = [entry for entry in list_recordings() if entry.job_id == job_id]
    return max(own, key=lambda entry: (entry.live, entry.started)).path if own else None


def player_of(path: Path, *, growing: bool, real: Callable[[], float]) -> Player:
    """Return a player that stands at the end of a recording."""
    from ranktop.tui.replay.player import Player
    from ranktop.wire.recording import Recording

    return Player(partial(Recording.open, path), at=math.inf, growing=growing, real=real)
