"""Rewrites what a recording holds: a minute's messages by rank, which packs better; older ones to coarser steps.

Each function is one transaction. ``sqlite3.Error`` and RecordingError mean that nothing has changed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

from ranktop.wire.codec import decode_header
from ranktop.wire.points import point_spacing
from ranktop.wire.recording_file import (
    CHUNK_BYTES,
    SPANS,
    STEPS,
    Points,
    pack_items,
    pack_points,
    unpack_items,
    unpack_points,
)
from ranktop.wire.recording_state import point_from
from ranktop.wire.schema import Item, Point

SHARES: Final = {
    ("samples", 1): 0.50, ("samples", 2): 0.15, ("samples", 3): 0.08, ("samples", 4): 0.04, ("samples", 5): 0.03,
    ("points", 1): 0.12, ("points", 2): 0.04, ("points", 3): 0.02, ("points", 4): 0.01, ("points", 5): 0.01,
}  # fmt: skip
"""(kind, level) -> share of the room; when the room is short, the level that is most above its share is thinned."""

EVENTS_SHARE: Final = 0.25
"""Of the room for events; beyond it those that others have overtaken go."""

BEFORE_A_BOX: Final = 120.0
"""Seconds before an out-of-memory of which a rank's samples stay whole."""
_BOXES: Final = 64

_LAST: Final = len(STEPS) - 1


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Do all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def insert_items(connection: sqlite3.Connection, level: int, items: list[Item], squeeze: int = 6) -> None:
    """Write items as chunks of one level, in their order. ``squeeze``: level of zlib."""
    for part in _parts(items):
        _insert(connection, "samples", level, [item.t for item in part], *pack_items(part, squeeze))


def insert_points(connection: sqlite3.Connection, level: int, found: dict[int, list[Point]]) -> None:
    """Write the points of some ranks as chunks of one level."""
    part: list[Points] = []
    times: list[float] = []
    for rank, points in sorted(found.items()):
        part.append(Points(rank, tuple(points)))
        times += [point.t for point in points]
        if 80 * len(times) > CHUNK_BYTES:
            _insert(connection, "points", level, times, *pack_points(part))
            part, times = [], []
    if times:
        _insert(connection, "points", level, times, *pack_points(part))


def _insert(
    connection: sqlite3.Connection, kind: str, level: int, times: list[float], data: bytes, unpacked: int
) -> None:
    connection.execute(
        "INSERT INTO chunks (kind, level, first, last, count, unpacked, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (kind, level, min(times), max(times), len(times), unpacked, data),
    )


