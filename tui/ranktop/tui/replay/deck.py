"""A recording that is played: the playhead, the session that it shows, and the one that is being prepared."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ranktop.tui.replay.playhead import Playhead
from ranktop.tui.replay.reel import LOOK, Reel, Standing, spaced
from ranktop.tui.replay.seeker import Here, Seeker, Sought
from ranktop.tui.replay.tape import Kept, Tape
from ranktop.tui.session.state import Session

SLICE: Final = 0.04
"""Seconds of work between two looks at the keys."""

NEAR: Final = 15.0
"""Seconds ahead up to which a place is played to instead of being sought."""

GROWS_EVERY: Final = 1.0
"""Seconds between two looks whether the recording has grown."""


class Deck:
    """Plays a recording. Work is done in ``work``, a slice at a time; ``session`` is what is shown meanwhile."""

    def __init__(
        self,
        tape: Tape,
        *,
        at: float | None = None,
        real: Callable[[], float] = time.monotonic,
        standing: Callable[[float], Standing | None] = lambda t: None,
        growing: bool = False,
        seeker: Seeker | Here | None = None,
    ) -> None:
        """``at``: where it stands first, by default at the beginning. ``standing``: findings known to stand then.

        ``growing``: the job still runs, more is recorded meanwhile. ``seeker``: prepares what is sought; None: at once.
        """
        self.tape = tape
        self._kept = Kept(tape)
        self.growing = growing
        self._real = real
        self._standing = standing
        self._seeker = seeker or Here(tape)
        self._grown = real()
        start = tape.begin if at is None else self._within(at)
        self.head = Playhead(real, start)
        self._shown: Reel | None = None
        self._sought: Sought | None = None
        self._empty = Session(lambda: start)
        self._empty.job = tape.job
        self.seek(start)

    @property
    def session(self) -> Session:
        """What is shown: of where the playhead stands, or stood until what is sought is there."""
        return self._shown.session if self._shown is not None else self._empty

    @property
    def at(self) -> float:
        """Where the playhead stands, seconds on the recording's clock."""
        return self.head.at

    @property
    def now(self) -> float:
        """The time of the picture: earlier than ``at`` where samples are kept seldom, and while something is sought."""
        return self._shown.now if self._shown is not None else self.head.at

    @property
    def seeking(self) -> bool:
        """Whether the picture is still that of another place."""
        return self._sought is not None or self._shown is None or self._shown.at < self.head.at

    @property
    def waiting(self) -> bool:
        """Whether what is sought is being prepared by someone else: there is nothing to do here meanwhile."""
        return self._sought is not None and not self._sought.ready

    @property
    def spacing(self) -> float:
        """Seconds between the samples that are kept here; 0 where all are."""
        return self._kept.step(self.head.at)

    @property
    def ended(self) -> bool:
        """Whether it stands at the end."""
        return self.head.at >= self.tape.end

    def seek(self, at: float) -> None:
        """Go to a time; ``work`` prepares the picture."""
        at = self._within(at)
        self.head.jump(at)
        ahead = at - self._shown.at if self._shown is not None and self._sought is None else -1.0
        if 0 <= ahead <= NEAR:
            return  # not far ahead: it is played there
        self._sought = Sought(at, self._standing)
        self._seeker.seek(self._sought)

    def _within(self, at: float) -> float:
        return max(self.tape.begin, min(self.tape.end, at))

    def step(self, by: float) -> None:
        """Pause, and go so many seconds on or back."""
        self.pause()
        self.seek(self.head.at + by)

    def pause(self) -> None:
        """Stand still, at what is shown."""
        if self.head.playing and not self.seeking and self._shown is not None:
            self.head.jump(self._shown.at)
        self.head.pause()

    def play(self) -> None:
        """Go on; at the end of a recording from its beginning."""
        if self.ended:
            self.seek(self.tape.begin)
        self.head.play()

    def work(self, most: float = SLICE, perf: Callable[[], float] = time.perf_counter) -> bool:
        """Do what is due, for at most about ``most`` seconds; True when the picture is that of the playhead."""
        until = perf() + most
        self._grow()
        if (sought := self._sought) is not None:
            self.head.reached(self.head.at)
            if not sought.ready:
                return False
            self._sought = None
            if sought.failure is not None:
                raise sought.failure
            if sought.reel is not None:
                sought.reel.hand_over(self.tape, self._kept)
                self._shown = sought.reel
        reel = self._shown
        if reel is None:
            return True
        goal = self._within(self.head.due())
        there = reel.play(goal, spaced(self.head.speed) if self.head.playing else LOOK, until, perf)
        if self.head.playing:
            self.head.reached(reel.at)
            if reel.at >= self.tape.end and not self.growing:
                self.head.pause()
        if there and not self.head.playing:
            reel.look()
        return there

    def _grow(self) -> None:
        now = self._real()
        if self.growing and now - self._grown >= GROWS_EVERY:
            self._grown = now
            self.tape.refresh()
            self._kept.refresh()

    def close(self) -> None:
        """Let go of the recording."""
        self._seeker.close()
        self.tape.close()
