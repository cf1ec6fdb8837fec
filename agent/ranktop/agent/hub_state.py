"""What a hub knows: last messages and history of each rank, and a bounded stream for viewers to follow.

Its memory is bounded: 32 MiB of stream, in jobs of more than 1024 ranks up to 128 (32 more, at most, for what its own
node says in a job of several nodes), 64 MiB of the ranks' last samples (as much again for those of ranks that came back
after an out-of-memory), 45 MB of history, and of each rank its newest card, device, stack and box.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from ranktop.agent.hub_history import PointRing
from ranktop.agent.hub_ranks import SAMPLES_BYTES, Frozen, Rank, Shares, freeze, item_bytes
from ranktop.wire.codec import BadMessage, decode_body, decode_brief, decode_header, encode_body, encode_header
from ranktop.wire.nodes import Nodes
from ranktop.wire.points import point_of
from ranktop.wire.schema import Body, Box, Brief, Card, Device, End, Header, Item, Job, Mark, Sample, Stack

__all__ = ["HubState", "Rank", "Stream", "item_bytes", "possible"]

MAX_RANKS: Final = 65536
"""Ranks from this number on are refused: no job has them, and each costs memory."""

RING_BYTES: Final = 32 * 1024 * 1024
"""Of the stream, in a job of up to ``RING_RANKS`` ranks: what they say in 16 s. Up to four times as much for more: who
takes a snapshot of 4096 ranks, 110 MB, has to find what was said meanwhile, or would begin again for ever."""
RING_RANKS: Final = 1024
RING_ITEMS: Final = 100_000

MAX_LEFT: Final = 64 * 1024
"""Bytes of a stack or a box; they are kept for as long as the hub lives."""

_FROM_AGENTS: Final = ("card", "sample", "device", "stack", "box", "end")
_MARKS: Final = 32
_FORMER: Final = 16


def check(header: Header, body: bytes) -> None:
    """Raise BadMessage for what no agent says."""
    if header.kind not in _FROM_AGENTS:
        raise BadMessage(f"agents send no {header.kind!r}")
    if not 0 <= header.rank < MAX_RANKS:
        raise BadMessage(f"rank {header.rank} is out of range")
    if not possible(header):
        raise BadMessage("a number in the header is out of range")
    if header.kind in ("stack", "box") and len(body) > MAX_LEFT:
        raise BadMessage(f"a {header.kind} of {len(body)} bytes is too large (at most {MAX_LEFT})")


def _may_follow(known: Rank, header: Header, t: float, way: int | None) -> bool:
    """Tell whether a message at ``t`` that names another life of a rank may begin it."""
    if way == known.way:
        return header.restart >= known.restart
    # Ranks may move between nodes, but this node's word counts more than another's, and no two have the same rank.
    if way is None:
        return True
    if known.end is not None:
        return t > known.end.t
    return known.way is not None and known.silent(t)


def _ring_bytes(job: Job) -> int:
    return RING_BYTES * min(max(job.world_size, RING_RANKS), 4 * RING_RANKS) // RING_RANKS


def possible(header: Header) -> bool:
    """Tell whether the numbers by which a header names a process can be."""
    return 0 <= header.pid < 2**31 and 0 <= header.restart < 2**31 and 0 <= header.seq < 2**62


@dataclass(slots=True)
class Stream:
    """The newest items, numbered without gaps, bounded in number and in bytes."""

    max_bytes: int = RING_BYTES
    max_items: int = RING_ITEMS
    last: int = -1
    _items: deque[Item] = field(default_factory=deque)
    _bytes: int = 0
    tap: Callable[[Item], None] | None = None
    """Is given every item, to record it."""

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
        if self.tap is not None:
            self.tap(item)
        self._items.append(item)
        self._bytes += item_bytes(item)
        while len(self._items) > self.max_items or (self._bytes > self.max_bytes and len(self._items) > 1):
            self._bytes -= item_bytes(self._items.popleft())
        return item

    def copy(self) -> Stream:
        """Return another stream that holds the same so far."""
        return Stream(self.max_bytes, self.max_items, self.last, deque(self._items), self._bytes)

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


class HubState:
    """Everything a hub holds. No sockets, no clock: times are the caller's."""

    def __init__(self, job: Job, hub: str, started: float) -> None:
        self.job = job
        self.local_id = job.id
        """By which this node's agents know the job; ``job.id`` is another one once other nodes are known."""
        self.hub = hub
        self.started = started
        self.stream = Stream(_ring_bytes(job))
        self.own: Stream | None = None
        """The part of the stream that comes from this node; None while all of it does (:meth:`part`)."""
        self.ranks: dict[int, Rank] = {}
        self.moves = 0
        """How often a rank was first heard of, or heard of by way of another node than before."""
        self.refused = 0
        self.turned_away = 0
        """Of those refused: connections. No message was lost with them, and viewers are not told that one was."""
        self._restart = 0
        self._marks: deque[tuple[bool, Item]] = deque(maxlen=_MARKS)
        """With whether they are this hub's own."""
        self._nodes: Item | None = None
        self._mark_seq = 0

    def accept(self, t: float, head: bytes, body: bytes) -> Header:
        """Take a message from an agent; WireError when it cannot be used, and nothing has changed then."""
        header = decode_header(head)
        check(header, body)
        message = self.read_body(header, body, t)
        if isinstance(message, Card):
            if message.job.id != self.local_id:
                raise BadMessage("a card of another job")
            message, body = self.as_of_this_job(message, body)
        rank = self.life(header, t)
        if rank is not None:
            rank.seq = max(rank.seq, header.seq)
            if isinstance(message, Card):
                self._take_job(message)
            self.keep(rank, message, t, head, body)
        elif isinstance(message, (Box, End)):
            self.keep_late(header, message, t, head, body)
        return header

    def read_body(self, header: Header, body: bytes, t: float) -> Body | Brief:
        """Read a message as far as it is needed here: little of a sample whose point would not be kept."""
        if header.kind == "sample":
            known = self.ranks.get(header.rank)
            if known is not None and not known.history.due(t):
                return decode_brief(header, body)
        return decode_body(header, body)

    def _take_job(self, card: Card) -> None:
        """Take what a card says of the job. A rank that starts its peers itself begins as the only one; only a restart
        makes a job smaller."""
        size = card.job.world_size
        if card.restart <= self._restart:
            size = max(size, self.job.world_size)
        self._restart = max(self._restart, card.restart)
        self.job = replace(card.job, world_size=size)
        self.stream.max_bytes = max(self.stream.max_bytes, _ring_bytes(self.job))

    def as_of_this_job(self, card: Card, body: bytes) -> tuple[Card, bytes]:
        """Return a card, and its bytes, as one of this job: the hub of another node has another id for it."""
        if card.job.id == self.job.id:
            return card, body
        card = replace(card, job=replace(card.job, id=self.job.id))
        return card, encode_body(card)

    def rename(self, job_id: str) -> None:
        """Have the job go by another id from now on, on the cards too."""
        if job_id == self.job.id:
            return
        self.job = replace(self.job, id=job_id)
        for number, rank in self.ranks.items():
            if rank.card is not None:
                card = decode_body(Header("card", number, 0, 0, 0), rank.card.body)
                if isinstance(card, Card):
                    rank.card = replace(rank.card, body=self.as_of_this_job(card, rank.card.body)[1])

    def part(self) -> None:
        """Keep what this node's ranks say in a stream of its own too, from now on."""
        if self.own is None:
            self.own = self.stream.copy()
            self.own.max_bytes = RING_BYTES

    def add(self, t: float, head: bytes, body: bytes, *, own: bool = True) -> Item:
        """Put a message into the stream. ``own``: it comes from this node."""
        if own and self.own is not None:
            self.own.add(t, head, body)
        return self.stream.add(t, head, body)

    def life(self, header: Header, t: float, way: int | None = None) -> Rank | None:
        """Return the rank in the life that the header names; None when a newer life has replaced it.

        ``way``: by which other node's hub it is heard of; None for this node's own, which always comes first.
        """
        life = (header.restart, header.pid, way)
        known = self.ranks.get(header.rank)
        if known is None:
            rank = Rank(header.pid, header.restart, PointRing(self.job.world_size), t, way=way)
        elif known.life == life:
            return known
        elif life in known.former or not _may_follow(known, header, t, way):
            return None
        else:
            # torchrun does not count a restart when nodes join or leave, so a new process is a new life as well.
            rank = known.succeeded(header, t, (*known.former, known.life)[-_FORMER:], way)
        if known is None or known.way != way:
            self.moves += 1
        self.ranks[header.rank] = rank
        return rank

    def keep(self, rank: Rank, message: Body | Brief, t: float, head: bytes, body: bytes) -> None:
        """Keep a message of a rank's present life."""
        if isinstance(message, (Sample, Brief)):
            self._keep_sample(rank, message, self.add(t, head, body, own=rank.way is None))
            return
        first = (isinstance(message, End) and rank.end is None) or (isinstance(message, Box) and rank.box is None)
        if isinstance(message, (Box, End)) and not first:
            return  # the first account stays
        item = self.add(t, head, body, own=rank.way is None)
        if isinstance(message, Card):
            rank.card, rank.heard = item, t
        elif isinstance(message, Device):
            rank.device = item
        elif isinstance(message, Stack):
            if message.step >= rank.step:
                rank.stack, rank.stack_step = item, message.step
        elif isinstance(message, Box):
            rank.box, rank.fallen = item, None
            if rank.before is not None and rank.before.box is not None:
                rank.before.drop_box()
        else:
            rank.end = item

    def _keep_sample(self, rank: Rank, sample: Sample | Brief, item: Item) -> None:
        rank.samples.add(item, SAMPLES_BYTES // max(1, self.job.world_size, len(self.ranks)))
        if isinstance(sample, Sample) and rank.history.due(item.t):
            rank.history.add(point_of(sample, item.t))
        rank.heard, rank.interval, rank.step = item.t, sample.interval, sample.step
        rank.process, rank.process_word = None, ""
        if rank.stack is not None and sample.step > rank.stack_step:
            rank.stack = None

    def keep_late(
        self, header: Header, message: Box | End, t: float, head: bytes, body: bytes, way: int | None = None
    ) -> None:
        """Keep the last words of the life before the present one, should they come only now."""
        known = self.ranks.get(header.rank)
        before = known.before if known is not None else None
        if before is None or before.life != (header.restart, header.pid, way):
            return
        if isinstance(message, End) and before.end is None:
            before.end = self.add(t, head, body, own=way is None)
        elif isinstance(message, Box) and before.box is None and known is not None and known.box is None:
            before.box, known.fallen = self.add(t, head, body, own=way is None), None

    def wants_card(self, header: Header) -> bool:
        """Tell whether the sender of a message should send its card again."""
        rank = self.ranks.get(header.rank)
        current = rank is not None and (rank.restart, rank.pid) == (header.restart, header.pid)
        return current and rank is not None and rank.card is None

    def mark(self, t: float, what: str, detail: str, *, own: bool = True) -> None:
        """Put an event of the stream itself into the stream. ``own``: of this hub's, not another's."""
        header = Header("mark", -1, 0, 0, self._mark_seq)
        self._mark_seq += 1
        body = encode_body(Mark(what=what, detail=detail))
        self._marks.append((own, self.add(t, encode_header(header), body, own=own)))

    def tell_nodes(self, t: float, nodes: Nodes) -> None:
        """Tell what can be seen of the job's nodes; viewers only, no other hub."""
        header = Header("nodes", -1, 0, 0, self._mark_seq)
        self._mark_seq += 1
        self._nodes = self.add(t, encode_header(header), encode_body(nodes), own=False)

    def end_process(self, t: float, pid: int, how: str, code: int | None, detail: str) -> None:
        """Record the end of a process of this node for the ranks in it that have not told of their end themselves."""
        for number, present in self.ranks.items():
            # The next life may be quicker than the news of how the one before ended.
            for rank in (present, present.before):
                if rank is None or rank.pid != pid or rank.end is not None or rank.way is not None:
                    continue
                rank.seq += 1
                header = Header("end", number, pid, rank.restart, rank.seq)
                body = End(rank=number, how=how, code=code, detail=detail)
                rank.end = self.add(t, encode_header(header), encode_body(body))

    def silent(self, now: float) -> list[int]:
        """Return the ranks of this node that have not ended and whose samples are overdue."""
        return [number for number, rank in self.ranks.items() if rank.way is None and rank.silent(now)]

    def note_process(self, t: float, number: int, word: str) -> None:
        """Tell what a silent rank's process does, when that is news."""
        rank = self.ranks[number]
        if word == rank.process_word:
            return
        rank.process_word = word
        header = Header("mark", number, rank.pid, rank.restart, max(0, rank.seq))
        body = encode_body(Mark(what="process", detail=word))
        rank.process = self.add(t, encode_header(header), body, own=rank.way is None)

    def snapshot(self, *, own: bool = False) -> Iterator[Item]:
        """Return all that is known now (``own``: of this node) in order: marks, then of each rank what follows.

        Of former lives: the samples before an out-of-memory and the box, the end, a mark that the present life began.
        Then card, history, device, the last samples, stack, box, process mark, end. Later messages do not show in it,
        however slowly it is consumed; they follow in the stream.
        """
        ranks = sorted((n, rank) for n, rank in self.ranks.items() if rank.way is None or not own)
        lives = (life for _, rank in ranks for life in (rank, rank.before, rank.fallen))
        # For another hub, which has the rest of the job's ranks to tell of too: no more of each than it can pass on.
        shares = Shares.of(
            max(len(ranks), self.job.world_size) if own else len(ranks),
            sum(life is not None and life.box is not None for life in lives),
        )
        frozen = [freeze(number, rank, shares, self.stream.last) for number, rank in ranks]
        marks = [item for ours, item in self._marks if ours or not own]
        if self._nodes is not None and not own:
            marks.append(self._nodes)
        return self._unfold(marks, frozen)

    @staticmethod
    def _unfold(marks: list[Item], ranks: list[Frozen]) -> Iterator[Item]:
        yield from marks
        for rank in ranks:
            yield from rank.items()
