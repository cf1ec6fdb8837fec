"""Reads a recording: one that is being written, one of a job that has ended, or one of somebody else.

A file is not trusted: its tables must be those that ranktop makes, nothing in it is run, and what it unpacks to is
bounded. What items hold is checked by whoever decodes them, as if they came from the wire.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ranktop.wire.codec import WireError, clean, decode_header
from ranktop.wire.recording_file import (
    STEPS,
    Points,
    RecordingError,
    bounded,
    broken,
    check_schema,
    items_size,
    silence_schema,
    unpack_body,
    unpack_items,
    unpack_points,
)
from ranktop.wire.recording_open import connect, here, runs
from ranktop.wire.schema import Item, Job

SILENT_AFTER: Final = 30.0
"""Seconds without a word of its hub after which a recording is taken for one that was cut off."""

_WINDOW: Final = 60.0
_OFTEN: Final = 0.5
"""Seconds; a smaller spacing leaves nothing out of what comes once a second."""
_POINT_CHUNKS: Final = 64
_CACHE_BYTES: Final = 64 * 1024 * 1024
_CACHE_POINTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a recording and how closely it was kept."""

    first: float
    last: float
    step: float
    """Seconds between two samples of a rank that are kept; 0: all that were recorded."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where a chunk is, and of when."""

    id: int
    first: float
    last: float
    level: int


