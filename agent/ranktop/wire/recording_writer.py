"""Writes a recording: what its hub received, in transactions of about a second.

A kill of the process loses what was added since the last ``commit``. Samples lie in chunks: what one transaction wrote,
rewritten once a minute by rank and minute, which packs better. Times are the caller's.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from ranktop.wire.codec import WireError, clean, decode_header
from ranktop.wire.recording_file import (
    APPLICATION_ID,
    CHUNK_BYTES,
    FULL_RATE_RANKS,
    INDEXES,
    ORDINARY,
    SCHEMA,
    SPANS,
    TABLES,
    Points,
    broken,
    pack_body,
    pack_items,
    pack_points,
    silence_schema,
    unpack_items,
)
from ranktop.wire.recording_open import boot_id
from ranktop.wire.recording_state import point_from, point_spacing
from ranktop.wire.schema import Header, Item, Job, Point

MERGE_EVERY: Final = 60.0
"""Seconds of ``t`` after which what single transactions wrote is rewritten."""

_CLOCK_APART: Final = 0.1
"""Seconds by which the wall clock may drift from the last pair before a new pair is written."""


class _Told(msgspec.Struct):
    """What of a sample or a card the list of recordings shows."""

    step: int = 0
    simulated: bool = False


_told: Final = msgspec.msgpack.Decoder(_Told)


class RecordingWriter:
    """One recording being written. ``sqlite3.Error`` from any method means that nothing of its transaction is kept."""

    def __init__(self, path: Path, connection: sqlite3.Connection, job: Job) -> None:
        """Use ``create`` or ``resume``."""
        self.path = path
        self.job = job
        self._connection = connection
        self._shift = 0.0
        self._base = 0
        self._number = 0
        self._samples: list[Item] = []
        self._events: list[tuple[int, float, str, int, bytes, bytes]] = []
        self._new_lives: list[tuple[int, int, int, int, float]] = []
        self._lives: set[tuple[int, int, int]] = set()
        self._kept: dict[tuple[int, str], float] = {}
        self._passed: dict[tuple[int, str], Item] = {}
        self._points_at: dict[int, float] = {}
        self._merged_at = 0.0
        self._clock = (0.0, 0.0)
        self.steps = 0
        self.simulated = False

    @classmethod
    def create(
        cls, path: Path, job: Job, *, hub: str, began: float, wall: float, started: float = 0.0, journal: str = "WAL"
    ) -> RecordingWriter:
        """Make a new file, closed to others; RecordingError, or FileExistsError.

        ``began``: seconds on the hub's clock, which the recording's becomes. ``wall``: the wall clock then.
        ``started``: wall clock of the job's start.
        """
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        try:
            connection = _connect(path)
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _journal(connection, journal)
            connection.execute("BEGIN IMMEDIATE")
            for statement in (*TABLES.values(), *INDEXES.values()):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
        except sqlite3.Error as error:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise broken(error) from None
        writer = cls(path, connection, job)
        writer._put("begin", began)
        writer._put("started", started or wall)
        writer._put("spacing", writer.spacing)
        writer._begin(hub, began, wall)
        return writer

    @property
    def spacing(self) -> float:
        """Seconds by which a rank's sample is younger than the one recorded before, at least."""
        return 0.9 * self.job.world_size / FULL_RATE_RANKS

    def _begin(self, hub: str, t: float, wall: float) -> None:
        """Note the hub that writes from now on, and end the transaction that is open."""
        self._connection.execute(
            "INSERT INTO hubs (hub, host, boot, pid, shift, began) VALUES (?, ?, ?, ?, ?, ?)",
            (hub, clean(os.uname().nodename)[:200], boot_id(), os.getpid(), self._shift, t),
        )
        self._merged_at = t
        self._tick(t, wall)
        self._connection.execute("COMMIT")

    def _tick(self, t: float, wall: float) -> None:
        at, then = self._clock
        if abs((wall - then) - (t - at)) > _CLOCK_APART:
            self._clock = (t, wall)
            self._connection.execute("INSERT INTO clock (t, wall) VALUES (?, ?)", (t, wall))
        self._put("end", t)
        self._put("written", wall)
        self._put("steps", self.steps)
        self._put("simulated", int(self.simulated))
        self._put("job", msgspec.json.encode(self.job).decode())

    def _put(self, key: str, value: object) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))

    def add(self, item: Item) -> None:
        """Take a message as the hub keeps it; what cannot be read is left out."""
        try:
            header = decode_header(item.header)
        except WireError:
            return
        item = Item(self._base + item.number, item.t + self._shift, item.header, item.body)
        self._number = max(self._number, item.number + 1)
        if header.kind == "doors":
            return
        self._note_life(header, item)
        if header.kind not in ORDINARY:
            if header.rank >= 0:
                self._keep_passed(header.rank)
            if header.kind == "card":
                self.simulated = self.simulated or _tell(item.body).simulated
            self._events.append(
                (item.number, item.t, header.kind, header.rank, item.header, pack_body(item.body))
            )  # fmt: skip
            return
        key = (header.rank, header.kind)
        if item.t - self._kept.get(key, -1e18) < self.spacing:
            self._passed[key] = item
            return
        self._keep(key, item)

    def _note_life(self, header: Header, item: Item) -> None:
        life = (header.rank, header.pid, header.restart)
        if header.rank >= 0 and life not in self._lives:
            self._lives.add(life)
            self._new_lives.append((item.number, *life, item.t))

    def _keep(self, key: tuple[int, str], item: Item) -> None:
        self._kept[key] = item.t
        self._passed.pop(key, None)
        self._samples.append(item)
        if key[1] == "sample":
            self.steps = max(self.steps, _tell(item.body).step)

    def _keep_passed(self, rank: int) -> None:
        """Keep the newest messages of a rank of which something happens, also where few are kept."""
        for kind in ORDINARY:
            item = self._passed.get((rank, kind))
            if item is not None:
                self._keep((rank, kind), item)

    def commit(self, t: float, wall: float) -> None:
        """Write what was added; ``t`` on the hub's clock, up to which the recording is complete then."""
        t += self._shift
        samples, events, lives = self._samples, self._events, self._new_lives
        self._samples, self._events, self._new_lives = [], [], []
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(
                "INSERT INTO lives (number, rank, pid, restart, began) VALUES (?, ?, ?, ?, ?)", lives
            )
            connection.executemany(
                "INSERT INTO events (number, t, kind, rank, header, body) VALUES (?, ?, ?, ?, ?, ?)", events
            )
            for part in _parts(samples):
                self._insert("samples", 0, part, *pack_items(part, 1))
            self._tick(t, wall)
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        if t - self._merged_at >= MERGE_EVERY:
            self._merged_at = t
            self.merge()

    def _insert(self, kind: str, level: int, items: list[Item] | list[Point], data: bytes, unpacked: int) -> None:
        times = [item.t for item in items]
        self._connection.execute(
            "INSERT INTO chunks (kind, level, first, last, count, unpacked, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (kind, level, min(times), max(times), len(items), unpacked, data),
        )

    def merge(self) -> None:
        """Rewrite what single transactions wrote, by minute and rank, and store its points."""
        connection = self._connection
        rows = connection.execute(
            "SELECT id, data FROM chunks WHERE kind = 'samples' AND level = 0 ORDER BY id"
        ).fetchall()
        items = [item for _, data in rows for item in unpack_items(data)]
        if not items:
            return
        slots: dict[int, list[Item]] = {}
        for item in items:
            slots.setdefault(int(item.t // SPANS[1]), []).append(item)
        connection.execute("BEGIN IMMEDIATE")
        try:
            for _, of_slot in sorted(slots.items()):
                of_slot.sort(key=_by_rank)
                for part in _parts(of_slot):
                    self._insert("samples", 1, part, *pack_items(part))
            self._store_points(items)
            connection.executemany("DELETE FROM chunks WHERE id = ?", [(row[0],) for row in rows])
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _store_points(self, items: list[Item]) -> None:
        spacing = point_spacing(self.job.world_size)
        found: dict[int, list[Point]] = {}
        for item in sorted(items, key=lambda item: item.number):
            rank, point = point_from(item)
            if point is not None and point.t - self._points_at.get(rank, -1e18) >= spacing:
                self._points_at[rank] = point.t
                found.setdefault(rank, []).append(point)
        if found:
            packed = [Points(rank, tuple(points)) for rank, points in sorted(found.items())]
            self._insert("points", 1, [point for points in found.values() for point in points], *pack_points(packed))

    def finish(self, t: float, wall: float) -> None:
        """Write what is left, and leave one file with no journal beside it."""
        self.commit(t, wall)
        self.merge()
        self._put("ended", wall)
        with contextlib.suppress(sqlite3.Error):  # a reader may be in the way; it keeps the journal then
            self._connection.execute("PRAGMA incremental_vacuum")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self.close()

    def close(self) -> None:
        """Let go of the file; what was not committed is lost."""
        self._connection.close()


def _parts(items: list[Item]) -> Iterable[list[Item]]:
    """Split items so that each part unpacks to about CHUNK_BYTES at most."""
    part: list[Item] = []
    size = 0
    for item in items:
        more = len(item.header) + len(item.body) + 24
        if part and size + more > CHUNK_BYTES:
            yield part
            part, size = [], 0
        part.append(item)
        size += more
    if part:
        yield part


def _by_rank(item: Item) -> tuple[int, str, int]:
    header = decode_header(item.header)
    return header.rank, header.kind, item.number


def _tell(body: bytes) -> _Told:
    try:
        return _told.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return _Told()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    silence_schema(connection)
    return connection


def _journal(connection: sqlite3.Connection, journal: str) -> None:
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA journal_size_limit = 1048576")
