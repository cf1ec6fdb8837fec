"""What a hub knows: last messages and history of each rank, and a bounded stream for viewers to follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ranktop.agent.hub_history import PointRing
from ranktop.wire.codec import BadMessage, decode_body, decode_header, encode_body, encode_header
from ranktop.wire.points import point_of
from ranktop.wire.schema import Body, Card, Device, End, Header, History, Item, Job, Mark, Sample

MAX_RANKS: Final = 65536
"""Ranks from this number on are refused: no job has them, and each costs memory."""

RING_BYTES: Final = 32 * 1024 * 1024
RING_ITEMS: Final = 100_000

_ITEM_OVERHEAD: Final = 200
_MARKS: Final = 32
_FORMER: Final = 16


@dataclass(slots=True)
class Rank:
    """One rank in its present life."""

    pid: int
    restart: int
    history: PointRing
    seq: int = -1
    card: Item | None = None
    sample: Item | None = None
    end: Item | None = None
    device: Item | None = None
    former: tuple[tuple[int, int], ...] = ()
    """(restart, pid) of lives that this one has replaced; what they still had under way is ignored."""


_Frozen = tuple[int, int, int, PointRing, tuple[Item | None, ...]]
"""(number, pid, restart, history, last messages) of a rank, as a snapshot began."""


@dataclass(slots=True)
class Stream:
    """The newest items, numbered without gaps, bounded in number and in bytes."""

    max_bytes: int = RING_BYTES
    max_items: int = RING_ITEMS
    last: int = -1
    _items: deque[Item] = field(default_factory=deque)
    _bytes: int = 0

    @property
    def first(self) -> int:
        """Number of the oldest item that is still held; ``last + 1`` when there is none."""
        return self.last + 1 - len(self._items)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the items take, roughly."""
        return self._bytes

    def add(self, t: float, header: bytes, body: bytes) -> Item:
        """Append a message and return it as an item."""
        self.last += 1
        item = Item(self.last, t, header, body)
        self._items.append(item)
        self._bytes += item_bytes(item)
        while len(self._items) > self.max_items or (self._bytes > self.max_bytes and len(self._items) > 1):
            self._bytes -= item_bytes(self._items.popleft())
        return item

    def after(self, number: int, limit: int) -> list[Item]:
        """Return the items after ``number``, oldest first, up to about ``limit`` bytes and at least one."""
        count = min(self.last - number, len(self._items))
        if count <= 0:
            return []
        newest_first = []
        for item in reversed(self._items):
            if item.number <= number:
                break
            newest_first.append(item)
        taken: list[Item] = []
        size = 0
        for item in reversed(newest_first):
            taken.append(item)
            size += item_bytes(item)
            if size >= limit:
                break
        return taken


def item_bytes(item: Item) -> int:
    """Bytes that an item costs in memory and, roughly, on the wire."""
    return len(item.header) + len(item.body) + _ITEM_OVERHEAD


class HubState:
    """Everything a hub holds. No sockets, no clock: times are the caller's."""

    def __init__(self, job: Job, hub: str, started: float) -> None:
        self.job = job
        self.hub = hub
        self.started = started
        self.stream = Stream()
        self.ranks: dict[int, Rank] = {}
        self.refused = 0
        self._marks: deque[Item] = deque(maxlen=_MARKS)
        self._mark_seq = 0

    def accept(self, t: float, head: bytes, body: bytes) -> Header:
        """Take a message from an agent; WireError when it cannot be used, and nothing has changed then."""
        header = decode_header(head)
        if header.kind not in ("card", "sample", "device", "end"):
            raise BadMessage(f"agents send no {header.kind!r}")
        if not 0 <= header.rank < MAX_RANKS:
            raise BadMessage(f"rank {header.rank} is out of range")
        if not (0 <= header.pid < 2**31 and 0 <= header.restart < 2**31 and 0 <= header.seq < 2**62):
            raise BadMessage("a number in the header is out of range")
        message = decode_body(header, body)
        if isinstance(message, Card) and message.job.id != self.job.id:
            raise BadMessage("a card of another job")
        rank = self._life(header)
        if rank is not None:
            rank.seq = max(rank.seq, header.seq)
            self._keep(rank, message, t, head, body)
        return header

    def _life(self, header: Header) -> Rank | None:
        """Return the rank in the life that the header names; None when a newer life has replaced it."""
        life = (header.restart, header.pid)
        known = self.ranks.get(header.rank)
        if known is None:
            rank = Rank(header.pid, header.restart, PointRing(self.job.world_size))
        elif (known.restart, known.pid) == life:
            return known
        elif header.restart < known.restart or life in known.former:
            return None
        else:
            # torchrun does not count a restart when nodes join or leave, so a new process is a new life as well.
            former = (*known.former, (known.restart, known.pid))[-_FORMER:]
            rank = Rank(header.pid, header.restart, known.history, former=former)
        self.ranks[header.rank] = rank
        return rank

    def _keep(self, rank: Rank, message: Body, t: float, head: bytes, body: bytes) -> None:
        if isinstance(message, End) and rank.end is not None:
            return  # the first account of an end stays
        item = self.stream.add(t, head, body)
        if isinstance(message, Card):
            rank.card = item
            self.job = message.job
        elif isinstance(message, Sample):
            rank.sample = item
            rank.history.add(point_of(message, t))
        elif isinstance(message, Device):
            rank.device = item
        else:
            rank.end = item

    def wants_card(self, header: Header) -> bool:
        """Tell whether the sender of a message should send its card again."""
        rank = self.ranks.get(header.rank)
        current = rank is not None and (rank.restart, rank.pid) == (header.restart, header.pid)
        return current and rank is not None and rank.card is None

    def mark(self, t: float, what: str, detail: str) -> None:
        """Put an event of the stream itself into the stream."""
        header = Header("mark", -1, 0, 0, self._mark_seq)
        self._mark_seq += 1
        body = encode_body(Mark(what=what, detail=detail))
        self._marks.append(self.stream.add(t, encode_header(header), body))

    def end_process(self, t: float, pid: int, how: str, code: int | None, detail: str) -> None:
        """Record the end of a process for the ranks in it that have not told of their end themselves."""
        for number, rank in self.ranks.items():
            if rank.pid != pid or rank.end is not None:
                continue
            rank.seq += 1
            header = Header("end", number, pid, rank.restart, rank.seq)
            body = End(rank=number, how=how, code=code, detail=detail)
            rank.end = self.stream.add(t, encode_header(header), encode_body(body))

    def snapshot(self) -> Iterator[Item]:
        """Return all that is known now, in order: marks, then per rank card, history, device, last sample, end.

        Later messages do not show in it, however slowly it is consumed; they follow in the stream.
        """
        frozen: list[_Frozen] = [
            (number, rank.pid, rank.restart, rank.history, (rank.card, rank.device, rank.sample, rank.end))
            for number, rank in sorted(self.ranks.items())
        ]
        return self._unfold(list(self._marks), frozen)

    @staticmethod
    def _unfold(
        marks: list[Item],
        ranks: list[_Frozen],
    ) -> Iterator[Item]:
        yield from marks
        for number, pid, restart, history, (card, device, sample, end) in ranks:
            if card is not None:
                yield card
            # A new life that has not sent a sample yet still has the history of the one before it.
            newest = sample or card or end
            points = history.points(newest.t) if newest is not None else ()
            if newest is not None and points:
                header = encode_header(Header("history", number, pid, restart, 0))
                body = encode_body(History(rank=number, points=points))
                yield Item(newest.number, points[-1].t, header, body)
            yield from (item for item in (device, sample, end) if item is not None)