class Recording:
    """One open recording. For one thread at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Use ``Recording.open``."""
        self.path = path
        self._connection = connection
        self._meta: dict[str, Any] = {}
        self._clock: list[tuple[float, float]] = []
        self._hub: tuple[str, str, int] = ("", "", 0)
        self._items: OrderedDict[int, list[Item]] = OrderedDict()
        self._by_life: OrderedDict[int, dict[tuple[int, int, int], list[tuple[str, Item]]]] = OrderedDict()
        self._points: OrderedDict[int, list[Points]] = OrderedDict()
        self._held = self._points_held = 0
        self.job = Job(id="", name="", world_size=0)
        self.refresh()

    @classmethod
    def open(cls, path: Path | str) -> Recording:
        """Open a file for reading; RecordingError says in one line why that is not possible."""
        path = Path(path)
        connection = connect(path)
        try:
            silence_schema(connection)
            check_schema(connection)
            return cls(path, connection)
        except sqlite3.Error as error:
            connection.close()
            raise broken(error) from None
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
        self._items.clear()

    def refresh(self) -> None:
        """Look again at a file that is being written; RecordingError."""
        with self.reading():
            self._meta = dict(self.rows("SELECT key, value FROM meta LIMIT 1000"))
            self._clock = self.rows("SELECT t, wall FROM clock ORDER BY t LIMIT 100000")
            hubs = self.rows("SELECT host, boot, pid FROM hubs ORDER BY id DESC LIMIT 1")
        self._hub = hubs[0] if hubs else ("", "", 0)
        try:
            self.job = msgspec.json.decode(str(self._meta["job"]), type=Job)
        except (KeyError, msgspec.MsgspecError, RecursionError) as error:
            raise broken(error) from None
        with self._guarded():
            if not all(math.isfinite(value) for pair in self._clock for value in pair) or not self._clock:
                raise RecordingError("the recording is damaged: it has no clock")

    # What it is of.

    @property
    def begin(self) -> float:
        """Seconds on the recording's clock ``t``: when its first hub began."""
        return self._number("begin")

    @property
    def end(self) -> float:
        """Seconds on the recording's clock up to which it tells; grows while the job runs (``refresh``)."""
        return max(self.begin, self._number("end"))

    @property
    def started(self) -> float:
        """Wall clock of the job's start, seconds since the epoch; only to show."""
        return self._number("started")

    @property
    def ended(self) -> float | None:
        """Wall clock of the end; None while it is being written. Of one that was cut off: of its last words."""
        if self.live:
            return None
        return self._number("ended") if self._meta.get("ended") is not None else self._number("written")

    @property
    def finished(self) -> bool:
        """Whether its hub has closed it; else it is being written, or was cut off."""
        return self._meta.get("ended") is not None

    @property
    def live(self) -> bool:
        """Whether a hub still writes it, as far as this machine can tell."""
        if self.finished or time.time() - self._number("written") > SILENT_AFTER:
            return False
        host, boot, pid = self._hub
        return (host, boot) != here() or runs(pid)

    @property
    def steps(self) -> int:
        """The largest step that any rank finished."""
        return int(self._number("steps"))

    @property
    def simulated(self) -> bool:
        """Whether the job was a simulated one."""
        return bool(self._meta.get("simulated"))

    @property
    def host(self) -> str:
        """Host name of the hub that wrote it (last)."""
        return clean(self._hub[0])[:200]

    @property
    def spacing(self) -> float:
        """Seconds between two samples of a rank that were recorded at all; 0: each was."""
        return self._number("spacing")

    def wall(self, t: float) -> float:
        """Return the wall clock at ``t``, seconds since the epoch."""
        place = max(0, bisect.bisect_right(self._clock, (t, math.inf)) - 1)
        at, wall = self._clock[place]
        return wall + (t - at)

    def clocks(self) -> list[tuple[float, float]]:
        """Return (t, wall clock) at the begin and wherever the wall clock was set; between them both go alike."""
        return list(self._clock)

    def stretches(self) -> list[Stretch]:
        """Return how closely the samples of each part are kept, in order."""
        found: list[Stretch] = []
        for first, last, level in self.rows(
            "SELECT first, last, level FROM chunks WHERE kind = 'samples' ORDER BY first LIMIT 1000000"
        ):
            step = STEPS[min(max(level, 0), len(STEPS) - 1)]
            step = max(step, self.spacing) if self.spacing > _OFTEN else step
            if found and found[-1].step == step:
                found[-1] = Stretch(found[-1].first, max(found[-1].last, last), step)
            else:
                found.append(Stretch(first, last, step))
        return found

    # What it holds.

    def items(self, after: float, until: float) -> Iterator[Item]:
        """Return the messages with ``after < t <= until`` in order of ``t``; RecordingError."""
        with self._guarded():
            yield from self._items_between(after, until)

    def _items_between(self, after: float, until: float) -> Iterator[Item]:
        start = after
        while start < until:
            stop = min(until, start + _WINDOW)
            with self.reading():
                found = self._between(start, stop)
                following = None if found or stop >= until else self._next(stop)
            yield from found
            if not found and stop < until and following is None:
                return
            start = stop if following is None else max(stop, math.nextafter(following, -math.inf))

    def events(self) -> Iterator[Item]:
        """Return the messages that are never thinned (cards, marks, stacks, boxes, ends, nodes) in order of ``t``."""
        number, t = -1, -math.inf
        while True:
            rows = self.rows(
                "SELECT number, t, header, body FROM events WHERE (t, number) > (?, ?) ORDER BY t, number LIMIT 500",
                (t, number),
            )
            for row in rows:
                yield _event(row)
            if not rows:
                return
            number, t = rows[-1][:2]

    def state_at(self, t: float) -> Iterator[Item]:
        """Return what a hub's snapshot would hold at ``t``, in its order; RecordingError.

        Marks, nodes, then of each rank: what is told of former lives, card, history of the half hour before, device,
        the last samples, stack, box, process mark, end.
        """
        from ranktop.wire.recording_state import state_at

        with self._guarded():
            return state_at(self, t)

    # For recording_state.

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Look at one state of the file: its hub may be rewriting it."""
        with self._guarded():
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def rows(self, query: str, values: tuple[object, ...] = ()) -> list[Any]:
        """Return what a query finds; RecordingError."""
        with self._guarded():
            return self._connection.execute(query, values).fetchall()

    def chunks(self, kind: str, first: float, last: float, most_level: int = len(STEPS) - 1) -> list[Chunk]:
        """Return the chunks that may hold messages of that time, the oldest first."""
        rows = self.rows(
            "SELECT id, first, last, level FROM chunks WHERE kind = ? AND level BETWEEN 0 AND ? AND first <= ? "
            "AND last >= ? ORDER BY first, id LIMIT 100000",
            (kind, most_level, last, first),
        )
        return [Chunk(*row) for row in rows]

    def chunk_items(self, chunk: Chunk) -> list[Item]:
        """Return a chunk's items in order of ``t``."""
        known = self._items.get(chunk.id)
        if known is not None:
            self._items.move_to_end(chunk.id)
            return known
        items = unpack_items(self._data(chunk))
        items.sort(key=lambda item: (item.t, item.number))
        self._items[chunk.id] = items
        self._held += items_size(items)
        while self._held > _CACHE_BYTES and len(self._items) > 1:
            self._held -= items_size(self._items.popitem(last=False)[1])
        return items

    def chunk_lives(self, chunk: Chunk) -> dict[tuple[int, int, int], list[tuple[str, Item]]]:
        """Return a chunk's items by (rank, pid, restart), each with its kind."""
        known = self._by_life.get(chunk.id)
        if known is None:
            known = {}
            for item in self.chunk_items(chunk):
                with contextlib.suppress(WireError):
                    header = decode_header(item.header)
                    life = (header.rank, header.pid, header.restart)
                    known.setdefault(life, []).append((header.kind, item))
            self._by_life[chunk.id] = known
            while len(self._by_life) > len(self._items):
                self._by_life.popitem(last=False)
        return known

    def unmerged(self) -> list[Item]:
        """Return the messages of which no points have been stored yet: those of the last minute or so."""
        chunks = self.chunks("samples", -math.inf, math.inf, most_level=0)
        found: list[Item] = []
        size = 0
        for chunk in chunks:
            found += self.chunk_items(chunk)
            size = bounded(size + items_size(self.chunk_items(chunk)))
        return found

    def chunk_points(self, chunk: Chunk) -> list[Points]:
        """Return a chunk's points."""
        known = self._points.get(chunk.id)
        if known is None:
            known = self._points[chunk.id] = unpack_points(self._data(chunk))
            self._points_held += _count(known)
            while len(self._points) > 1 and (len(self._points) > _POINT_CHUNKS or self._points_held > _CACHE_POINTS):
                self._points_held -= _count(self._points.popitem(last=False)[1])
        self._points.move_to_end(chunk.id)
        return known

    def _data(self, chunk: Chunk) -> bytes:
        rows = self.rows("SELECT data FROM chunks WHERE id = ?", (chunk.id,))
        if not rows or not isinstance(rows[0][0], bytes):
            raise RecordingError("the recording is damaged: a part of it is missing")
        data: bytes = rows[0][0]
        return data

    def _between(self, after: float, until: float) -> list[Item]:
        found: list[Item] = []
        size = 0
        for chunk in self.chunks("samples", after, until):
            items = self.chunk_items(chunk)
            first = bisect.bisect_right(items, after, key=lambda item: item.t)
            part = items[first : bisect.bisect_right(items, until, key=lambda item: item.t)]
            found += part
            size = bounded(size + items_size(part))
        # Row by row: a crafted file may tell of far more bytes than it has.
        query = "SELECT number, t, header, body FROM events WHERE t > ? AND t <= ? LIMIT 1000000"
        for row in self._connection.execute(query, (after, until)):
            event = _event(row)
            found.append(event)
            size = bounded(size + items_size([event]))
        found.sort(key=lambda item: (item.t, item.number))
        return found

    def _next(self, after: float) -> float | None:
        """Return when the next message after a gap is; None when there is none."""
        firsts = self.rows(
            "SELECT min(first) FROM chunks WHERE kind = 'samples' AND first > ? UNION ALL "
            "SELECT min(t) FROM events WHERE t > ?",
            (after, after),
        )
        return min((row[0] for row in firsts if row[0] is not None), default=None)

    def _number(self, key: str) -> float:
        value = self._meta.get(key)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError, ValueError, TypeError) as error:
            raise broken(error) from None


def _event(row: tuple[Any, ...]) -> Item:
    number, t, header, body = row
    if not (isinstance(header, bytes) and isinstance(body, bytes) and isinstance(t, float) and math.isfinite(t)):
        raise RecordingError("the recording is damaged: an event can't be read")
    return Item(number, t, header, unpack_body(body))


def _count(parts: list[Points]) -> int:
    return sum(len(part.points) for part in parts)
