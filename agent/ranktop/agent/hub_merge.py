"""Puts what another node's hub tells among what this hub knows: on this hub's clock, once, in order."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from ranktop.agent.hub_state import MAX_RANKS, HubState, Rank, check, possible
from ranktop.wire.codec import BadMessage, WireError, clean, decode_body, decode_header, encode_body, encode_header
from ranktop.wire.schema import Body, Box, Brief, Card, Device, End, Header, History, Item, Mark, Sample, Stack

_FROM_HUBS: Final = ("history", "mark", "nodes")
_MARKS: Final = 64
_DETAIL: Final = 300
_LOGGED: Final = 4


class Merge:
    """The way from one other node's hub into the state of this one."""

    def __init__(self, state: HubState, way: int, name: Callable[[], str], log: Callable[[str], None]) -> None:
        """``way``: number of that node's link here; ``name``: what the node is called in words."""
        self.way = way
        self._state = state
        self._name = name
        self._log = log
        self._failures = 0
        self._marks: dict[tuple[str, int], None] = {}

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that are heard of by this way."""
        return tuple(sorted(number for number, rank in self._state.ranks.items() if rank.way == self.way))

    def take(self, item: Item, hub: str, shift: float, now: float) -> None:
        """Take one item of the hub ``hub``, whose clock is ``shift`` seconds behind; what cannot be used is counted."""
        try:
            self._take(item, hub, shift, now)
        except WireError:
            self._state.refused += 1
        except Exception:
            # One message with values that nobody thought of must not cost the others.
            self._state.refused += 1
            self._failures += 1
            if self._failures <= _LOGGED:
                self._log(f"a message by way of {self._name()}: {traceback.format_exc()}")

    def _take(self, item: Item, hub: str, shift: float, now: float) -> None:
        header = decode_header(item.header)
        # Nothing can have happened later than now: the clocks' difference is known to some milliseconds only.
        t = min(item.t + shift, now)
        if header.kind in _FROM_HUBS:
            self._take_of_hub(header, item, hub, shift, now)
            return
        check(header, item.body)
        body = item.body
        message = self._state.read_body(header, body, t)
        if isinstance(message, Card):
            message, body = self._state.as_of_this_job(message, body)
        rank = self._state.life(header, t, self.way)
        if rank is not None and not _repeats(rank, header, message):
            rank.seq = max(rank.seq, header.seq)
            if isinstance(message, (Sample, Brief)):
                rank.sample_seq = header.seq
            self._state.keep(rank, message, t, item.header, body)
        elif rank is None and isinstance(message, (Box, End)):
            self._state.keep_late(header, message, t, item.header, body, self.way)

    def _take_of_hub(self, header: Header, item: Item, hub: str, shift: float, now: float) -> None:
        body = decode_body(header, item.body)
        t = min(item.t + shift, now)
        if isinstance(body, Mark) and header.rank < 0:
            self._pass_mark(header, body, hub, t)
        elif not 0 <= header.rank < MAX_RANKS or not possible(header):
            if header.kind != "nodes":
                raise BadMessage(f"rank {header.rank} is out of range")
        elif isinstance(body, Mark):
            self._take_mark(header, body, t, item)
        elif isinstance(body, History):
            self._take_history(header, body, shift, now)

    def _pass_mark(self, header: Header, mark: Mark, hub: str, t: float) -> None:
        """Tell what happened to the other hub's stream, once."""
        key = (hub, header.seq)
        if key in self._marks:
            return
        self._marks[key] = None
        while len(self._marks) > _MARKS:
            del self._marks[next(iter(self._marks))]
        detail = f"{self._name()}: {clean(mark.detail)}"[:_DETAIL]
        self._state.mark(t, clean(mark.what)[:40], detail, own=False)

    def _take_mark(self, header: Header, mark: Mark, t: float, item: Item) -> None:
        state = self._state
        before = state.ranks.get(header.rank)
        if mark.what == "life":
            rank = state.life(header, t, self.way)
            if rank is not None and rank is not before:
                state.add(t, item.header, item.body, own=False)
            return
        life = (header.restart, header.pid, self.way)
        if mark.what == "process" and before is not None and before.end is None and before.life == life:
            state.note_process(t, header.rank, clean(mark.detail)[:40])

    def _take_history(self, header: Header, history: History, shift: float, now: float) -> None:
        """Put the points that are missing here between those that are there, and tell viewers of them."""
        rank = self._state.ranks.get(header.rank)
        if rank is None:
            rank = self._state.life(header, min(history.points[-1].t + shift, now) if history.points else now, self.way)
        if rank is None or rank.way != self.way:
            return
        shifted = sorted((replace(point, t=point.t + shift) for point in history.points), key=lambda point: point.t)
        missing = rank.history.merge([point for point in shifted if point.t <= now])
        if missing:
            head = encode_header(Header("history", header.rank, rank.pid, rank.restart, 0))
            body = encode_body(History(rank=header.rank, points=tuple(missing)))
            self._state.add(missing[-1].t, head, body, own=False)


def _repeats(rank: Rank, header: Header, message: Body | Brief) -> bool:
    """Tell whether a message is known already: a snapshot tells again what came before it."""
    if isinstance(message, (Sample, Brief)):
        return header.seq <= rank.sample_seq
    kept = {Card: rank.card, Device: rank.device, Stack: rank.stack}.get(type(message))
    return kept is not None and header.seq <= decode_header(kept.header).seq
