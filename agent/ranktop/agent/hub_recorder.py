"""Records what a hub receives, on a thread of its own: a disk that is slow, full or gone never holds up the hub.

The hub's thread calls ``put``, ``news``, ``follow`` and ``close``; all else runs on the recorder's.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ranktop.agent.hub_recordings import open_recording, remove_old, set_aside
from ranktop.agent.hub_state import HubState
from ranktop.wire.codec import clean, encode_header
from ranktop.wire.recording_file import RecordingError
from ranktop.wire.recording_writer import DEFAULT_BYTES, RecordingWriter
from ranktop.wire.schema import Header, Item, Job

DEFAULT_JOBS: Final = 20

PERIOD: Final = 1.0
"""Seconds from one transaction to the next; a kill of the hub loses at most what came since, and one such time."""

SPACING: Final = 0.02
"""Seconds between two transactions that are made at once, for what must not be lost: a scheduler kills all that is left
of a job when its ranks have ended, the hub too."""

IDLE: Final = 5.0
"""Seconds between two transactions while nothing comes: readers see by them that the hub lives."""

RETRY: Final = 30.0
"""Seconds between two tries while the disk refuses."""

PATIENCE: Final = 10.0
"""Seconds for which a file that is locked is tried again every time before that is trouble."""

HUNG: Final = 10.0
"""Seconds that the disk may take for a transaction before viewers are told."""

SAME_NEWS: Final = 600.0
"""Seconds in which the same trouble is told once only."""

QUEUE_ITEMS: Final = 50_000
QUEUE_BYTES: Final = 32 * 1024 * 1024

_URGENT: Final = tuple(
    encode_header(Header(kind, 0, 0, 0, 0)).partition(kind.encode())[0] + kind.encode() for kind in ("end", "box")
)
"""How the headers begin of what tells how ranks ended."""


class Recorder:
    """Records one job. Nothing is made on disk before the first message."""

    def __init__(
        self, job: Job, local_id: str, started: float, hub: str, began: float, *,
        clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
        environ: Mapping[str, str] = os.environ,
    ) -> None:  # fmt: skip
        """``local_id``: the job's id on this node. ``started``: wall clock. ``began``: of the hub, on ``clock``."""
        self._job = job
        self._identity = (local_id, started, hub, began)
        self._clock, self._wall = clock, wall
        self._limit = parse_bytes(environ.get("RANKTOP_RECORD_BYTES", ""), DEFAULT_BYTES)
        self._jobs = _whole(environ.get("RANKTOP_RECORD_JOBS", ""), DEFAULT_JOBS)
        self._lock = threading.Lock()
        """Of the queue; never held while the disk is waited for."""
        self._queue: list[Item] = []
        self._queued = 0
        self._overflow = 0
        self._writer: RecordingWriter | None = None
        self._busy_since: float | None = None
        self._trouble = ""
        self._trouble_since = 0.0
        self._locked_since: float | None = None
        self._missing = 0
        self._next_try = 0.0
        self._written_at = 0.0
        self._wants_seed = False
        self._news: deque[str] = deque(maxlen=8)
        self._told: dict[str, float] = {}
        self._hung_told = False
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ranktop-recorder", daemon=True)

    # The hub's side.

    def start(self) -> None:
        """Begin to record."""
        self._thread.start()

    def put(self, item: Item) -> None:
        """Take a message to record; never waits. What does not fit is counted."""
        size = len(item.header) + len(item.body) + 200
        with self._lock:
            if len(self._queue) >= QUEUE_ITEMS or self._queued + size > QUEUE_BYTES:
                self._overflow += 1
                return
            self._queued += size
            self._queue.append(item)
        if item.header.startswith(_URGENT):
            self.hurry()

    def hurry(self) -> None:
        """Have what has come written at once; never waits for it."""
        self._wake.set()

    def follow(self, job: Job, state: HubState) -> list[str]:
        """Say what the job is now, and hear what viewers should be told, a line each.

        A recording that has begun anew is given the last cards and ends that the hub knows, and one whose job goes by
        another id from now on the cards that say so.
        """
        self._wants_seed = self._wants_seed or job.id != self._job.id
        self._job = job
        if self._wants_seed and len(self._queue) < QUEUE_ITEMS // 2:
            self._wants_seed = False
            for item in _known(state):
                self.put(item)
        busy, now = self._busy_since, self._clock()
        if busy is not None and now - busy > HUNG and not self._hung_told:
            self._hung_told = True
            self._tell(f"the disk has not answered for {now - busy:.0f} s; live viewing goes on")
        return self._take_news()

    def close(self, wait: float = 5.0) -> list[str]:
        """Finish the recording; returns what went wrong. A disk that does not answer for ``wait`` seconds is left."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(wait)
        return self._take_news()

    def _take_news(self) -> list[str]:
        news = []
        while self._news:
            news.append(self._news.popleft())
        return news

    # The recorder's side.

    def _run(self) -> None:
        while not self._stop.is_set():
            hurried = self._wake.wait(PERIOD)
            self._wake.clear()
            if not self._stop.is_set():
                self.turn()
            if hurried:
                self._stop.wait(SPACING)
        self.turn(last=True)

    def turn(self, last: bool = False) -> None:
        """Write what has come; with ``last``, finish."""
        now = self._clock()
        items, overflow = self._drain()
        if overflow:
            self._missing += overflow
            self._wants_seed = True
            if not self._trouble:
                self._tell(f"the disk is too slow: {overflow} messages are missing from the recording")
        if self._writer is None and not items:
            return
        if self._trouble and now < self._next_try and not last:
            self._hold(items)
            return
        try:
            self._busy_since = now
            self._write(items, now, last)
            self._recovered(now)
        except (sqlite3.Error, OSError, RecordingError) as error:
            if not self._waits(error, items, now):
                self._failed(error, now)
        except Exception as error:  # a fault of this file's own must not end the recording for good
            self._failed(RecordingError(f"{type(error).__name__}: {error}"), now)
        finally:
            self._busy_since = None
            self._hung_told = False

    def _drain(self) -> tuple[list[Item], int]:
        """Return what has come, and how many messages did not fit."""
        with self._lock:
            items, self._queue = self._queue, []
            overflow, self._overflow = self._overflow, 0
            self._queued = 0
        return items, overflow

    def _hold(self, items: list[Item]) -> None:
        """Keep what a writer in trouble may still write later; without one, all is missing."""
        if self._writer is None:
            self._missing += len(items)
            return
        for item in items:
            self._writer.add(item)

    def _write(self, items: list[Item], now: float, last: bool) -> None:
        writer = self._writer
        if writer is not None and not writer.in_place():
            # The file was removed: what would be written there, nobody could ever read.
            writer.close()
            writer = self._writer = None
            self._wants_seed = True
        if writer is None:
            # The wall clock when the hub began: the disk may have been full since then.
            wall = self._wall() - max(0.0, self._clock() - self._identity[-1])
            opened = open_recording(self._job, *self._identity, wall, self._limit)
            writer = self._writer = opened.writer
            self._wants_seed = self._wants_seed or bool(self._trouble)
            if opened.news:
                self._tell(opened.news)
            with contextlib.suppress(Exception):
                remove_old(writer.path, self._jobs)
        writer.job = self._job
        for item in items:
            writer.add(item)
        if last:
            writer.finish(now, self._wall())
        elif items or self._trouble or now - self._written_at >= IDLE:
            writer.commit(now, self._wall())
            self._written_at = now

    def _recovered(self, now: float) -> None:
        self._locked_since = None
        if not self._trouble:
            return
        missing, self._missing = self._missing + (self._writer.take_lost() if self._writer else 0), 0
        self._trouble = ""
        gap = f"; {missing} messages are missing" if missing else ""
        self._tell(f"recording again after {now - self._trouble_since:.0f} s{gap}")

    def _waits(self, error: Exception, items: list[Item], now: float) -> bool:
        """Tell whether to try again at once: the hub before this one may still hold the file while it dies."""
        if "locked" not in str(error) or self._trouble:
            return False
        self._locked_since = now if self._locked_since is None else self._locked_since
        if now - self._locked_since > PATIENCE:
            return False
        if self._writer is None:
            with self._lock:
                self._queue[:0] = items
                self._queued += sum(len(item.header) + len(item.body) + 200 for item in items)
        return True

    def _failed(self, error: Exception, now: float) -> None:
        self._next_try = now + RETRY
        reason = clean(str(error))[:200]
        if self._writer is not None and _damaged(error):
            self._writer.close()
            aside = set_aside(self._writer.path)
            reason = f"the file was damaged ({reason}); it is kept as {aside}, and another one begins"
            self._writer = None
            self._wants_seed = True
            self._next_try = now
        if not self._trouble:
            self._trouble_since = now
        if reason != self._trouble:
            self._trouble = reason
            place = f" in {clean(str(self._writer.path.parent))}" if self._writer is not None else ""
            self._tell(f"recording stopped{place}: {reason}; live viewing goes on")

    def _tell(self, text: str) -> None:
        now = self._clock()
        if now - self._told.get(text[:60], -SAME_NEWS) >= SAME_NEWS:
            if len(self._told) > 64:
                self._told.clear()
            self._told[text[:60]] = now
            self._news.append(text)


def record(
    state: HubState, local_id: str, started: float, clock: Callable[[], float] = time.monotonic
) -> Recorder | None:
    """Return what will record all that comes to a hub's state; None where the user wants none."""
    if not recording_wanted():
        return None
    recorder = Recorder(state.job, local_id, started, state.hub, state.started, clock=clock)
    state.stream.tap = recorder.put
    return recorder


def _known(state: HubState) -> Iterator[Item]:
    for rank in state.ranks.values():
        lives = (rank,) if rank.before is None else (rank.before, rank)
        for life in lives:
            for item in (life.card, life.device, life.stack, life.box, life.end):
                if item is not None:
                    yield item


def _damaged(error: Exception) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return False
    return isinstance(error, sqlite3.DatabaseError) or (isinstance(error, RecordingError) and "damaged" in str(error))


def recording_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether jobs are recorded: unless ``RANKTOP_RECORD`` says no."""
    return environ.get("RANKTOP_RECORD", "").strip().lower() not in ("off", "0", "no", "false")


def parse_bytes(text: str, default: int) -> int:
    """Read a size: bytes, or a number with K, M, G (and iB) for powers of 1024; the default when it is none."""
    word = text.strip().upper().removesuffix("IB").removesuffix("B")
    factor = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}.get(word[-1:], 1)
    try:
        return max(0, int(float(word[:-1] if factor > 1 else word) * factor))
    except (ValueError, OverflowError):
        return default


def _whole(text: str, default: int) -> int:
    try:
        return max(1, int(text))
    except ValueError:
        return default
