"""What a recording knew at one time, told as a hub's snapshot would tell it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from ranktop.wire.codec import WireError, decode_body, decode_header, encode_body, encode_header
from ranktop.wire.points import HISTORY_SECONDS, point_of, point_spacing
from ranktop.wire.recording_file import RecordingError, bounded, items_size, unpack_body
from ranktop.wire.schema import Header, History, Item, Mark, Point, Sample

if TYPE_CHECKING:
    from ranktop.wire.recording import Recording

LifeKey = tuple[int, int, int]
"""(rank, pid, restart)."""

SAMPLES_SHOWN: Final = 40
SAMPLES_BEFORE_A_BOX: Final = 120
MARKS: Final = 32
_SHOWN_BYTES: Final = 8 * 1024 * 1024
_BOXES_BYTES: Final = 16 * 1024 * 1024
_MOST_LIVES: Final = 500_000
_MOST_POINTS: Final = 2_000_000
_LOOK_BACK: Final = (180.0, 1800.0, 4 * 3600.0, 48 * 3600.0)
"""Seconds: the next is tried for ranks of which the one before has no sample, as where only an hour's last is kept."""


class _Stepped(msgspec.Struct):
    step: int = 0


_stepped: Final = msgspec.msgpack.Decoder(_Stepped)


@dataclass(slots=True)
class _Life:
    key: LifeKey
    began: float
    card: Item | None = None
    stack: Item | None = None
    box: Item | None = None
    end: Item | None = None
    process: Item | None = None
    samples: list[Item] = field(default_factory=list)
    device: Item | None = None

    def until(self, t: float) -> float:
        """Return up to when samples of this life can be."""
        return min(t, self.end.t) if self.end is not None else t

    def settle(self) -> None:
        """Drop what a later sample has made past."""
        if not self.samples:
            return
        newest = self.samples[-1]
        if self.process is not None and newest.t > self.process.t:
            self.process = None
        if self.stack is not None and _step(newest) > _step(self.stack):
            self.stack = None


def state_at(recording: Recording, t: float) -> Iterator[Item]:
    """Return the items of a snapshot at ``t``; RecordingError."""
    t = min(t, recording.end)
    with recording.reading():
        lives = _lives(recording, t)
        marks, nodes = _events(recording, t, lives)
        shown = [known[-1] for known in lives.values()]
        boxed = [life for known in lives.values() for life in known if life.box is not None]
        for life in {
            life.key: life for life in (*boxed, *(life for known in lives.values() for life in known[-2:]))
        }.values():
            _fetch(recording, life)
        _find_samples(recording, t, shown, boxed, len(lives))
        histories = _histories(recording, t, {rank: known[-1] for rank, known in lives.items()})
    return _unfold(marks, nodes, lives, histories)


def _lives(recording: Recording, t: float) -> dict[int, list[_Life]]:
    lives: dict[int, list[_Life]] = {}
    query = "SELECT rank, pid, restart, began FROM lives WHERE began <= ? ORDER BY number LIMIT ?"
    rows = recording.rows(query, (t, _MOST_LIVES + 1))
    if len(rows) > _MOST_LIVES:
        raise RecordingError(f"the recording tells of more than {_MOST_LIVES} processes: refused")
    for rank, pid, restart, began in rows:
        lives.setdefault(rank, []).append(_Life((rank, pid, restart), began))
    return dict(sorted(lives.items()))


def _events(recording: Recording, t: float, lives: dict[int, list[_Life]]) -> tuple[list[Item], list[Item]]:
    """Give the lives their events; return the job's own marks and the newest word on nodes."""
    named = {life.key: life for known in lives.values() for life in known}
    marks: list[Item] = []
    nodes: list[Item] = []
    # Bodies are fetched for what is used only.
    query = "SELECT number, t, kind, rank, header FROM events WHERE t <= ? ORDER BY t DESC, number DESC LIMIT 1000000"
    rows = reversed(recording.rows(query, (t,)))
    for number, when, kind, rank, head in rows:
        item = Item(number, when, head, b"")
        if rank < 0:
            if kind == "mark":
                marks = [*marks[1 - MARKS :], item]
            elif kind == "nodes":
                nodes = [item]
            continue
        life = named.get(_key(head))
        if life is not None:
            _note(life, kind, item)
    return [_whole(recording, item) for item in marks], [_whole(recording, item) for item in nodes]


