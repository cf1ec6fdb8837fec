"""One other node's hub, followed as a viewer of it would: asked through its door, over a lost network and a new hub."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import zmq

from ranktop.agent.hub_door import BATCH, Keys
from ranktop.agent.hub_merge import Merge
from ranktop.agent.hub_state import HubState, item_bytes
from ranktop.wire.codec import MAX_BATCH, WireError, WrongVersion, clean, decode_batch, encode_ask
from ranktop.wire.nodes import Door, NodeLink
from ranktop.wire.schema import Ask, Batch

ASK_WAIT: Final = 1.0
"""Seconds a hub with nothing new holds a question; so often it is heard of at least."""

LOST_AFTER: Final = 2.0
"""Seconds that an answer may be overdue before the node counts as lost."""

_PATIENCE: Final = 2.0
"""Seconds that an answer may be overdue before the connection is made anew; doubled each time in vain, but for the
first ones: a slow network needs more, and a hub that does not know this one yet soon will."""
_MOST_PATIENCE: Final = 12.0
_QUICK_TRIES: Final = 5

_IPV4: Final = re.compile(r"[0-9.]+:[0-9]+")
_OFFSETS: Final = 64
_OTHER_VERSION: Final = 30.0
"""Seconds until a hub of another version is asked again."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Whom a link tells."""

    changed: Callable[[], None]
    """Of what a viewer should know."""
    log: Callable[[str], None]


