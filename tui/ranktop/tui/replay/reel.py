"""One session fed from a recording, and how far into it that has come.

The rules are asked at times that depend on the recording alone, never on when a picture is drawn: so one way through
a recording finds the same as another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from ranktop.tui.replay.session_at import HUB
from ranktop.tui.replay.tape import Kept, Tape, is_sample, received
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.keeper import Keeper
from ranktop.tui.session.findings.scene import Key
from ranktop.tui.session.source import Reset, Whole
from ranktop.tui.session.state import Session, Snapshot
from ranktop.wire.schema import Item

LOOK: Final = 1.0
"""Seconds of the recording between two times that the rules are asked, as in the live dashboard."""

SELDOM: Final = 8.0
"""The most that may lie between two, however fast it goes."""

WARM: Final = 60.0
"""Seconds before the place that is sought from which on the rules are asked: some ask less of what stands already."""

CHUNK: Final = 400
"""Messages fed at once."""

Standing = Mapping[Key, tuple[float | None, int | None]]
"""Findings known to stand, and since when: (time, step)."""

Perf = Callable[[], float]


class Timetable(Keeper):
    """Asks the rules only when told to; between two times what they said stands."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.due = False

    def of(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """Return the findings of the last look, or of one now when it is due."""
        if not self.due:
            return self._found
        self.due = False
        return super().of(snapshot)

    def recall(self, standing: Standing, first: float) -> None:
        """Begin with findings that stand already, and since when; the rules were first asked at ``first``."""
        self._since, self._asked, self._first = dict(standing), first, first


class Past(Session):
    """A session whose stream never lags: what has come is all there was."""

    findings: Timetable

    def behind(self) -> float:
        """Return 0."""
        return 0.0


class Reel:
    """A session at one place of a recording. It goes forward only."""

    def __init__(
        self,
        tape: Tape,
        kept: Kept,
        start: float,
        standing: Mapping[Key, tuple[float | None, int | None]] | None = None,
    ) -> None:
        """Begin as a viewer that comes at ``start``; ``standing``: findings known to stand then."""
        self._tape = tape
        self._kept = kept
        self.at = start
        """How far it has come."""
        self.now = start
        """The session's clock: where samples are kept seldom, the time of the last of them."""
        self.session = Past(self._clock)
        self.session.findings = Timetable()
        self.found: tuple[Finding, ...] = ()
        """What the rules said when they were last asked."""
        self._held: list[Item] = []
        """Where samples are kept seldom: those that have come of a group that is not complete."""
        self._newest = -math.inf
        """When the last sample came of those that a viewer is told first."""
        self._looked = -math.inf
        first = start <= tape.begin
        self._filling: Iterator[Item] | None = None if first else tape.state_at(start)
        if first:
            self.at = self.now = tape.begin
            self._after = math.nextafter(tape.begin, -math.inf)
        else:
            self._after = start
        self.session.feed([Reset(job=tape.job, hub=HUB, replaced=False, parts=not first)])
        if standing:
            self.session.findings.recall(standing, start)
        if first:
            self._feed(tape.begin)
            self.look()

    def hand_over(self, tape: Tape, kept: Kept) -> None:
        """Go on with another handle of the same recording: another thread's."""
        self._tape, self._kept = tape, kept

    def _clock(self) -> float:
        return self.now

    @property
    def filled(self) -> bool:
        """Whether all that a viewer is told first has been taken."""
        return self._filling is None

    def fill(self, until: float, perf: Perf = time.perf_counter) -> bool:
        """Take what a viewer is told first, until ``perf`` says ``until``; True when all of it is there."""
        while self._filling is not None:
            some = list(islice(self._filling, CHUNK))
            self._take(some)
            self._newest = max([self._newest, *(item.t for item in some if is_sample(item))])
            if len(some) < CHUNK:
                self._filling = None
                if self._kept.step(self.at) and self._newest > -math.inf:
                    self.now = self._newest
                self.session.feed([Whole()])
                self.look()
            if perf() >= until:
                break
        return self.filled

    def play(self, to: float, every: float, until: float, perf: Perf = time.perf_counter) -> bool:
        """Go forward to ``to``, asking the rules every so many seconds; True when it is there, False for lack of time.

        Between two looks at the clock lie at most ``every`` seconds of the recording.
        """
        while self.at < to:
            stop = min(to, self.next_look(every))
            self._feed(stop)
            if stop < to or stop == self._grid(stop, every):
                self.look()
            if perf() >= until and self.at < to:
                return False
        return True

    def look(self) -> None:
        """Ask the rules now, unless that was done at this very time."""
        if self._looked != self.now:
            self.session.findings.due = True
            self._looked = self.now
            self.found = self.session.snapshot().findings

    def next_look(self, every: float) -> float:
        """Return the next time at which the rules are asked when that is so many seconds apart."""
        begin = self._tape.begin
        stop = begin + (math.floor((self.at - begin) / every) + 1) * every
        return stop if stop > self.at else stop + every

    def _grid(self, at: float, every: float) -> float:
        begin = self._tape.begin
        return begin + round((at - begin) / every) * every

    def _feed(self, stop: float) -> None:
        items = list(self._tape.items(self._after, stop))
        step = self._kept.step(stop)
        self.at = self._after = stop
        if not step:
            self.now = stop
            self._take([*self._held, *items])
            self._held = []
            return
        # Judge only where samples were kept, at the end of each step of the thinned part: between two of them no rank
        # is silent and no step of the training late. Of a rank its newest of each such step is kept.
        self._held += items
        done = math.floor(stop / step) * step
        if done <= self.now:
            return
        ready = [item for item in self._held if item.t < done]
        self._held = [item for item in self._held if item.t >= done]
        newest = max((item.t for item in ready if is_sample(item)), default=-math.inf)
        self.now = newest if newest >= done - step else done
        self._take(ready)

    def _take(self, items: Iterable[Item]) -> None:
        self.session.feed(received(items, self.now, self._tape.spacing))


def spaced(speed: float) -> float:
    """Return the seconds between two looks at a speed: a second up to 16x, then less often."""
    return min(SELDOM, LOOK * 2.0 ** math.ceil(math.log2(max(1.0, speed / 16))))
