"""What times the phases of a step."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Marks points in time; on a GPU these are events on the current stream, resolved later."""

    name: str

    def mark(self) -> object:
        """Mark now. Costs a few microseconds at most."""
        ...

    def between(self, start: object, end: object) -> float | None:
        """Return the seconds between two marks, or None while the device has not reached the second."""
        ...


class HostClock:
    """Wall clock: right where the work is done by the time the call returns."""

    name = "host"

    def mark(self) -> object:
        """Return the time in seconds."""
        return time.perf_counter()

    def between(self, start: object, end: object) -> float | None:
        """Return ``end - start``."""
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start