class Gather:
    """The link to one other node's hub. Times are the caller's; nothing waits."""

    def __init__(self, way: int, door: Door, keys: Keys, state: HubState, note: Notes, now: float) -> None:
        """``way``: number of the link here."""
        self.door = door
        self.state = "unseen"
        self.since = now
        self.detail = ""
        self.missed = 0
        self.active = False
        self.socket: zmq.Socket[bytes] | None = None
        self._keys = keys
        self._hub_state = state
        self._changed = note.changed
        self.merge = Merge(state, way, lambda: f"node {self.door.node_rank} ({self.door.host})", note.log)
        self._hub = ""
        self._since = -1
        self._asked_at: float | None = None
        """When the open question was asked; None without one."""
        self._spacing = 0.0
        self._next = 0.0
        """When the next question is due, or the next connection where there is none."""
        self._answered_at: float | None = None
        self._vain = 0
        """Tries in vain since the last answer."""
        self._address = 0
        self._offsets: deque[float] = deque(maxlen=_OFFSETS)

    def link(self) -> NodeLink:
        """Return how it does, for viewers."""
        return NodeLink(
            node_rank=self.door.node_rank,
            host=self.door.host,
            state=self.state,
            since=self.since,
            ranks=self.merge.ranks(),
            missed=self.missed,
            detail=self.detail,
        )

    @property
    def _patience(self) -> float:
        return min(_PATIENCE * 2.0 ** max(0, min(self._vain, 30) - _QUICK_TRIES), _MOST_PATIENCE)

    @property
    def where(self) -> str:
        """The address that is asked, in words."""
        address = self.door.addresses[self._address % len(self.door.addresses)]
        return f"[{address}]:{self.door.port}" if ":" in address else f"{address}:{self.door.port}"

    def follow(self, door: Door, now: float) -> None:
        """Take where the node's hub is now; another door is knocked at at once."""
        moved = (door.key, door.port, door.addresses) != (self.door.key, self.door.port, self.door.addresses)
        named = (door.node_rank, door.host) != (self.door.node_rank, self.door.host)
        self.door = door
        if moved:
            self._hang_up()
            self._vain, self._address, self._next = 0, 0, now
        if moved or named:
            self._changed()

    def start(self, now: float) -> None:
        """Begin to ask."""
        if not self.active:
            self.active, self._next, self._vain = True, now, 0
            self._note(self.state if self.state == "lost" else "unseen", f"asking {self.where}", now)

    def stop(self, now: float, why: str) -> None:
        """Ask no more for now; what is known stays."""
        if self.active:
            self.active = False
            self._hang_up()
            self._note("lost" if self._answered_at is not None else "unseen", why, now)

    def fail(self, now: float, why: str) -> None:
        """Give the present connection up and try another later."""
        self._hang_up()
        self._next = now + self._patience
        self._vain += 1
        self._lose(why, now)

    def due(self, now: float) -> bool:
        """Tell whether ``tend`` is to be called."""
        when = self.deadline()
        return when is not None and when <= now

    def tend(self, context: zmq.Context[zmq.Socket[bytes]], now: float, spacing: float) -> None:
        """Connect, ask, and notice that nothing comes, as it is due.

        ``spacing``: seconds between two questions when there is nothing to catch up with.
        """
        self._spacing = spacing
        if not self.active:
            return
        if self._asked_at is None:
            if now >= self._next:
                if self.socket is None:
                    self._connect(context)
                self._ask(now)
            return
        overdue = now - self._asked_at - ASK_WAIT
        if overdue >= LOST_AFTER:
            self._lose(f"no answer from {self.where}", now)
        if overdue >= self._patience:
            # Each try is a new connection: one from before a cut may sleep for a minute after it.
            self._vain += 1
            self._address += 1
            self._hang_up()
            self._connect(context)
            self._ask(now)

    def deadline(self) -> float | None:
        """Return when ``tend`` should be called at the latest; None while nothing is followed."""
        if not self.active:
            return None
        if self._asked_at is None:
            return self._next
        lost = self.state in ("lost", "unseen")
        return self._asked_at + ASK_WAIT + (self._patience if lost else min(LOST_AFTER, self._patience))

    def take(self, now: float) -> bool:
        """Take one answer that has come; False when there is none."""
        if self.socket is None:
            return False
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        try:
            if len(frames) != 1:
                raise WireError("the answer is not one frame")
            batch = decode_batch(frames[0])
        except WrongVersion as error:
            self.fail(now, str(error))
            self._next = now + _OTHER_VERSION
            return True
        except WireError as error:
            self._hub_state.refused += 1
            self.fail(now, clean(str(error)))
            return True
        self._read(batch, now)
        return True

    def close(self) -> None:
        """Let go of the connection."""
        self._hang_up()

    def _read(self, batch: Batch, now: float) -> None:
        if self._hub != batch.hub:
            self._offsets.clear()
        self._offsets.append(now - batch.now)
        self._hub, self._since = batch.hub, batch.last
        self._answered_at, self._vain = now, 0
        if batch.lost > 0:
            self.missed += batch.lost
            self._changed()
        more = batch.last < 0 or sum(map(item_bytes, batch.items)) >= BATCH
        self._asked_at = None
        self._next = now if more else now + self._spacing
        if more:
            # Before it is read: the other hub prepares the next answer meanwhile.
            self._ask(now)
        # Of the last answers the quickest tells best how the two clocks differ: none can come before it is sent.
        shift = min(self._offsets)
        for item in batch.items:
            self.merge.take(item, batch.hub, shift, now)
        behind = batch.last < 0 or (more and self.state != "linked")
        self._note("behind" if behind else "linked", "", now)

    def _connect(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        if self._since < 0:
            self._hub = ""  # a snapshot that was cut off begins anew
        address = self.where
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.maxmsgsize = MAX_BATCH
        socket.reconnect_ivl = 500
        socket.reconnect_ivl_max = 4000
        socket.ipv6 = not _IPV4.fullmatch(address)
        try:
            socket.curve_serverkey = self.door.key.encode()
            socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
            socket.connect(f"tcp://{address}")
        except zmq.ZMQError:
            # An address or a key that cannot be: the question waits in vain, and the next address gets its turn.
            socket.close(linger=0)
            return
        self.socket = socket

    def _ask(self, now: float) -> None:
        self._asked_at = now
        if self.socket is not None:
            question = Ask(hub=self._hub, since=self._since, wait=ASK_WAIT)
            try:
                self.socket.send(encode_ask(question), zmq.NOBLOCK)
            except zmq.Again:
                self._hang_up()

    def _hang_up(self) -> None:
        if self.socket is not None:
            self.socket.close(linger=0)
        self.socket, self._asked_at = None, None

    def _lose(self, why: str, now: float) -> None:
        heard = self._answered_at
        if heard is None:
            self._note("unseen", why, self.since if self.state == "unseen" else now)
        else:
            self._note("lost", why, self.since if self.state == "lost" else heard)

    def _note(self, state: str, detail: str, at: float) -> None:
        if (state, detail) == (self.state, self.detail):
            return
        if state != self.state:
            self.since = at
        self.state, self.detail = state, detail
        self._changed()
