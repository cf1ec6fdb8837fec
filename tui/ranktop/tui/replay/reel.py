"""One session fed from a recording, and how far into it that has come.

The rules are asked at times that depend on the recording alone, never on when a picture is drawn: so one way through
a recording finds the same as another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, pairwise
from typing import Final

from ranktop.tui.replay.session_at import HUB
from ranktop.tui.replay.tape import THINNED, Tape, is_sample, received, spacing
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

TOGETHER: Final = 1.5
"""Seconds within which the samples of all ranks come that belong together."""

LATE: Final = 1.6
"""Spacings after which samples that should have come are missing for good."""

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

    def recall(self, standing: Mapping[Key, tuple[float | None, int | None]], first: float) -> None:
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
        self, tape: Tape, start: float, standing: Mapping[Key, tuple[float | None, int | None]] | None = None
    ) -> None:
        """Begin as a viewer that comes at ``start``; ``standing``: findings known to stand then."""
        self._tape = tape
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
        self._sampled = start
        """When the last samples came."""
        self._newest = -math.inf
        """The same of those told first."""
        self._looked = -math.inf
        first = start <= tape.begin
        self._filling: Iterator[Item] | None = None if first else tape.state_at(start)
        if first:
            self.at = self.now = self._sampled = tape.begin
            self._after = math.nextafter(tape.begin, -math.inf)
        else:
            self._after = start
        self.session.feed([Reset(job=tape.job, hub=HUB, replaced=False, parts=not first)])
        if standing:
            self.session.findings.recall(standing, start)

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
            self.session.feed(received(some, self.now))
            self._newest = max((item.t for item in some if is_sample(item)), default=self._newest)
            if len(some) < CHUNK:
                self._filling = None
                if spacing(self._tape, self.at) >= THINNED and self._newest > -math.inf:
                    self.now = self._sampled = self._newest
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
            stop = min(to, self._next(every))
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

    def _next(self, every: float) -> float:
        """Return the next time at which the rules are asked."""
        begin = self._tape.begin
        stop = begin + (math.floor((self.at - begin) / every) + 1) * every
        return stop if stop > self.at else stop + every

    def _grid(self, at: float, every: float) -> float:
        begin = self._tape.begin
        return begin + round((at - begin) / every) * every

    def _feed(self, stop: float) -> None:
        items = self._tape.items(self._after, stop)
        seldom = spacing(self._tape, stop)
        self.at = self._after = stop
        if seldom < THINNED:
            self.now = self._sampled = stop
            self.session.feed(received([*self._held, *items], stop))
            self._held = []
            return
        self._feed_thinned(list(items), stop, seldom)

    def _feed_thinned(self, items: list[Item], stop: float, seldom: float) -> None:
        """Judge only at the times of which samples were kept: between them no rank is silent and no step late."""
        self._held += items
        samples = [item.t for item in self._held if is_sample(item)]
        while samples:
            last = next((a for a, b in pairwise(samples) if b - a > TOGETHER), samples[-1])
            if last == samples[-1] and stop - last < TOGETHER:
                return
            group = [item for item in self._held if item.t <= last]
            self._held = self._held[len(group) :]
            samples = [t for t in samples if t > last]
            self.now = self._sampled = last
            self.session.feed(received(group, last))
        if stop - self._sampled > LATE * seldom:
            self.now = stop
            self.session.feed(received(self._held, stop))
            self._held = []


def spaced(speed: float) -> float:
    """Return the seconds between two looks at a speed: a second up to 16x, then less often."""
    return min(SELDOM, LOOK * 2.0 ** math.ceil(math.log2(max(1.0, speed / 16))))
