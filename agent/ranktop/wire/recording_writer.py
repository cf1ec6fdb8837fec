"""Writes a recording: what its hub received, in transactions of about a second.

A kill of the process loses what was added since the last ``commit``. Times are the caller's.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any, Final

import msgspec

from ranktop.wire.codec import WireError, decode_header
from ranktop.wire.recording_file import (
    APPLICATION_ID,
    INDEXES,
    SCHEMA,
    TABLES,
    RecordingError,
    broken,
    check_schema,
    silence_schema,
    unpack_items,
    unpack_points,
)
from ranktop.wire.recording_intake import Intake
from ranktop.wire.recording_open import boot_id, here, runs
from ranktop.wire.recording_thinning import (
    EVENTS_SHARE,
    insert_items,
    insert_points,
    merge,
    thin,
    thin_events,
    transaction,
)
from ranktop.wire.schema import Item, Job, Point

DEFAULT_BYTES: Final = 512 * 1024 * 1024
LEAST_BYTES: Final = 16 * 1024 * 1024
"""Of a recording's limit."""

MERGE_EVERY: Final = 60.0
"""Seconds of ``t`` after which what single transactions wrote is rewritten."""

_SPARE: Final = 0.1
_LEAST_SPARE: Final = 8 * 1024 * 1024
"""Share of the limit, and bytes at least, that are left for the journal and for rewriting."""

_CLOCK_APART: Final = 0.1
"""Seconds by which the wall clock may drift from the last pair before a new pair is written."""

_OTHERS_SILENCE: Final = 30.0
"""Seconds after which a hub of another machine that has written nothing no longer owns its recording."""

WAITING_SAMPLES: Final = 20_000
"""Samples that are kept while the file is locked by another process."""

TAIL: Final = 15.0
"""Seconds that a finished recording goes on after its last message: as long as viewers may take to tell of it."""


class TakenByAnother(RecordingError):
    """Another hub writes this recording."""


