"""Looks through a whole recording for findings, beside the dashboard and a slice at a time.

First what the recording tells by itself (``signs``). Then the rules are asked at the borders of equal parts, and then
all through each part, first through those at whose borders the findings differ. A short recording is one part.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from ranktop.tui.replay.reel import LOOK, Reel
from ranktop.tui.replay.session_at import session_at
from ranktop.tui.replay.signs import Sign, signs
from ranktop.tui.replay.spells import Findings, Watch, between, join, stories
from ranktop.tui.replay.tape import Kept, Tape
from ranktop.tui.session.findings.finding import Finding

PART: Final = 900.0
"""Seconds that a part is long at least."""

PARTS: Final = 64

COST: Final = 6.0
"""Seconds of work on one part from which on the rules are asked less often in it."""

RARE: Final = 16.0
"""The most seconds between two times that they are asked then."""

WORK: Final = 0.015
PAUSE: Final = 0.015
"""Seconds of work and of pause in turn: the dashboard comes first."""

BUSY: Final = 0.05
"""Seconds between two looks whether someone still waits for something else."""

FOLLOW: Final = 2.0
"""Seconds between two looks at a recording that grows."""


class Survey:
    """Works on a thread of its own, with a recording of its own, until it is through or told to stop."""

    def __init__(
        self, open_tape: Callable[[], Tape], *, growing: bool = False, busy: Callable[[], bool] = lambda: False
    ) -> None:
        """``growing``: the job still runs. ``busy``: whether someone waits for something else: this pauses then."""
        self.findings = Findings()
        """What is known so far. Never changed: another one takes its place."""
        self.failure = ""
        self._open = open_tape
        self._growing = growing
        self._busy = busy
        self._over = threading.Event()
        self._signs: tuple[Sign, ...] = ()
        self._borders: list[float] = []
        self._rough: dict[float, tuple[Finding, ...]] = {}
        """Border -> findings there, of parts that were not gone through yet."""
        self._watches: dict[float, Watch] = {}
        """Beginning of a part -> what was seen in it."""
        self._seen: dict[float, float] = {}
        """Beginning of a part -> how far it was gone through."""

    def start(self) -> None:
        """Begin; the end of the program does not wait for it."""
        threading.Thread(target=self.run, daemon=True, name="ranktop-survey").start()

    def stop(self) -> None:
        """Have it end soon."""
        self._over.set()

    def run(self) -> None:
        """Do all of it."""
        try:
            with contextlib.closing(self._open()) as tape:
                self._work(tape)
        except Exception as error:  # the replay goes on without it
            self.failure = f"findings of the whole recording: {error}"

    def _work(self, tape: Tape) -> None:
        self._signs = tuple(sorted(signs(tape), key=lambda sign: sign.at))
        self._borders = parts(tape.begin, tape.end)
        self._tell()
        for border in spread(self._borders[1:-1]):
            if self._rest():
                return
            self._rough[border] = session_at(tape, border).snapshot().findings
            self._tell()
        asked = dict(self._rough)
        kept = Kept(tape)
        newest: Reel | None = None
        for first, last in by_change(self._borders, asked):
            standing = {one.key: (one.since, one.step) for one in asked.get(first, ())}
            reel = Reel(tape, kept, first, standing)
            self._go_through(reel, kept, first, last)
            if self._over.is_set():
                return
            if last == self._borders[-1]:
                newest = reel
        self._tell(done=True)
        if self._growing and newest is not None:
            self._follow(tape, kept, newest)

    def _rest(self) -> bool:
        """Leave the others their turn; True when this is to end."""
        while self._busy():
            if self._over.wait(BUSY):
                return True
        return self._over.wait(PAUSE)

    def _go_through(self, reel: Reel, kept: Kept, first: float, last: float, every: float = LOOK) -> None:
        """Ask the rules all through a part."""
        watch = self._watches.setdefault(first, Watch())
        while not reel.filled:
            reel.fill(time.perf_counter() + WORK)
            if self._rest():
                return
        watch.note(reel.found, reel.now)
        whole = last - reel.at
        while reel.at < last and not self._rest():
            until = time.perf_counter() + WORK
            while reel.at < last and (began := time.perf_counter()) < until:
                spaced = max(every, kept.step(reel.at))
                reel.play(min(last, reel.next_look(spaced)), spaced, math.inf)
                reel.look()
                watch.note(reel.found, reel.now)
                cost = (time.perf_counter() - began) * whole / every
                every = (
                    min(RARE, 2 * every) if cost > 1.5 * COST else max(LOOK, every / 2) if cost < COST / 3 else every
                )
            self._seen[first] = reel.at
            self._tell()
        if reel.at >= last:
            self._rough.pop(first, None)

    def _follow(self, tape: Tape, kept: Kept, reel: Reel) -> None:
        """Go on with a recording that grows."""
        first = self._borders[-2]
        while not self._over.wait(FOLLOW):
            tape.refresh()
            kept.refresh()
            self._signs = tuple(sorted(signs(tape), key=lambda sign: sign.at))
            self._go_through(reel, kept, first, tape.end)

    def _tell(self, done: bool = False) -> None:
        spells = between(self._borders, self._rough)
        spells += [spell for watch in list(self._watches.values()) for spell in watch.spells]
        joined = join(spells)
        self.findings = Findings(joined, stories(joined), self._signs, tuple(sorted(self._seen.items())), done)


def parts(begin: float, end: float) -> list[float]:
    """Return the borders of the equal parts into which a recording is divided."""
    number = max(1, min(PARTS, math.floor((end - begin) / PART)))
    return [begin + (end - begin) * part / number for part in range(number)] + [end]


def spread(borders: list[float]) -> list[float]:
    """Return them in an order in which any few of the first lie all over the recording."""
    if len(borders) < 3:
        return borders
    middle = len(borders) // 2
    left, right = spread(borders[:middle]), spread(borders[middle + 1 :])
    woven = [border for pair in zip(left, right, strict=False) for border in pair]
    return [borders[middle], *woven, *left[len(right) :]]


def by_change(borders: list[float], found: dict[float, tuple[Finding, ...]]) -> list[tuple[float, float]]:
    """Return the parts, those first at whose borders the findings differ."""

    def told(border: float) -> frozenset[object]:
        return frozenset(one.key for one in found.get(border, ()) if one.severity != "info")

    return sorted(pairwise(borders), key=lambda part: told(part[0]) == told(part[1]))
