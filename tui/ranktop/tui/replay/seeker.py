"""Prepares the picture of a place that is sought on a thread of its own: the keys and the present picture go on."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ranktop.tui.replay.reel import LOOK, SELDOM, WARM, Reel, Standing
from ranktop.tui.replay.tape import Kept, Tape

SLICE: Final = 0.05
"""Seconds of work between two looks whether something else is sought by now."""


@dataclass(slots=True)
class Sought:
    """A place that is sought, and what has become of it."""

    at: float
    standing: Callable[[float], Standing | None]
    reel: Reel | None = None
    """There once it is ready."""
    failure: Exception | None = None
    ready: bool = False


def prepare(tape: Tape, kept: Kept, sought: Sought, given_up: Callable[[], bool]) -> None:
    """Bring a reel to the place: as a viewer who came ``WARM`` seconds before, near the beginning from there."""
    start = sought.at - WARM
    reel = Reel(tape, kept, start, sought.standing(start) if start > tape.begin else None)
    every = LOOK if start <= tape.begin else SELDOM
    while not given_up():
        until = time.perf_counter() + SLICE
        if reel.fill(until) and reel.play(sought.at, every, until):
            reel.look()
            sought.reel = reel
            return


class Seeker:
    """The thread, with a recording of its own. The newest request is the one that counts."""

    def __init__(self, open_tape: Callable[[], Tape]) -> None:
        self._open = open_tape
        self._requests: queue.SimpleQueue[Sought | None] = queue.SimpleQueue()
        self._wanted: Sought | None = None
        self._thread: threading.Thread | None = None

    def seek(self, sought: Sought) -> None:
        """Ask for a place; what was asked for before is given up."""
        self._wanted = sought
        if self._thread is None:
            # The end of the program does not wait for it.
            self._thread = threading.Thread(target=self._run, daemon=True, name="ranktop-seek")
            self._thread.start()
        self._requests.put(sought)

    def close(self) -> None:
        """Have the thread end soon."""
        self._wanted = None
        self._requests.put(None)

    def _run(self) -> None:
        tape: Tape | None = None
        try:
            while (sought := self._requests.get()) is not None:
                if sought is not self._wanted:
                    continue
                try:
                    tape = tape or self._open()
                    tape.refresh()
                    prepare(tape, Kept(tape), sought, lambda one=sought: self._wanted is not one)  # type: ignore[misc]
                except Exception as error:
                    sought.failure = error
                sought.ready = True
        finally:
            if tape is not None:
                with contextlib.suppress(Exception):
                    tape.close()


class Here:
    """Does the same at once, within the call: for tests, and where there is nothing to wait for."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def seek(self, sought: Sought) -> None:
        """Prepare the place."""
        try:
            prepare(self._tape, Kept(self._tape), sought, lambda: False)
        except Exception as error:
            sought.failure = error
        sought.ready = True

    def close(self) -> None:
        """There is nothing to let go of."""
