"""How many bytes may be on their way to the terminal: what it has not read yet is never more than a moment's worth.

Every piece that is sent ends with a question whose answer says that all before it has been read, also on the far side
of a slow link, where no local queue can see. The quickest answer tells the link's round trip, the time between the
answers to two pieces that followed each other its rate, and both the window: as much as keeps the link busy, with
``SLACK`` seconds of it waiting. A terminal that never answers gets so many bytes a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

START: Final = 4096
LEAST: Final = 1024
MOST: Final = 1 << 17
"""Window in bytes: at the start, at least, at most."""

SLACK: Final = 0.15
"""Seconds that the link may take for what waits in it."""

TELLING: Final = 1000
"""Bytes from which a piece says something about the link's rate."""

FIRST_TIMEOUT: Final = 1.2
"""Seconds to wait for a terminal that has never answered."""

LONG_TIMEOUT: Final = 10.0
"""Seconds to wait for one that has; twice as long each time that it doesn't, so that a dead link is not filled."""

KEY_TIMEOUT: Final = 3.0
"""The same while somebody presses keys."""

TRIES: Final = 1
"""Unanswered questions after which a terminal that never answered counts as one that does not, until it does."""

SILENT_RATE: Final = 8000
SILENT_BURST: Final = 8000
"""Bytes a second, and at once, for a terminal that does not answer."""

QUICK_FOR: Final = 30.0
"""Seconds for which a quick answer is remembered, at least."""


@dataclass(slots=True)
class Piece:
    """What was sent and not answered yet."""

    number: int
    size: int
    at: float


class Flow:
    """The window of one terminal. Seconds, by an injected clock."""

    def __init__(self, clock: Callable[[], float], limit: int | None = None) -> None:
        """``limit``: bytes a second that somebody says the link takes, where the answers cannot tell."""
        self._clock = clock
        self._limited = limit is not None
        self._rate_of_tokens = limit or SILENT_RATE
        self._burst = float(self._rate_of_tokens if limit else SILENT_BURST)
        self.window = START
        self._pieces: deque[Piece] = deque()
        self._answered: deque[int] = deque(maxlen=64)
        self._number = 0
        self._known = False
        """It has answered at least once."""
        self._unanswered = 0
        self._tokens = self._burst
        self._filled = clock()
        self._quick = [float("inf"), float("inf")]
        """Quickest answers of this half minute and of the one before."""
        self._quick_since = clock()
        self._rate: float | None = None
        """Bytes a second that the link takes."""
        self._before = float("-inf"), float("-inf")
        """When the last answered piece was sent, and answered."""

    @property
    def outstanding(self) -> int:
        """Bytes that the terminal has not told to have read."""
        return sum(piece.size for piece in self._pieces)

    @property
    def silent(self) -> bool:
        """True for a terminal that does not answer."""
        return not self._known and self._unanswered >= TRIES

    def room(self) -> int:
        """Return the bytes that may be sent now."""
        self._expire()
        if self.silent:
            self._fill()
            return max(0, int(self._tokens))
        room = self.window - self.outstanding
        if self._limited:
            self._fill()
            room = min(room, int(self._tokens))
        return max(0, room)

    def idle(self) -> bool:
        """Tell whether nothing is on its way, as far as can be known."""
        self._expire()
        return not self._pieces and (not self.silent or self.room() >= SILENT_BURST // 2)

    def sent(self, size: int) -> int:
        """Note that so many bytes go out; returns the number of the question that is to follow them."""
        now = self._clock()
        self._fill()
        self._tokens -= size
        self._number += 1
        if not self.silent:
            self._pieces.append(Piece(self._number, size, now))
        return self._number

    def answered(self, number: int | None, at: float | None = None) -> None:
        """Note an answer to a question, and so to all before it; None for one that doesn't say to which.

        ``at`` is when it was read, which may be well before this busy program comes to it.
        """
        self._known, self._unanswered = True, 0
        if number is not None and number in self._answered:
            return  # said twice
        if number is None:
            number = self._pieces[0].number if self._pieces else None
        if number is None or not any(piece.number == number for piece in self._pieces):
            return  # an answer to a question that was given up
        while self._pieces:
            piece = self._pieces.popleft()
            self._answered.append(piece.number)
            if piece.number == number:
                self._learn(piece, self._clock() if at is None else at)
                return

    def pressed(self) -> None:
        """Note that somebody presses keys: the way from there is open, so a lost answer is not waited for much."""
        if self._pieces and self._clock() - self._pieces[0].at > KEY_TIMEOUT:
            self._give_up()

    def forget(self) -> None:
        """Note that all that was sent is gone: another terminal, or the same after a pause."""
        self._pieces.clear()

    def _learn(self, piece: Piece, now: float) -> None:
        if now - self._quick_since > QUICK_FOR:
            self._quick, self._quick_since = [float("inf"), self._quick[0]], now
        self._quick[0] = min(self._quick[0], now - piece.at)
        sent_before, answered_before = self._before
        self._before = piece.at, now
        took = max(now - answered_before, 1e-4)
        # The link went from the piece before straight on to this one: no delay, of the way or of this program, counts.
        if piece.size >= TELLING and piece.at - sent_before < took / 4:
            rate = piece.size / took
            self._rate = rate if self._rate is None else (self._rate + rate) / 2
        if self._rate is not None:
            self.window = round(min(MOST, max(LEAST, self._rate * (min(self._quick) + SLACK))))

    def _expire(self) -> None:
        if not self._pieces:
            return
        limit = LONG_TIMEOUT * 2 ** min(self._unanswered, 3) if self._known else FIRST_TIMEOUT
        if self._clock() - self._pieces[0].at >= limit:
            self._give_up()

    def _give_up(self) -> None:
        self._pieces.clear()
        self._unanswered += 1
        self._rate, self.window = None, LEAST

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate_of_tokens)
        self._filled = now
