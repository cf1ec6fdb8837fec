"""When to draw: as often as the job says something new, twice a second at most, at once after a key, never while the
terminal still swallows the last frame.

How much the terminal takes is the flow's affair (``terminal.flow``); here it is decided when a new picture is worth the
work. Pictures that could not be sent are not drawn: what goes out is always the newest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ranktop.tui.terminal.flow import Flow

REPEAT: Final = 0.04
"""Seconds between two frames while a key is held down."""

SELDOM: Final = 0.12
"""The same under tmux and screen: they answer themselves, so that nothing tells how slow the link behind them is."""


OFTEN: Final = 0.5
RARE: Final = 1.0
"""Seconds between two pictures of a job whose ranks speak that often, or more often; that seldom, or more seldom."""

EARLY: Final = 0.1
"""Share of the interval by which a picture may come too early: whoever asks does so by a clock of its own."""


def pace(interval: float | None) -> float:
    """Return the seconds between two pictures of a job whose ranks speak every ``interval`` seconds.

    Nothing is new sooner; ages are to be seen growing.
    """
    return OFTEN if interval is None else min(RARE, max(OFTEN, interval))


class Pacer:
    """Decides when the next picture is drawn. Seconds, by an injected clock."""

    def __init__(self, clock: Callable[[], float], flow: Flow, interval: float = 0.5, repeat: float = REPEAT) -> None:
        self._clock, self._flow = clock, flow
        self.interval, self._repeat = interval, repeat
        self.asks = True
        """False for an output that is no terminal: every picture may be drawn."""
        self.behind = False
        """The terminal does not show all of the last picture yet."""
        self._drawn_at = float("-inf")
        self.urgent = True
        """A frame is wanted at once."""

    def hurry(self) -> None:
        """Ask for a frame at once: a key was pressed or the screen changed its size."""
        self.urgent = True

    def due(self) -> bool:
        """Tell whether a picture may be drawn now."""
        since = self._clock() - self._drawn_at
        in_time = since >= self.interval * (1 - EARLY)
        if not self.asks:
            return self.urgent or in_time
        if self.urgent:
            return since >= self._repeat and self._flow.room() > 0
        return in_time and not self.behind and self._flow.idle()

    def wait(self) -> float:
        """Return the seconds until a picture that is wanted at once may be drawn, as far as only time is needed."""
        if not self.urgent or not self.asks:
            return 0.0
        return max(0.0, self._repeat - (self._clock() - self._drawn_at))

    def drawn(self) -> None:
        """Note that a picture was drawn."""
        self._drawn_at = self._clock()
        self.urgent = False