def merge(connection: sqlite3.Connection, world_size: int, points_at: dict[int, float]) -> None:
    """Rewrite what single transactions wrote by minute and rank, and store its points.

    ``points_at``: rank -> when its last point is; brought up to date.
    """
    rows = connection.execute("SELECT id, data FROM chunks WHERE kind = 'samples' AND level = 0 ORDER BY id").fetchall()
    items = [item for _, data in rows for item in unpack_items(data)]
    if not items:
        return
    slots: dict[int, list[Item]] = {}
    for item in items:
        slots.setdefault(int(item.t // SPANS[1]), []).append(item)
    at = dict(points_at)
    with transaction(connection):
        connection.executemany("DELETE FROM chunks WHERE id = ?", [(row[0],) for row in rows])
        for _, of_slot in sorted(slots.items()):
            of_slot.sort(key=_by_rank)
            insert_items(connection, 1, of_slot)
        insert_points(connection, 1, _points_of(items, point_spacing(world_size), at))
    points_at.update(at)


def _points_of(items: list[Item], spacing: float, at: dict[int, float]) -> dict[int, list[Point]]:
    found: dict[int, list[Point]] = {}
    late: dict[int, float] = {}
    for item in sorted(items, key=lambda item: item.number):
        rank, point = point_from(item)
        if point is None:
            continue
        # What comes late is spaced by itself: it lies where there was nothing.
        of = at if point.t >= at.get(rank, point.t) else late
        if point.t - of.get(rank, -1e18) >= spacing:
            of[rank] = point.t
            found.setdefault(rank, []).append(point)
    return found


def thin(connection: sqlite3.Connection) -> bool:
    """Make the oldest part coarser of the level that is most above its share; False: there is nothing."""
    sizes = connection.execute("SELECT kind, level, sum(length(data)) FROM chunks WHERE level > 0 GROUP BY kind, level")
    over = [(size / SHARES.get((kind, level), 0.01), kind, level) for kind, level, size in sizes]
    if not over:
        return False
    _, kind, level = max(over)
    span = SPANS[min(level + 1, _LAST)]
    oldest = connection.execute("SELECT min(first) FROM chunks WHERE kind = ? AND level = ?", (kind, level)).fetchone()[
        0
    ]
    ends = (oldest // span + 1) * span
    rows = connection.execute(
        "SELECT id FROM chunks WHERE kind = ? AND level = ? AND first < ? ORDER BY id", (kind, level, ends)
    ).fetchall()
    ids: list[tuple[int]] = [(row[0],) for row in rows]
    with transaction(connection):
        # Deleted before the new is written, which so takes the pages that become free.
        if level >= _LAST:
            connection.executemany("DELETE FROM chunks WHERE id = ?", ids)
        elif kind == "points":
            points = _thinned_points(connection, ids, STEPS[level + 1])
            connection.executemany("DELETE FROM chunks WHERE id = ?", ids)
            insert_points(connection, level + 1, points)
        else:
            items = _thinned_items(connection, ids, STEPS[level + 1], ends)
            connection.executemany("DELETE FROM chunks WHERE id = ?", ids)
            insert_items(connection, level + 1, items)
    return True


def _thinned_items(connection: sqlite3.Connection, ids: list[tuple[int]], step: float, ends: float) -> list[Item]:
    """Return the last message of each rank's life and kind in each step, and all that come just before a box."""
    boxes = connection.execute(
        "SELECT rank, t FROM events WHERE kind = 'box' AND t < ? ORDER BY t LIMIT ?", (ends + BEFORE_A_BOX, _BOXES)
    ).fetchall()
    last: dict[tuple[int, int, int, str, int], Item] = {}
    whole: list[Item] = []
    for row in ids:
        (data,) = connection.execute("SELECT data FROM chunks WHERE id = ?", row).fetchone()
        for item in unpack_items(data):
            header = decode_header(item.header)
            if any(rank == header.rank and t - BEFORE_A_BOX <= item.t <= t for rank, t in boxes):
                whole.append(item)
                continue
            key = (header.rank, header.pid, header.restart, header.kind, int(item.t // step))
            known = last.get(key)
            if known is None or (item.t, item.number) > (known.t, known.number):
                last[key] = item
    return sorted([*whole, *last.values()], key=_by_rank)


def _thinned_points(connection: sqlite3.Connection, ids: list[tuple[int]], step: float) -> dict[int, list[Point]]:
    last: dict[tuple[int, int], Point] = {}
    for row in ids:
        (data,) = connection.execute("SELECT data FROM chunks WHERE id = ?", row).fetchone()
        for part in unpack_points(data):
            for point in part.points:
                key = (part.rank, int(point.t // step))
                known = last.get(key)
                if known is None or point.t >= known.t:
                    last[key] = point
    found: dict[int, list[Point]] = {}
    for (rank, _), point in sorted(last.items()):
        found.setdefault(rank, []).append(point)
    return found


def thin_events(connection: sqlite3.Connection) -> None:
    """Drop the older half of what is least missed: stacks and process marks, then replaced cards, then others."""
    for condition in (
        "kind IN ('stack', 'process')",
        "kind = 'card' AND number NOT IN (SELECT max(number) FROM events WHERE kind = 'card' GROUP BY rank)",
        "kind <> 'card'",
    ):
        with transaction(connection):
            (count,) = connection.execute(f"SELECT count(*) FROM events WHERE {condition}").fetchone()
            if count < 16:
                continue
            older = f"SELECT number FROM events WHERE {condition} ORDER BY number LIMIT {count // 2}"
            connection.execute(f"DELETE FROM events WHERE number IN ({older})")
        return


def _by_rank(item: Item) -> tuple[int, str, int]:
    header = decode_header(item.header)
    return header.rank, header.kind, item.number


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
