"""The clock of a replay: where it stands, whether it runs and how fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SPEEDS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Seconds of the recording in one of the viewer's."""

BEHIND: Final = 0.8
"""Share of the wished speed from below which the real one is told."""

_MEMORY: Final = 2.0
"""Seconds over which the real speed is taken."""


class Playhead:
    """A position in seconds on the recording's clock. It moves only when someone says how far the replay has come."""

    def __init__(self, real: Callable[[], float], at: float) -> None:
        """``real`` is the viewer's own monotonic clock."""
        self._real = real
        self._at = at
        self._since = real()
        """When it was there."""
        self._speed = SPEEDS.index(1.0)
        self._walked: list[tuple[float, float]] = []
        """(the viewer's clock, position) of the last moves at this speed."""
        self.playing = False

    @property
    def at(self) -> float:
        """Where it stands."""
        return self._at

    @property
    def speed(self) -> float:
        """Seconds of the recording in one of the viewer's, as wished."""
        return SPEEDS[self._speed]

    def faster(self, by: int) -> bool:
        """Change the speed by so many notches; False where there is no such speed."""
        notch = max(0, min(len(SPEEDS) - 1, self._speed + by))
        changed = notch != self._speed
        self._speed = notch
        self._anew()
        return changed

    def play(self) -> None:
        """Run from here on."""
        self.playing = True
        self._anew()

    def pause(self) -> None:
        """Stand still."""
        self.playing = False
        self._anew()

    def jump(self, at: float) -> None:
        """Stand elsewhere; a running one runs on from there."""
        self._at = at
        self._anew()

    def due(self) -> float:
        """Return where it should be now."""
        return self._at + (self._real() - self._since) * self.speed if self.playing else self._at

    def reached(self, at: float) -> None:
        """Note how far the replay has come; what was due beyond is not caught up with."""
        now = self._real()
        self._at, self._since = at, now
        self._walked.append((now, at))
        while self._walked[0][0] < now - _MEMORY:
            del self._walked[0]

    def real_speed(self) -> float | None:
        """Return the speed of the last seconds when it is clearly below the wished one: the machine is too slow."""
        if not self.playing or len(self._walked) < 3:
            return None
        (first, start), (last, end) = self._walked[0], self._walked[-1]
        if last - first < _MEMORY / 2:
            return None
        speed = (end - start) / (last - first)
        return speed if speed < BEHIND * self.speed else None

    def _anew(self) -> None:
        self._since = self._real()
        self._walked.clear()
