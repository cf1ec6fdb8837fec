"""Sorts what a hub received into what a recording keeps: events, samples of which not too many, lives, points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from ranktop.wire.codec import WireError, decode_body, decode_header, encode_body
from ranktop.wire.nodes import Nodes
from ranktop.wire.points import LARGEST
from ranktop.wire.recording_file import FULL_RATE_RANKS, ORDINARY, Points, pack_body
from ranktop.wire.schema import Header, History, Item, Mark

PUT_BACK_BYTES: Final = 8 * 1024 * 1024
"""Of events that are kept while the disk takes nothing; the oldest go first."""

BURST: Final = 64
"""Samples of a rank that may come at once, where each is kept that comes once a second."""

_LONG_AGO: Final = -1e18

Event = tuple[int, float, str, int, bytes, bytes]
"""A row of ``events``."""


class _Told(msgspec.Struct):
    """What of a sample or a card the list of recordings shows."""

    step: int = 0
    simulated: bool = False


_told: Final = msgspec.msgpack.Decoder(_Told)


@dataclass(slots=True)
class Taken:
    """What one transaction writes."""

    samples: list[Item] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    lives: list[tuple[int, int, int, int, float]] = field(default_factory=list)
    """(number, rank, pid, restart, began)."""
    points: list[Points] = field(default_factory=list)
    """Told by another node's hub; those of samples are made later."""

    def __bool__(self) -> bool:
        return bool(self.samples or self.events or self.lives or self.points)


class Intake:
    """What was added since the last transaction. ``spacing``: seconds between two samples of a rank that are kept."""

    def __init__(self, world_size: int, shift: float = 0.0, base: int = 0) -> None:
        self.spacing = 0.9 * world_size / FULL_RATE_RANKS
        # What a busy machine holds back for some seconds comes at once then.
        self._burst = BURST * self.spacing if world_size <= FULL_RATE_RANKS else 0.0
        self.shift = shift
        self.base = base
        self.number = base
        """One more than the largest so far."""
        self.newest = _LONG_AGO
        """The latest ``t`` so far."""
        self.steps = 0
        self.simulated = False
        self.lives: set[tuple[int, int, int]] = set()
        self.spoken: dict[tuple[int, int, int], int] = {}
        """Life -> number of its last message that an earlier hub has recorded."""
        self._said: dict[tuple[int, str], tuple[bytes, bytes]] = {}
        self._kept: dict[tuple[int, str], float] = {}
        self._due: dict[tuple[int, str], float] = {}
        self._passed: dict[tuple[int, str], Item] = {}
        self._taken = Taken()

    def add(self, item: Item) -> None:
        """Take a message as the hub keeps it; what cannot be read is left out, and so is what is there already."""
        try:
            header = decode_header(item.header)
            item = self._translated(header, item)
        except WireError:
            return
        self.number = max(self.number, item.number + 1)
        self.newest = max(self.newest, item.t)
        if header.kind == "history":
            self._take_points(header, item)
        elif header.kind in ORDINARY:
            self._take_sample(header, item)
        elif header.kind != "doors":
            self._take_event(header, item)

    def remember(self, rank: int, kind: str, header: bytes, body: bytes) -> None:
        """Note an event that is in the recording already, its body packed."""
        self._said[(rank, kind)] = (header, body)

    def take(self) -> Taken:
        """Return what was added, and begin anew."""
        taken, self._taken = self._taken, Taken()
        return taken

    def put_back(self, taken: Taken, whole: bool) -> int:
        """Take back what could not be written, the samples only if ``whole``; returns how many messages are lost."""
        mine = self._taken
        mine.lives[:0] = taken.lives
        mine.events[:0] = taken.events
        lost = 0 if whole else len(taken.samples)
        if whole:
            mine.samples[:0] = taken.samples
            mine.points[:0] = taken.points
        size = sum(len(event[-1]) + 100 for event in mine.events)
        while size > PUT_BACK_BYTES:
            size -= len(mine.events.pop(0)[-1]) + 100
            lost += 1
        return lost

    def _translated(self, header: Header, item: Item) -> Item:
        """Return the item in the recording's numbers and on its clock, the times in its body too."""
        if not self.shift and not self.base:
            return item
        body = item.body
        if self.shift and header.kind in ("history", "nodes"):
            told = decode_body(header, body)
            replace = msgspec.structs.replace
            if isinstance(told, History):
                moved = tuple(replace(point, t=point.t + self.shift) for point in told.points)
                body = encode_body(replace(told, points=moved))
            elif isinstance(told, Nodes):
                links = tuple(replace(link, since=link.since + self.shift) for link in told.nodes)
                body = encode_body(replace(told, nodes=links))
        return Item(self.base + item.number, item.t + self.shift, item.header, body)

    def _take_points(self, header: Header, item: Item) -> None:
        told = decode_body(header, item.body)
        if isinstance(told, History) and told.points:
            self._taken.points.append(Points(told.rank, told.points))

    def _take_event(self, header: Header, item: Item) -> None:
        kind = header.kind
        if kind == "mark" and header.rank >= 0:
            mark = decode_body(header, item.body)
            kind = mark.what if isinstance(mark, Mark) and mark.what in ("life", "process") else kind
        self._note_life(header, item)
        said = (item.header, pack_body(item.body))
        if self._said.get((header.rank, kind)) == said:
            return  # said again, to a hub that has replaced another
        self._said[(header.rank, kind)] = said
        if header.rank >= 0:
            self._keep_passed(header.rank)
        if kind == "card":
            self.simulated = self.simulated or _tell(item.body).simulated
        self._taken.events.append((item.number, item.t, kind, header.rank, *said))

    def _take_sample(self, header: Header, item: Item) -> None:
        life = (header.rank, header.pid, header.restart)
        if self.spoken and header.seq <= self.spoken.get(life, -1):
            return
        self._note_life(header, item)
        key = (header.rank, header.kind)
        late = item.t < self._kept.get(key, _LONG_AGO)
        # What comes late, of a node that could not be reached, is kept whole.
        if not late and item.t < self._due.get(key, _LONG_AGO) - self._burst:
            self._passed[key] = item
        else:
            self._keep(key, item)

    def _note_life(self, header: Header, item: Item) -> None:
        life = (header.rank, header.pid, header.restart)
        if header.rank >= 0 and life not in self.lives:
            self.lives.add(life)
            self._taken.lives.append((item.number, *life, item.t))

    def _keep(self, key: tuple[int, str], item: Item) -> None:
        if item.t >= self._kept.get(key, _LONG_AGO):
            self._kept[key] = item.t
            self._due[key] = max(item.t, self._due.get(key, _LONG_AGO)) + self.spacing
        self._passed.pop(key, None)
        self._taken.samples.append(item)
        if key[1] == "sample":
            self.steps = max(self.steps, min(_tell(item.body).step, LARGEST))

    def _keep_passed(self, rank: int) -> None:
        """Keep the newest messages of a rank to which something happens, also where few are kept."""
        for kind in ORDINARY:
            item = self._passed.get((rank, kind))
            if item is not None:
                self._keep((rank, kind), item)


def _tell(body: bytes) -> _Told:
    try:
        return _told.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return _Told()