class RecordingWriter:
    """One recording being written. ``sqlite3.Error`` of a method means that nothing of its transaction was written."""

    def __init__(self, path: Path, connection: sqlite3.Connection, job: Job, limit: int) -> None:
        """Use ``create`` or ``resume``."""
        self.path = path
        self.job = job
        self.limit = max(limit, LEAST_BYTES)
        self._lost = 0
        self._inode = os.lstat(path).st_ino
        self._connection = connection
        self._intake = Intake(job.world_size)
        self._points_at: dict[int, float] = {}
        self._merged_at = 0.0
        self._clock = (0.0, -1e18)
        self._page = int(connection.execute("PRAGMA page_size").fetchone()[0])
        self._event_bytes = 0

    @classmethod
    def create(
        cls, path: Path, job: Job, *, hub: str, began: float, wall: float, started: float = 0.0,
        journal: str = "WAL", limit: int = DEFAULT_BYTES,
    ) -> RecordingWriter:  # fmt: skip
        """Make a new file, closed to others; sqlite3.Error, FileExistsError or another OSError.

        ``began``: seconds on the hub's clock, which the recording's becomes. ``wall``: the wall clock then.
        ``started``: wall clock of the job's start. ``journal``: SQLite's journal mode.
        """
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        connection = None
        try:
            connection = _connect(path)
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _journal(connection, journal)
            writer = cls(path, connection, job, limit)
            with transaction(connection):
                for statement in (*TABLES.values(), *INDEXES.values()):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
                writer._put("begin", began)
                writer._put("started", started or wall)
                writer._put("journal", journal)
                writer._begin(hub, began, wall)
        except BaseException:
            if connection is not None:
                connection.close()
            for name in (path, *_beside(path)):
                with contextlib.suppress(OSError):
                    os.unlink(name)
            raise
        return writer

    @classmethod
    def resume(
        cls, path: Path, job: Job, *, hub: str, began: float, wall: float, limit: int = DEFAULT_BYTES
    ) -> RecordingWriter:
        """Go on in the file of a hub that was killed, or of this one.

        TakenByAnother: another hub writes it. Another RecordingError: it can't be used. sqlite3.OperationalError: not
        now.
        On the same start of the machine the recording's clock goes on by itself; else the wall clock tells the gap.
        """
        connection = None
        try:
            connection = _connect(path)
            check_schema(connection)
            meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
            last = connection.execute(
                "SELECT host, boot, pid, shift, base, hub FROM hubs ORDER BY id DESC LIMIT 1"
            ).fetchone()
            _check_free(last, meta, wall)
            _journal(connection, str(meta.get("journal") or "WAL"))
            writer = cls(path, connection, job, limit)
            shift, base = float(last[3]), int(last[4]) if last[5] == hub else int(meta["number"])
            if last[1] != boot_id() or began + shift < float(meta["end"]):
                shift = float(meta["end"]) + max(0.0, wall - float(meta["written"])) - began
            writer._intake = Intake(job.world_size, shift, base)
            writer._remember(meta)
            with transaction(connection):
                writer._begin(hub, began + shift, wall)
        except (RecordingError, sqlite3.OperationalError):
            if connection is not None:
                connection.close()
            raise
        except (sqlite3.DatabaseError, KeyError, TypeError, ValueError) as error:
            if connection is not None:
                connection.close()
            raise broken(error) from None
        return writer

    def _remember(self, meta: dict[str, Any]) -> None:
        """Learn what the hub before has recorded, so that what is said again is not recorded again."""
        connection, intake = self._connection, self._intake
        intake.steps, intake.simulated = int(meta.get("steps") or 0), bool(meta.get("simulated"))
        intake.newest = float(meta["end"])
        intake.lives = set(connection.execute("SELECT rank, pid, restart FROM lives").fetchall())
        for event in connection.execute("SELECT rank, kind, header, body FROM events ORDER BY number"):
            intake.remember(*event)
        recent = connection.execute(
            "SELECT data FROM chunks WHERE kind = 'samples' AND level < 2 AND last > ?", (intake.newest - 120.0,)
        )
        for (data,) in recent.fetchall():
            for item in unpack_items(data):
                with contextlib.suppress(WireError):
                    header = decode_header(item.header)
                    life = (header.rank, header.pid, header.restart)
                    intake.spoken[life] = max(header.seq, intake.spoken.get(life, -1))
        points = connection.execute(
            "SELECT data FROM chunks WHERE kind = 'points' AND level = 1 AND last > ?", (intake.newest - 300.0,)
        )
        for (data,) in points.fetchall():
            for part in unpack_points(data):
                newest = max((point.t for point in part.points), default=-1e18)
                self._points_at[part.rank] = max(newest, self._points_at.get(part.rank, newest))

    def _begin(self, hub: str, t: float, wall: float) -> None:
        """Note the hub that writes from now on."""
        self._connection.execute(
            "INSERT INTO hubs (hub, host, boot, pid, shift, base, began) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (hub, *here(), os.getpid(), self._intake.shift, self._intake.base, t),
        )
        self._connection.execute("DELETE FROM meta WHERE key = 'ended'")
        self._put("spacing", self._intake.spacing)
        self._merged_at = t
        (self._event_bytes,) = self._connection.execute("SELECT total(length(body)) FROM events").fetchone()
        self._tick(t, wall)

    def _tick(self, t: float, wall: float) -> None:
        at, then = self._clock
        if abs((wall - then) - (t - at)) > _CLOCK_APART:
            self._clock = (t, wall)
            self._connection.execute("INSERT INTO clock (t, wall) VALUES (?, ?)", (t, wall))
        intake = self._intake
        self._put("end", t)
        self._put("written", wall)
        self._put("steps", intake.steps)
        self._put("simulated", int(intake.simulated))
        self._put("number", intake.number)
        self._put("job", msgspec.json.encode(self.job).decode())

    def _put(self, key: str, value: object) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))

    def add(self, item: Item) -> None:
        """Take a message as the hub keeps it."""
        self._intake.add(item)

    def commit(self, t: float, wall: float) -> None:
        """Write what was added. ``t``: on the hub's clock; the recording is complete up to then."""
        t += self._intake.shift
        taken = self._intake.take()
        connection = self._connection
        try:
            with transaction(connection):
                connection.executemany("INSERT OR IGNORE INTO lives VALUES (?, ?, ?, ?, ?)", taken.lives)
                connection.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?)", taken.events)
                insert_items(connection, 0, taken.samples, squeeze=1)
                self._insert_told(taken.points)
                self._tick(t, wall)
        except BaseException as error:
            waits = "locked" in str(error) and len(taken.samples) < WAITING_SAMPLES
            self._lost += self._intake.put_back(taken, waits)
            raise
        self._event_bytes += sum(len(event[-1]) for event in taken.events)
        if t - self._merged_at >= MERGE_EVERY:
            self.rewrite(t)

    def _insert_told(self, told: list[Any]) -> None:
        found: dict[int, list[Point]] = {}
        for part in told:
            found.setdefault(part.rank, []).extend(part.points)
        insert_points(self._connection, 1, found)

    def rewrite(self, t: float) -> None:
        """Pack the last minute well, and make older parts coarser when the room is short."""
        self._merged_at = t
        merge(self._connection, self.job.world_size, self._points_at)
        if self._event_bytes > EVENTS_SHARE * self.limit:
            thin_events(self._connection)
            (self._event_bytes,) = self._connection.execute("SELECT total(length(body)) FROM events").fetchone()
        room = self.limit - max(int(_SPARE * self.limit), _LEAST_SPARE)
        for _ in range(1000):
            if self.held() <= room or not thin(self._connection):
                break
        if self._pragma("page_count") * self._page > self.limit:
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()

    def in_place(self) -> bool:
        """Tell whether the file is still where it was made."""
        try:
            return os.lstat(self.path).st_ino == self._inode
        except OSError:
            return False

    def take_lost(self) -> int:
        """Return how many messages could not be written since this was asked last."""
        lost, self._lost = self._lost, 0
        return lost

    def held(self) -> int:
        """Return the bytes of the file that are in use."""
        return (self._pragma("page_count") - self._pragma("freelist_count")) * self._page

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def finish(self, t: float, wall: float) -> None:
        """Write what is left, and leave one file with no journal beside it."""
        last = min(t, self._intake.newest - self._intake.shift + TAIL)
        self.commit(last, wall - (t - last))
        self.rewrite(last + self._intake.shift)
        with transaction(self._connection):
            self._put("ended", wall - max(0.0, t + self._intake.shift - self._intake.newest))
        with contextlib.suppress(sqlite3.Error):  # a reader may be in the way: the journal stays beside it then
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        self.close()

    def close(self) -> None:
        """Let go of the file; what was not committed is lost."""
        self._connection.close()


def _check_free(last: tuple[Any, ...], meta: dict[str, Any], wall: float) -> None:
    host, boot, pid = last[:3]
    same = (host, boot) == here()
    if meta.get("ended") is not None or (same and pid == os.getpid()):
        return
    alive = runs(pid) if same else abs(wall - float(meta["written"])) < _OTHERS_SILENCE
    if alive:
        raise TakenByAnother("another hub writes this recording")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    silence_schema(connection)
    return connection


def _journal(connection: sqlite3.Connection, journal: str) -> None:
    connection.execute(f"PRAGMA journal_mode = {journal}").fetchall()
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 500").fetchall()
    connection.execute("PRAGMA journal_size_limit = 1048576").fetchall()


def _beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal")]
