"""When to draw: at most twice a second, and never while the terminal still swallows the last frame.

After a frame the terminal is asked for its cursor position; its answer says that every byte before it has
been read, also on the far side of a slow link where no local queue can see. A terminal that does not answer
is drawn to at the plain interval.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

QUESTION: Final = "\x1b[6n"
"""DSR: asks the terminal for its cursor position."""

FIRST_TIMEOUT: Final = 1.5
"""Seconds to wait for a terminal that has never answered."""

LONG_TIMEOUT: Final = 10.0
"""Seconds to wait for one that has."""

TRIES: Final = 2
"""Unanswered questions after which a terminal counts as one that does not answer."""


class Pacer:
    """Decides when the next frame may go out. Seconds, by an injected clock."""

    def __init__(self, clock: Callable[[], float], interval: float = 0.5, *, asks: bool = True) -> None:
        self._clock = clock
        self.interval = interval
        self.asks = asks
        """False for an output that is no terminal."""
        self._drawn_at = float("-inf")
        self._asked_at: float | None = None
        self._outstanding = 0
        self._unanswered = 0
        self._answers = 0
        self._urgent = True

    def hurry(self) -> None:
        """Ask for a frame at once: a key was pressed or the screen changed its size."""
        self._urgent = True

    @property
    def waiting(self) -> bool:
        """True while the terminal owes an answer that it may still give."""
        if self._asked_at is None:
            return False
        limit = LONG_TIMEOUT if self._answers else FIRST_TIMEOUT
        return self._clock() - self._asked_at < limit

    def due(self) -> bool:
        """Tell whether a frame may be drawn now."""
        if self.waiting:
            return False
        if self._asked_at is not None:
            self._give_up()
        return self._urgent or self._clock() - self._drawn_at >= self.interval

    def drawn(self, changed: int = 1) -> bool:
        """Note that a frame of so many changed lines goes out; True when the terminal is to be asked after it."""
        self._drawn_at = self._clock()
        self._urgent = False
        if not changed or not self.asks or self._unanswered >= TRIES:
            return False
        self._asked_at = self._drawn_at
        self._outstanding += 1
        return True

    def answered(self) -> None:
        """Note an answer; one to an older question does not open the way."""
        self._answers += 1
        self._unanswered = 0
        self._outstanding = max(0, self._outstanding - 1)
        if not self._outstanding:
            self._asked_at = None

    def _give_up(self) -> None:
        self._asked_at = None
        self._outstanding = 0
        self._unanswered += 1
