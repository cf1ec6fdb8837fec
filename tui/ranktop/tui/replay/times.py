"""Times of a recording as a person writes and reads them: wall clock, from the start, before the end, in percent."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ranktop.tui.replay.tape import Tape

FORMS: Final = (
    "HH:MM[:SS], 'YYYY-MM-DD HH:MM[:SS]', +TIME from the start, -TIME before the end (90, 5m, 1:30:00), or 40%"
)

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PLAIN: Final = re.compile(r"(\d+(?:\.\d*)?)\s*(s|min|m|h|d|)")
_CLOCK: Final = re.compile(r"(?:(\d+):)?(\d+):(\d\d(?:\.\d*)?)")
_WALL: Final = re.compile(r"(?:(\d{4})-(\d\d)-(\d\d)[ T])?(\d\d?):(\d\d)(?::(\d\d))?")


class NoTime(ValueError):
    """The text names no time; it says what would."""


def when(text: str, recording: Tape) -> float:
    """Return the time on the recording's clock that ``text`` names, within the recording.

    A wall clock's time without a date is its first one within the recording. Raises ``NoTime``.
    """
    asked = text.strip()
    begin, end = recording.begin, recording.end
    if asked.endswith("%"):
        found = begin + (end - begin) * _number(asked[:-1], text) / 100.0
    elif asked[:1] in ("+", "-"):
        away = _length(asked[1:].strip(), text)
        found = begin + away if asked[0] == "+" else end - away
    else:
        found = _wall(asked, recording, text)
    return max(begin, min(end, found))


def _number(part: str, text: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise _not_understood(text) from None


def _length(part: str, text: str) -> float:
    if match := _PLAIN.fullmatch(part):
        return float(match[1]) * _UNITS[match[2]]
    if match := _CLOCK.fullmatch(part):
        return int(match[1] or 0) * 3600.0 + int(match[2]) * 60.0 + float(match[3])
    raise _not_understood(text)


def _wall(part: str, recording: Tape, text: str) -> float:
    match = _WALL.fullmatch(part)
    if match is None:
        raise _not_understood(text)
    clocks, end = recording.clocks(), recording.end
    ends = [*(t for t, _ in clocks[1:]), end + 1.0]
    for (t, wall), until in zip(clocks, ends, strict=True):
        # Each stretch in which the clock was not set is asked for the time.
        epoch = _epoch(match, wall, text)
        if wall - 1.0 <= epoch <= wall + (until - t):
            return t + epoch - wall
    walls = [wall for _, wall in clocks] + [recording.wall(end)]
    epoch = _epoch(match, walls[0], text)
    if walls[0] < epoch < max(walls):
        return next(t for t, wall in clocks if wall > epoch)
    span = f"{clock(min(walls), dated=True)} to {clock(max(walls), dated=True)}"
    raise NoTime(f"{text!r} is not within the recording, which goes from {span}")


def _epoch(match: re.Match[str], after: float, text: str) -> float:
    """Return the time that was typed, seconds since the epoch; without a date the first one from ``after`` on."""
    year, month, day, hour, minute, second = (int(group) if group else None for group in match.groups())
    try:
        start = datetime.fromtimestamp(after)
        asked = start.replace(hour=hour or 0, minute=minute or 0, second=second or 0, microsecond=0)
        if year is not None and month is not None and day is not None:
            asked = asked.replace(year=year, month=month, day=day)
        elif asked < start.replace(microsecond=0):
            asked += timedelta(days=1)
        return asked.timestamp()
    except (ValueError, OverflowError, OSError):
        raise _not_understood(text) from None


def _not_understood(text: str) -> NoTime:
    return NoTime(f"no time {text!r}; write {FORMS}")


def clock(epoch: float, *, dated: bool = False) -> str:
    """Write a wall clock's time: ``12:03:41``, or ``2026-11-30 12:03:41``. In the viewer's own time zone."""
    try:
        return datetime.fromtimestamp(epoch).strftime("%Y-%m-%d %H:%M:%S" if dated else "%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "?"


def span(seconds: float) -> str:
    """Write a length of time: ``0:41``, ``12:05``, ``1:36:21``."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
