"""What a hub keeps of one rank: its present life, how the one before ended, and what was left by one out of memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from ranktop.agent.hub_history import PointRing
from ranktop.wire.codec import encode_body, encode_header
from ranktop.wire.schema import Header, History, Item, Mark

SAMPLES_KEPT: Final = 120
"""Of one life: two minutes at the usual interval."""

SAMPLES_BYTES: Final = 64 * 1024 * 1024
"""Of all ranks' samples together, shared evenly; as much again when every rank came back after an out-of-memory."""

SAMPLES_SHOWN: Final = 40
"""In a snapshot, of a rank that left no box."""

SHOWN_BYTES: Final = 8 * 1024 * 1024
"""Of a snapshot's samples, shared evenly."""

BOXES_BYTES: Final = 16 * 1024 * 1024
"""Of a snapshot's samples before the boxes, shared by the ranks that left one."""

SILENT_INTERVALS: Final = 3
"""Intervals without a sample after which a rank is silent."""

ITEM_OVERHEAD: Final = 200
"""Bytes that an item takes beyond its header and its body, roughly."""


Life = tuple[int, int, int | None]
"""Restart, pid, and by way of which other node's hub it is heard of: two nodes may have the same process ids."""


def item_bytes(item: Item) -> int:
    """Bytes that an item costs in memory and, roughly, on the wire."""
    return len(item.header) + len(item.body) + ITEM_OVERHEAD


class Samples:
    """The last samples of one life, as they came; bounded in number and in bytes, at least one."""

    __slots__ = ("_bytes", "_items")

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item, room: int) -> None:
        """Append the newest; the oldest go that are beyond ``room`` bytes."""
        items = self._items
        items.append(item)
        self._bytes += item_bytes(item)
        while len(items) > SAMPLES_KEPT or (self._bytes > room and len(items) > 1):
            self._bytes -= item_bytes(items.popleft())

    def newest(self, count: int, room: int) -> tuple[Item, ...]:
        """Return at most ``count`` of the newest within ``room`` bytes, at least one, oldest first."""
        taken: list[Item] = []
        for item in reversed(self._items):
            room -= item_bytes(item)
            if len(taken) == count or (taken and room < 0):
                break
            taken.append(item)
        return tuple(reversed(taken))


@dataclass(slots=True)
class Rank:
    """One rank in one life."""

    pid: int
    restart: int
    history: PointRing
    """Of all its lives."""
    began: float = 0.0
    """When the first message of this life arrived."""
    seq: int = -1
    card: Item | None = None
    samples: Samples = field(default_factory=Samples)
    heard: float | None = None
    """When the last card or sample arrived."""
    interval: float = 1.0
    """Seconds that the last sample promises to the next."""
    step: int = 0
    end: Item | None = None
    device: Item | None = None
    stack: Item | None = None
    """Dropped with the first sample of a later step."""
    stack_step: int = 0
    box: Item | None = None
    process: Item | None = None
    """The last mark of that kind; dropped with the next sample."""
    process_word: str = ""
    former: tuple[Life, ...] = ()
    """Lives that this one has replaced; what they still had under way is ignored."""
    before: Rank | None = None
    """The life before this one, for its end; with its box and samples when it left a box."""
    fallen: Rank | None = None
    """An earlier one than ``before``, the last that left a box; none once a later life leaves its own."""
    way: int | None = None
    """By way of which other node's hub this life is heard of; None for this node's own."""
    sample_seq: int = -1
    """Number of the newest sample of a rank of another node."""

    @property
    def life(self) -> Life:
        """What tells this life from others of the rank."""
        return self.restart, self.pid, self.way

    def silent(self, now: float) -> bool:
        """Tell whether samples are overdue of a rank that has not ended."""
        if self.end is not None or self.heard is None:
            return False
        return now - self.heard > SILENT_INTERVALS * max(self.interval, 0.1)

    def drop_box(self) -> None:
        """Forget what this life left behind: a later one has left its own."""
        self.box, self.samples = None, Samples()

    def succeeded(self, header: Header, t: float, former: tuple[Life, ...], way: int | None = None) -> Rank:
        """Return the next life of this rank, which keeps of this one what a viewer may still ask for."""
        fallen = self.before if self.before is not None and self.before.box is not None else self.fallen
        past = replace(self, card=None, device=None, stack=None, process=None, former=(), before=None, fallen=None)
        if past.box is None:
            past.samples = Samples()
        else:
            fallen = None
        return Rank(header.pid, header.restart, self.history, t, former=former, before=past, fallen=fallen, way=way)


@dataclass(frozen=True, slots=True)
class Shares:
    """Bytes of samples for each rank of a snapshot."""

    samples: int
    before_a_box: int

    @classmethod
    def of(cls, ranks: int, boxes: int) -> Shares:
        """Share the room among so many ranks, so many of which left a box."""
        return cls(SHOWN_BYTES // max(1, ranks), BOXES_BYTES // max(1, boxes))


@dataclass(frozen=True, slots=True)
class Frozen:
    """A rank as a snapshot began: later messages do not show in it."""

    number: int
    pid: int
    restart: int
    past: tuple[Item, ...]
    """What is told of former lives, and that the present one began."""
    card: Item | None
    history: PointRing
    rest: tuple[Item, ...]

    def items(self) -> Iterator[Item]:
        """Return what is told of the rank, in the order of the snapshot."""
        yield from self.past
        if self.card is not None:
            yield self.card
        newest = self._newest()
        points = self.history.points(newest.t) if newest is not None else ()
        if newest is not None and points:
            header = encode_header(Header("history", self.number, self.pid, self.restart, 0))
            body = encode_body(History(rank=self.number, points=points))
            yield Item(newest.number, points[-1].t, header, body)
        yield from self.rest

    def _newest(self) -> Item | None:
        # A new life that has not sent a sample yet still has the history of the one before it.
        told = (*self.past, *((self.card,) if self.card is not None else ()), *self.rest)
        return max(told, key=lambda item: item.t, default=None)


def freeze(number: int, rank: Rank, shares: Shares, last: int) -> Frozen:
    """Return what a snapshot tells of a rank. ``last``: number of the newest item in the stream."""
    past: list[Item] = []
    if rank.fallen is not None:
        past += _left(rank.fallen, shares)
    if rank.before is not None:
        past += [_began(number, rank.before, last), *_left(rank.before, shares), _began(number, rank, last)]
    boxed = rank.box is not None
    samples = rank.samples.newest(
        SAMPLES_KEPT if boxed else SAMPLES_SHOWN, shares.before_a_box if boxed else shares.samples
    )
    ends = (rank.stack, rank.box, rank.process, rank.end)
    rest = [item for item in (rank.device, *samples, *ends) if item is not None]
    return Frozen(number, rank.pid, rank.restart, tuple(past), rank.card, rank.history, tuple(rest))


def _left(life: Rank, shares: Shares) -> list[Item]:
    samples = life.samples.newest(SAMPLES_KEPT, shares.before_a_box) if life.box is not None else ()
    return [*samples, *(item for item in (life.box, life.end) if item is not None)]


def _began(number: int, life: Rank, last: int) -> Item:
    header = encode_header(Header("mark", number, life.pid, life.restart, 0))
    return Item(last, life.began, header, encode_body(Mark(what="life")))
