"""How often a hub wakes: at once while little comes, else a hundred times a second, however much it is.

A turn costs about as much as a message. Where thousands come a second, each at its own time, a hub that woke for each
would spend half of its time on waking.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable
from typing import Final

BUSY: Final = 200.0
"""Messages a second from which on they are read together."""

REST: Final = 0.01
"""Seconds from one turn to the next then: by so much a message may come later to whoever watches."""


class Pace:
    """Counts messages, and rests between two turns while many come."""

    def __init__(self, urgent: list[int], clock: Callable[[], float] = time.monotonic) -> None:
        """``urgent``: descriptors that end a rest as soon as they are readable."""
        self._clock = clock
        self._poll = select.poll()
        for descriptor in urgent:
            self._poll.register(descriptor, select.POLLIN)
        self._rate = 0.0
        self._noted = self._woke = clock()

    @property
    def busy(self) -> bool:
        """Whether so much comes that it is read together."""
        return self._rate > BUSY

    def note(self, now: float, count: int) -> None:
        """Count the messages of a turn; what came a second ago counts a third of what comes now."""
        self._rate = self._rate * math.exp(min(0.0, self._noted - now)) + count
        self._noted = now

    def rest(self) -> None:
        """Wait until the next turn is due, not at all while little comes."""
        if self.busy:
            left = self._woke + REST - self._clock()
            if left > 0:
                self._poll.poll(1000 * min(left, REST))
            self._woke = self._clock()
