"""Notices that a step takes much longer than usual, and tells where the training thread is then."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ranktop.probes.stack import calls_of_thread
from ranktop.wire.schema import Call, Stack

if TYPE_CHECKING:
    from ranktop.agent.watch import Watch
    from ranktop.probes.steps import StepRecorder

TIMES: Final = 3.0
"""A step that takes so many times the usual is looked at,"""

SHORTEST: Final = 2.0
"""but not before so many seconds;"""

UNUSUAL: Final = 20.0
"""and after so many while no step time is usual: the first steps compile and allocate;"""

NO_MODEL: Final = 60.0
"""and after so many from the import of torch on while no model has run: a script prepares its data."""

REPEAT: Final = 10.0
"""Seconds after which a stack is told again though it is the same."""

CHANGED: Final = 2.0
"""Seconds after which it is told again when it has changed."""

INNERMOST: Final = 3
"""Calls that count as where a thread is."""

_PACES: Final = 15


class Pace:
    """The usual time of a step, from how many have ended and when the last did: steps need not be followed for it."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._seconds: deque[float] = deque(maxlen=_PACES)

    def see(self, ended: int, at: float) -> None:
        """Note that the last step ended ``at`` seconds, the ``ended``-th."""
        if self._last is not None and ended > self._last[0]:
            self._seconds.append((at - self._last[1]) / (ended - self._last[0]))
        if self._last is None or ended != self._last[0]:
            self._last = ended, at

    def usual(self) -> float | None:
        """Return the seconds that a step usually takes; None before two have ended."""
        seconds, half = sorted(self._seconds), len(self._seconds) // 2
        # Not the library's: it loads fractions and decimals into the training process.
        return (seconds[half] + seconds[~half]) / 2 if seconds else None


class StallWatch:
    """Belongs to the sampling thread, which asks every second or two."""

    def __init__(
        self,
        rank: int,
        clock: Callable[[], float] = time.perf_counter,
        calls_of: Callable[[int | None], tuple[tuple[tuple[str, int, str], ...], str]] = calls_of_thread,
    ) -> None:
        """``clock`` is the recorder's, in seconds."""
        self._rank = rank
        self._clock = clock
        self._calls_of = calls_of
        self._seen: object = None
        self._since = 0.0
        self._pace = Pace()
        self._told: tuple[float, tuple[tuple[str, str], ...]] | None = None

    def look(self, watch: Watch | None) -> Stack | None:
        """Return where the training thread is when it is time to tell; None else."""
        if watch is None or not watch.enabled:
            return None
        now, recorder = self._clock(), watch.recorder
        if recorder is None:
            # Without a model yet, or between one that was taken for the model and the one that is.
            self._begin(watch, now)
            waited, limit = now - self._since, NO_MODEL
        else:
            self._begin(recorder, now)
            waited, limit = self._waited(recorder, now)
        if waited <= limit:
            self._told = None
            return None
        return self._stack(watch, waited, now)

    def _begin(self, seen: object, now: float) -> None:
        if seen is not self._seen:
            self._seen, self._since = seen, now
            self._pace = Pace()

    def _waited(self, recorder: StepRecorder, now: float) -> tuple[float, float]:
        """Return the seconds since the last step ended, and how many are too many."""
        ended, last = recorder.ended, recorder.last_end
        if last is None:
            return now - self._since, UNUSUAL
        self._pace.see(ended, last)
        usual = self._pace.usual()
        return now - last, UNUSUAL if usual is None else max(TIMES * usual, SHORTEST)

    def _stack(self, watch: Watch, waited: float, now: float) -> Stack | None:
        age = now - self._told[0] if self._told is not None else REPEAT
        if age < CHANGED:
            return None
        places, reason = self._calls_of(watch.thread)
        where = tuple((file, function) for file, _, function in places[-INNERMOST:])
        if self._told is not None and age < REPEAT and where == self._told[1]:
            return None
        self._told = now, where
        return Stack(
            rank=self._rank,
            step=watch.recorder.count if watch.recorder is not None else 0,
            waited=waited,
            calls=tuple(Call(*place) for place in places),
            reason=reason,
        )