def _note(life: _Life, kind: str, item: Item) -> None:
    if kind == "card":
        life.card = item
    elif kind == "stack":
        life.stack = item
    elif kind == "process":
        life.process = item
    elif kind == "box" and life.box is None:
        life.box = item
    elif kind == "end" and life.end is None:
        life.end = item


def _fetch(recording: Recording, life: _Life) -> None:
    for name in ("card", "stack", "box", "end", "process"):
        item: Item | None = getattr(life, name)
        if item is not None:
            setattr(life, name, _whole(recording, item))


def _whole(recording: Recording, item: Item) -> Item:
    rows = recording.rows("SELECT body FROM events WHERE number = ?", (item.number,))
    body = rows[0][0] if rows else None
    return Item(item.number, item.t, item.header, unpack_body(body) if isinstance(body, bytes) else b"")


def _find_samples(recording: Recording, t: float, shown: list[_Life], boxed: list[_Life], ranks: int) -> None:
    wanted = {life.key: life for life in (*shown, *boxed)}
    room = {key: _SHOWN_BYTES // max(1, ranks) for key in wanted}
    count = dict.fromkeys(wanted, SAMPLES_SHOWN)
    for life in boxed:
        room[life.key], count[life.key] = _BOXES_BYTES // len(boxed), SAMPLES_BEFORE_A_BOX
    # Those that ended at about the same time are looked for together.
    groups: dict[int, list[_Life]] = {}
    for life in wanted.values():
        groups.setdefault(int(life.until(t) // 60), []).append(life)
    for group in groups.values():
        _look_back(recording, group, t, count)
    for life in wanted.values():
        life.samples = newest(life.samples, count[life.key], room[life.key])
        life.settle()


def _look_back(recording: Recording, group: list[_Life], t: float, count: dict[LifeKey, int]) -> None:
    latest = max(life.until(t) for life in group)
    for span in _LOOK_BACK:
        missing = {life.key: life for life in group if not life.samples}
        if not missing:
            return
        chunks = recording.chunks("samples", latest - span, latest)
        found: dict[LifeKey, list[tuple[str, Item]]] = {}
        size = 0
        for chunk in sorted(chunks, key=lambda chunk: -chunk.last):
            if all(_enough(found.get(key, []), count[key], chunk.last) for key in missing):
                break
            for key, items in recording.chunk_lives(chunk).items():
                if key in missing:
                    until = missing[key].until(t)
                    before = [told for told in items if told[1].t <= until]
                    found.setdefault(key, []).extend(before)
                    size = bounded(size + items_size([item for _, item in before]))
        for key, items in found.items():
            life = missing[key]
            items.sort(key=lambda told: (told[1].t, told[1].number))
            life.samples = [item for kind, item in items if kind == "sample"]
            life.device = next((item for kind, item in reversed(items) if kind == "device"), life.device)


def _enough(found: list[tuple[str, Item]], count: int, since: float) -> bool:
    """Tell whether no older chunk, which ends at ``since``, can hold what is wanted."""
    if len(found) <= count:
        return False
    kinds = [kind for kind, item in found if item.t >= since]
    return kinds.count("sample") >= count and len(kinds) > kinds.count("sample")


def newest(items: list[Item], count: int, room: int) -> list[Item]:
    """Return at most ``count`` of the newest within ``room`` bytes, at least one, oldest first."""
    taken: list[Item] = []
    for item in reversed(items):
        room -= len(item.header) + len(item.body) + 200
        if len(taken) == count or (taken and room < 0):
            break
        taken.append(item)
    return taken[::-1]


def _histories(recording: Recording, t: float, lives: dict[int, _Life]) -> dict[int, list[Point]]:
    """Return the points of each rank in the half hour and a bit before it was last heard of."""
    found: dict[int, list[Point]] = {}
    count = 0
    # Those that have long been silent are looked for together.
    groups: dict[int, list[int]] = {}
    for rank, life in lives.items():
        heard = life.samples[-1].t if life.samples else life.began
        groups.setdefault(0 if heard > t - HISTORY_SECONDS else int(heard // 600) * 600 + 600, []).append(rank)
    for group, ranks in groups.items():
        until = group or t
        wanted = set(ranks)
        for chunk in recording.chunks("points", until - 2 * HISTORY_SECONDS, until):
            for part in recording.chunk_points(chunk):
                if part.rank in wanted:
                    found.setdefault(part.rank, []).extend(point for point in part.points if point.t <= t)
                    count += len(part.points)
            if count > _MOST_POINTS:
                raise RecordingError(f"half an hour of the recording has more than {_MOST_POINTS} points: refused")
    for points in found.values():
        points.sort(key=lambda point: point.t)
    spacing = point_spacing(recording.job.world_size)
    fresh = [item for item in recording.unmerged() if item.t <= t]
    for item in sorted(fresh, key=lambda item: item.number):
        rank, point = point_from(item)
        if point is not None:
            points = found.setdefault(rank, [])
            if not points or point.t - points[-1].t >= spacing:
                points.append(point)
    return found


def point_from(item: Item) -> tuple[int, Point | None]:
    """Return the rank of an item, and the point that it makes when it is a sample that can be read."""
    try:
        header = decode_header(item.header)
        body = decode_body(header, item.body) if header.kind == "sample" else None
    except WireError:
        return -1, None
    return header.rank, point_of(body, item.t) if isinstance(body, Sample) else None


def _unfold(
    marks: list[Item], nodes: list[Item], lives: dict[int, list[_Life]], histories: dict[int, list[Point]]
) -> Iterator[Item]:
    yield from marks
    yield from nodes
    told = [item for known in lives.values() for life in known for item in (*life.samples, life.card, life.end) if item]
    last = max((item.number for item in (*told, *marks, *nodes)), default=0)
    for rank, known in lives.items():
        past = list(_past(known, last))
        yield from past
        life = known[-1]
        if life.card is not None:
            yield life.card
        ends = (life.stack, life.box, life.process, life.end)
        rest = [item for item in (life.device, *life.samples, *ends) if item is not None]
        history = _history(rank, life.key, [*past, *([life.card] if life.card else []), *rest], histories.get(rank, []))
        if history is not None:
            yield history
        yield from rest


def _past(known: list[_Life], last: int) -> Iterator[Item]:
    """Return what is told of former lives: the last that left a box, the one before, and when lives began."""
    if len(known) < 2:
        return
    before, present = known[-2:]
    boxed = present.box is None
    if boxed and before.box is None:
        fallen = next((life for life in reversed(known[:-2]) if life.box is not None), None)
        if fallen is not None:
            yield from _left(fallen, True)
    yield _began(before, last)
    yield from _left(before, boxed)
    yield _began(present, last)


def _left(life: _Life, with_box: bool) -> Iterable[Item]:
    box = life.box if with_box else None
    samples = life.samples if box is not None else ()
    return [*samples, *(item for item in (box, life.end) if item is not None)]


def _began(life: _Life, last: int) -> Item:
    rank, pid, restart = life.key
    return Item(last, life.began, encode_header(Header("mark", rank, pid, restart, 0)), encode_body(Mark(what="life")))


def _history(rank: int, key: LifeKey, told: list[Item], points: list[Point]) -> Item | None:
    if not told:
        return None
    latest = max(told, key=lambda item: item.t)
    within = tuple(point for point in points if latest.t - HISTORY_SECONDS <= point.t <= latest.t)
    if not within:
        return None
    header = encode_header(Header("history", rank, key[1], key[2], 0))
    return Item(latest.number, within[-1].t, header, encode_body(History(rank=rank, points=within)))


def _key(head: object) -> LifeKey:
    try:
        header = decode_header(head if isinstance(head, bytes) else b"")
    except WireError:
        return (-1, 0, 0)
    return (header.rank, header.pid, header.restart)


def _step(item: Item) -> int:
    try:
        return _stepped.decode(item.body).step
    except (msgspec.MsgspecError, RecursionError):
        return 0
