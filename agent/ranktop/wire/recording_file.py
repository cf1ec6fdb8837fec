"""What a recording's file looks like: its tables, how rows are packed, and the limits within which they are unpacked.

Reader and writer share it; docs/recording.md describes it for others.
"""

from __future__ import annotations

import math
import sqlite3
import zlib
from typing import Final

import msgspec

from ranktop.wire.codec import clean
from ranktop.wire.schema import MAX_MESSAGE, Item, Point

SCHEMA: Final = 1
"""``user_version`` of the file. Rises when an older reader would misread it."""

APPLICATION_ID: Final = 0x72746F70
"""``rtop``, by which ``file`` and others can tell a recording from another SQLite file."""

TOLD_TO_GO: Final = "told"
"""What the mark is called that says: the hub was told to go (SIGTERM) while its ranks lived."""

TABLES: Final = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "hubs": (
        "CREATE TABLE hubs (id INTEGER PRIMARY KEY, hub TEXT NOT NULL, host TEXT NOT NULL, boot TEXT NOT NULL, "
        "pid INTEGER NOT NULL, shift REAL NOT NULL, base INTEGER NOT NULL, began REAL NOT NULL)"
    ),
    "clock": "CREATE TABLE clock (t REAL NOT NULL, wall REAL NOT NULL)",
    "lives": (
        "CREATE TABLE lives (number INTEGER PRIMARY KEY, rank INTEGER NOT NULL, pid INTEGER NOT NULL, "
        "restart INTEGER NOT NULL, began REAL NOT NULL)"
    ),
    "events": (
        "CREATE TABLE events (number INTEGER PRIMARY KEY, t REAL NOT NULL, kind TEXT NOT NULL, rank INTEGER NOT NULL, "
        "header BLOB NOT NULL, body BLOB NOT NULL)"
    ),
    "chunks": (
        "CREATE TABLE chunks (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, level INTEGER NOT NULL, "
        "first REAL NOT NULL, last REAL NOT NULL, count INTEGER NOT NULL, unpacked INTEGER NOT NULL, "
        "data BLOB NOT NULL)"
    ),
}
INDEXES: Final = {
    "events_time": "CREATE INDEX events_time ON events (t)",
    "chunks_time": "CREATE INDEX chunks_time ON chunks (kind, level, first, last)",
}

STEPS: Final = (0.0, 0.0, 10.0, 60.0, 600.0, 3600.0)
"""Seconds from one kept message of a rank to its next, by a chunk's level; 0: all that were recorded. Level 0 holds
what one transaction wrote, level 1 a minute or a part of one."""

SPANS: Final = (0.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
"""Seconds, by level: a chunk holds messages of one such slot of ``t`` only."""

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Unpacked; a chunk that has grown so far is closed."""

MAX_UNPACKED: Final = CHUNK_BYTES + 2 * MAX_MESSAGE + 1024 * 1024
"""Bytes; a chunk that unpacks to more is refused."""

MOST_AT_ONCE: Final = 512 * 1024 * 1024
"""Bytes of memory that the messages of one look may take: a small file may unpack to any size."""

FULL_RATE_RANKS: Final = 256
"""Samples a second that are recorded of a job in all, about: a rank's are kept so that they are 0.9 * world_size / 256
seconds apart on average; up to so many ranks, each that comes once a second is."""

ORDINARY: Final = ("sample", "device")
"""Kinds that are kept in chunks and thinned with time; all others are events."""


class RecordingError(Exception):
    """A recording cannot be used; the text is one line: what is wrong and what to do."""


class Points(msgspec.Struct, array_like=True, frozen=True):
    """Points of one rank in a chunk of points, oldest first."""

    rank: int
    points: tuple[Point, ...]


_items: Final = msgspec.msgpack.Decoder(list[Item])
_points: Final = msgspec.msgpack.Decoder(list[Points])
_encode: Final = msgspec.msgpack.Encoder().encode


def pack_items(items: list[Item], level: int = 6) -> tuple[bytes, int]:
    """Return the packed items and their bytes unpacked. ``level``: of zlib."""
    raw = _encode(items)
    return zlib.compress(raw, level), len(raw)


def pack_points(points: list[Points]) -> tuple[bytes, int]:
    """Return the packed points and their bytes unpacked."""
    raw = _encode(points)
    return zlib.compress(raw, 6), len(raw)


def pack_body(body: bytes) -> bytes:
    """Return an event's body as it is stored."""
    # A card of 20 KB becomes as small as at level 6, in half of the time: in large jobs thousands come at once.
    return zlib.compress(body, 3)


def unpack_body(data: bytes) -> bytes:
    """Return an event's body; RecordingError."""
    return _inflate(data, MAX_MESSAGE)


def unpack_items(data: bytes) -> list[Item]:
    """Return a chunk's items in the order of the file; RecordingError. Those at no real time are left out."""
    try:
        items = _items.decode(_inflate(data, MAX_UNPACKED))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise broken(error) from None
    return [item for item in items if math.isfinite(item.t)]


def unpack_points(data: bytes) -> list[Points]:
    """Return a chunk's points; RecordingError."""
    try:
        points = _points.decode(_inflate(data, MAX_UNPACKED))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise broken(error) from None
    return [part for part in points if all(math.isfinite(point.t) for point in part.points)]


def _inflate(data: bytes, limit: int) -> bytes:
    # A small file may unpack to any size: never more than the limit is made.
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise broken(error) from None
    except TypeError as error:
        raise broken(error) from None
    if len(raw) > limit:
        raise RecordingError(f"a part of the recording unpacks to more than {limit} bytes: refused")
    if not inflater.eof:
        raise RecordingError("the recording is damaged: a part of it is cut off")
    return raw


def items_size(items: list[Item]) -> int:
    """Return the bytes of memory that items take, roughly."""
    return sum(len(item.header) + len(item.body) + 200 for item in items)


def bounded(size: int) -> int:
    """Return the size; RecordingError where it is more than one look may take."""
    if size > MOST_AT_ONCE:
        raise RecordingError(f"a minute of the recording unpacks to more than {MOST_AT_ONCE >> 20} MiB: refused")
    return size


def broken(error: Exception) -> RecordingError:
    """Return what is raised when a part of a file can't be read."""
    if isinstance(error, sqlite3.OperationalError) and "lock" in str(error):
        return RecordingError("the recording is locked by its hub: try again")
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return RecordingError("the recording was closed: open it again, or read within `with`")
    return RecordingError(f"the recording is damaged: {clean(str(error))[:120]}")


def silence_schema(connection: sqlite3.Connection) -> None:
    """Have SQLite run nothing that the file brings along."""
    for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}")


def check_schema(connection: sqlite3.Connection) -> None:
    """RecordingError unless the file holds the tables of this version and nothing else."""
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        kind = int(connection.execute("PRAGMA application_id").fetchone()[0])
        if kind != APPLICATION_ID:
            raise RecordingError("this SQLite file is no recording of ranktop")
        if version != SCHEMA:
            older = "upgrade ranktop here" if version > SCHEMA else "open it with the version that made it"
            raise RecordingError(f"the recording has schema {version}, this ranktop reads schema {SCHEMA}: {older}")
        found = connection.execute("SELECT name, sql FROM sqlite_master LIMIT 100").fetchall()
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise broken(error) from None
    expected = {**TABLES, **INDEXES, "sqlite_sequence": "CREATE TABLE sqlite_sequence(name,seq)"}
    foreign = [name for name, sql in found if expected.get(name) != sql]
    if foreign or not expected.keys() <= {name for name, _ in found}:
        raise RecordingError("the recording's tables are not those that ranktop makes: refused")
