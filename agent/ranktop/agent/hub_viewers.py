"""Answers viewers: each may have one question open, and gets one batch for it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

import zmq

from ranktop.agent.hub_state import HubState, Stream, item_bytes
from ranktop.wire.codec import BATCH_BYTES, WireError, WrongVersion, decode_ask, encode_batch
from ranktop.wire.schema import Ask, Batch, Item

MAX_WAIT: Final = 30.0
"""Seconds; a viewer cannot make the hub hold a question for longer."""

FORGET_AFTER: Final = 60.0
"""Seconds without a question after which an unfinished snapshot is dropped."""

MAX_VIEWERS: Final = 256

_AT_ONCE: Final = 512
"""Questions read from one socket before another gets its turn."""

# As plain numbers: two flags of an enum are put together anew with every message.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_NOBLOCK_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


@dataclass(slots=True)
class _Viewer:
    asked_at: float = 0.0
    open: Ask | None = None
    deadline: float = 0.0
    snapshot: Iterator[Item] | None = None
    """What is left of a snapshot that did not fit into one batch."""
    snapshot_last: int = -1
    """Number to go on from after the snapshot."""


class Viewers:
    """The viewers of a hub, by their address on its socket. They can only ask."""

    def __init__(self, state: HubState, *, own: bool = False, most: int = BATCH_BYTES) -> None:
        """``own``: they are told of the hub's own node only; ``most``: bytes at which a batch ends."""
        self._state = state
        self._own = own
        self._most = most
        self._viewers: dict[bytes, _Viewer] = {}
        self.asked_at = -math.inf
        """When any of them last asked."""

    def __len__(self) -> int:
        return len(self._viewers)

    def ask(self, address: bytes, ask: Ask, now: float) -> None:
        """Note a question; it replaces one of the same viewer that is still open."""
        viewer = self._viewers.get(address)
        if viewer is None:
            if len(self._viewers) >= MAX_VIEWERS:
                del self._viewers[min(self._viewers, key=lambda known: self._viewers[known].asked_at)]
            viewer = self._viewers[address] = _Viewer()
        viewer.asked_at = self.asked_at = now
        viewer.open = ask
        viewer.deadline = now + min(max(ask.wait, 0.0), MAX_WAIT)

    def answers(self, now: float) -> list[tuple[bytes, Batch]]:
        """Return the batches that are due: something is new, or the question has waited long enough."""
        due = []
        for address, viewer in list(self._viewers.items()):
            if viewer.open is not None:
                batch = self._answer(viewer, viewer.open, now)
                if batch is not None:
                    viewer.open = None
                    due.append((address, batch))
            idle_for = now - viewer.asked_at
            if viewer.open is None and (viewer.snapshot is None or idle_for > FORGET_AFTER):
                del self._viewers[address]
        return due

    def deadline(self) -> float | None:
        """Return when the next open question has waited long enough; None without one."""
        return min((v.deadline for v in self._viewers.values() if v.open is not None), default=None)

    @property
    def _stream(self) -> Stream:
        own = self._state.own if self._own else None
        return own if own is not None else self._state.stream

    def _answer(self, viewer: _Viewer, ask: Ask, now: float) -> Batch | None:
        state, stream = self._state, self._stream
        continues = ask.hub == state.hub and ask.since < 0 and viewer.snapshot is not None
        follows = ask.hub == state.hub and stream.first - 1 <= ask.since <= stream.last
        if continues or not follows:
            return self._snapshot(viewer, ask, now, begins=not continues)
        viewer.snapshot = None
        items = stream.after(ask.since, self._most)
        if not items and now < viewer.deadline:
            return None
        return self._batch(now, items, last=items[-1].number if items else ask.since)

    def _snapshot(self, viewer: _Viewer, ask: Ask, now: float, *, begins: bool) -> Batch:
        state, stream = self._state, self._stream
        lost = 0
        if begins:
            viewer.snapshot = state.snapshot(own=self._own)
            viewer.snapshot_last = stream.last
            if ask.hub == state.hub and ask.since >= 0:
                lost = max(0, stream.first - 1 - ask.since)
        items, viewer.snapshot = _take(viewer.snapshot or iter(()), self._most)
        last = viewer.snapshot_last if viewer.snapshot is None else -1
        return self._batch(now, items, last=last, snapshot=begins, lost=lost)

    def _batch(self, now: float, items: list[Item], *, last: int, snapshot: bool = False, lost: int = 0) -> Batch:
        state = self._state
        return Batch(
            hub=state.hub,
            job=state.job,
            now=now,
            snapshot=snapshot,
            last=last,
            items=tuple(items),
            lost=lost,
            refused=state.refused - state.turned_away,
            started=state.started,
        )


def _take(source: Iterator[Item], most: int) -> tuple[list[Item], Iterator[Item] | None]:
    """Take about ``most`` bytes of items; return them and the rest, None when nothing is left."""
    items: list[Item] = []
    size = 0
    for item in source:
        if items and size + item_bytes(item) > most:
            return items, chain([item], source)
        items.append(item)
        size += item_bytes(item)
    return items, None


def read_asks(router: zmq.Socket[bytes], viewers: Viewers, state: HubState, now: float) -> None:
    """Take the questions that have come to a ROUTER; what is none is counted."""
    for _ in range(_AT_ONCE):
        message = receive(router)
        if message is None:
            break
        address, *frames = message
        try:
            if len(frames) != 1:
                raise WireError("not one frame")
            viewers.ask(address, decode_ask(frames[0]), now)
        except WrongVersion:
            # The prefix of any answer tells the viewer which side is older.
            state.refused += 1
            send(router, address, encode_batch(Batch(hub=state.hub, job=state.job, now=now, snapshot=False, last=-1)))
        except WireError:
            state.refused += 1


def send_answers(router: zmq.Socket[bytes], viewers: Viewers, now: float) -> None:
    """Send the batches that are due."""
    for address, batch in viewers.answers(now):
        send(router, address, encode_batch(batch))


def receive(router: zmq.Socket[bytes]) -> list[bytes] | None:
    """Return the frames of the next message, the sender's address first; None when there is none.

    As ``recv_multipart``, in two thirds of its time: a frame knows whether another one follows.
    """
    try:
        frame = router.recv(_NOBLOCK, copy=False)
    except zmq.Again:
        return None
    frames = [frame.bytes]
    while frame.more:
        frame = router.recv(_NOBLOCK, copy=False)
        frames.append(frame.bytes)
    return frames


def send(router: zmq.Socket[bytes], address: bytes, data: bytes) -> None:
    """Send without waiting: a ROUTER drops what a full or vanished peer does not take."""
    with contextlib.suppress(zmq.ZMQError):
        router.send(address, _NOBLOCK_MORE)
        router.send(data, _NOBLOCK)
