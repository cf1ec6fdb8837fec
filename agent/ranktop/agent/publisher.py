"""Sends a rank's messages to the job's hub without ever waiting for it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from ranktop.agent.lifecycle import ensure_hub
from ranktop.probes.kernel_files import text_or_none
from ranktop.wire.codec import WireError, WrongVersion, decode_ack, encode_body, encode_header
from ranktop.wire.endpoints import AGENTS_SOCKET, RunDirectoryError, check_directory, socket_path
from ranktop.wire.nodes import Door, Doors
from ranktop.wire.peers import is_trusted, sender
from ranktop.wire.schema import MAX_MESSAGE, Ack, Box, Card, Device, End, Header, Job, Sample, Stack

QUEUE_MESSAGES: Final = 256
"""Messages kept here while the hub does not read; beyond it the oldest sample goes."""

Said = Card | Sample | Device | Stack | Box | End | Doors
"""What an agent may say."""

HUB_SILENCE: Final = 3.0
"""Seconds without an answer to what was sent after which the hub counts as dead."""

_KEPT: Final = ("card", "device", "doors")
"""Kinds of which a hub wants only the newest, and wants it again when it is a new hub."""
_KINDS: Final[dict[type, str]] = {
    **{Card: "card", Sample: "sample", Device: "device"},
    **{Stack: "stack", Box: "box", End: "end", Doors: "doors"},
}
_UNANSWERED: Final = 16
"""Messages that a hub which is well may have received since its last answer that was read."""
_SOCKET_QUEUE: Final = 64
_EVENTFD: Final = "anon_inode:[eventfd]"
_DESCRIPTORS: Final = 24
"""Descriptors that a context and a socket take, and some to spare."""
_CARD_SPACING: Final = 2.0
_SLOWEST_RETRY: Final = 30.0
_START_GRACE: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Message:
    kind: str
    seq: int
    header: bytes
    body: bytes


class Publisher:
    """One rank's connection to its hub. Belongs to one thread; in a forked child every call does nothing."""

    def __init__(self, job: Job, rank: int, pid: int, restart: int, directory: Path) -> None:
        """``directory`` is the job's own, from ``endpoints.job_directory``; it need not exist yet."""
        self.dropped = 0
        """Messages dropped since the start, because the hub was not reading or they could not be encoded."""
        self.problem = ""
        """Why nothing arrives, in one line, when that is known."""
        self.door: Door | None = None
        """Where the hub takes connections of the job's other hubs, as it last said."""
        self._job = job
        self._life = (rank, pid, restart)
        self._directory = directory
        self._owner = os.getpid()
        self._seq = 0
        self._queue: deque[_Message] = deque()
        self._sent = self._confirmed = -1
        self._kept: dict[str, bytes] = {}
        self._card_sent_at = -_CARD_SPACING
        self._hub = ""
        self._waiting_since: float | None = None
        self._next_start = 0.0
        self._started_at: float | None = None
        self._retry = HUB_SILENCE
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._descriptor: tuple[int, str] = (-1, "")
        """The socket's own descriptor and what it was when opened."""

    @property
    def connected(self) -> bool:
        """Whether a hub has answered and is not overdue with its next answer."""
        if not self._hub:
            return False
        return self._waiting_since is None or time.monotonic() - self._waiting_since < HUB_SILENCE

    @property
    def settled(self) -> bool:
        """Whether a hub has answered lately and all but a few messages: what it says next can wait for the next one."""
        return self.connected and self._sent - self._confirmed <= _UNANSWERED

    def send(self, *bodies: Said) -> None:
        """Queue messages and hand over what the hub takes at once. Never blocks, never raises."""
        if os.getpid() != self._owner:
            return
        try:
            self._enqueue(bodies)
            self._leave_if_closed()
            self._flush()
        except Exception as error:
            # This runs in somebody's training process: whatever fails here costs a message, nothing more.
            self.dropped += 1
            self.problem = str(error)

    def pump(self, *bodies: Said) -> None:
        """Queue messages, read the hub's answers, flush, and see to it that there is a hub. Never raises.

        Takes microseconds, except when a hub must be started: then some tenths of a second, once.
        """
        if os.getpid() != self._owner:
            return
        try:
            self._enqueue(bodies)
            self._leave_if_closed()
            self._read_acks()
            self._require_hub()
            self._flush()
        except Exception as error:
            self.problem = str(error)

    def close(self, deadline: float = 0.2) -> None:
        """Flush, wait up to ``deadline`` seconds for the hub to confirm, and let go of the socket.

        A hub that this process has just started is given a second to come up: a script that dies on its first
        line would be told of nowhere else.
        """
        if os.getpid() != self._owner:
            return
        until = time.monotonic() + deadline
        if deadline > 0 and not self._hub and self._started_at is not None:
            until = max(until, self._started_at + _START_GRACE)
        with contextlib.suppress(Exception):
            self._leave_if_closed()
            while self._queue or self._confirmed < self._sent:
                remaining = until - time.monotonic()
                if remaining <= 0 or self._socket is None:
                    break
                self._socket.poll(int(min(remaining, 0.02) * 1000) + 1)
                self._read_acks()
                self._flush()
        self.dropped += len(self._queue)
        self._queue.clear()
        with contextlib.suppress(Exception):
            if self._context is not None:
                self._context.destroy(linger=0)
        self._context = self._socket = None
        self._owner = -1

    def _enqueue(self, bodies: tuple[Said, ...]) -> None:
        for body in bodies:
            kind = _KINDS[type(body)]
            # A message that cannot be encoded or sent leaves its gap in the numbers.
            seq, self._seq = self._seq, self._seq + 1
            try:
                data = encode_body(body)
            except Exception as error:
                self.dropped += 1
                self.problem = str(error)
                continue
            if kind in _KEPT:
                self._kept[kind] = data
            self._append(kind, seq, data)

    def _append(self, kind: str, seq: int, data: bytes) -> None:
        if kind in _KEPT:
            self._queue = deque(message for message in self._queue if message.kind != kind)
        rank, pid, restart = self._life
        head = encode_header(Header(kind, rank, pid, restart, seq))
        self._queue.append(_Message(kind, seq, head, data))
        while len(self._queue) > QUEUE_MESSAGES:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        for index, message in enumerate(self._queue):
            if message.kind == "sample":
                del self._queue[index]
                break
        else:
            self._queue.popleft()
        self.dropped += 1

    def _flush(self) -> None:
        if not self._queue:
            return
        out = self._connection()
        while out is not None and self._queue:
            message = self._queue[0]
            try:
                out.send_multipart((message.header, message.body), zmq.NOBLOCK)
            except zmq.Again:
                return
            self._queue.popleft()
            self._sent = message.seq
            now = time.monotonic()
            if message.kind == "card":
                self._card_sent_at = now
            if self._waiting_since is None:
                self._waiting_since = now

    def _connection(self) -> zmq.Socket[bytes] | None:
        """Return the socket; None while there is no directory that is safe to look for the hub in."""
        if self._socket is None:
            try:
                check_directory(self._directory.parent)
                check_directory(self._directory)
            except RunDirectoryError:
                return None  # ensure_hub makes the directory, or tells what is wrong with it
            _require_descriptors()
            address = "ipc://" + socket_path(self._directory, AGENTS_SOCKET)
            self._context = self._context or zmq.Context(io_threads=1)
            out: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
            out.linger = 0
            out.sndhwm = _SOCKET_QUEUE
            out.rcvhwm = _SOCKET_QUEUE
            out.maxmsgsize = MAX_MESSAGE
            out.reconnect_ivl = 100
            out.connect(address)
            self._socket = out
            self._descriptor = (out.FD, _described(out.FD))
        return self._socket

    def _hang_up(self) -> None:
        """Let go of a hub that may be another user's; before the next connection the directory is looked at anew."""
        if self._socket is not None:
            self._socket.close(linger=0)
        self._socket, self._descriptor = None, (-1, "")

    def _leave_if_closed(self) -> None:
        """Open everything anew when the script has closed descriptors that it did not open, as daemons do.

        libzmq ends the process when it meets a descriptor that was closed, or writes to the file that has got its
        number: what it held is never touched again, not even to be freed.
        """
        number, was = self._descriptor
        if self._socket is None or _same(_described(number), was):
            return
        for lost in (self._socket, self._context):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(lost))
        self._socket = self._context = None
        self._waiting_since = None
        self._confirmed = self._sent

    def _read_acks(self) -> None:
        if self._socket is None:
            return
        ack: Ack | None = None
        while int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            if not is_trusted(user := sender(frames[0])):
                self.problem = f"the hub's socket is served by user {user}: refused"
                self._hang_up()
                return
            try:
                ack = decode_ack(frames[0].bytes)
                self.door = ack.door or self.door
            except WrongVersion as error:
                # A hub is there, so none is to be started; it cannot read this, and says so to viewers.
                self.problem = str(error)
                self._waiting_since = None
            except WireError as error:
                self.problem = str(error)
        if ack is not None:
            self._take(ack)

    def _take(self, ack: Ack) -> None:
        replaced = self._hub not in ("", ack.hub)
        self._hub = ack.hub
        self._confirmed = max(self._confirmed, ack.seq)
        self._waiting_since = None
        self._retry = HUB_SILENCE
        self.problem = ""
        due = time.monotonic() - self._card_sent_at >= _CARD_SPACING
        if "card" in self._kept and (replaced or ack.want_card) and due:
            for kind in _KEPT:
                if kind in self._kept:
                    seq, self._seq = self._seq, self._seq + 1
                    self._append(kind, seq, self._kept[kind])

    def _require_hub(self) -> None:
        """Start a hub at first, and again whenever the one there has been silent for too long."""
        now = time.monotonic()
        silent = self._waiting_since is not None and now - self._waiting_since >= HUB_SILENCE
        if now < self._next_start or not (silent or self._next_start == 0.0):
            return
        self._next_start = now + self._retry
        self._retry = min(2 * self._retry, _SLOWEST_RETRY)
        try:
            ensure_hub(self._job, self._directory)
            self._started_at = now
        except (RunDirectoryError, OSError) as error:
            self.problem = str(error)
            if isinstance(error, RunDirectoryError):
                self._hang_up()


def _described(descriptor: int) -> str:
    """Return what tells a socket's eventfd from any other descriptor of its number, as far as the kernel tells it."""
    told = text_or_none(f"/proc/self/fdinfo/{descriptor}") or ""  # none where no descriptor is left to read it with
    number = told.find("eventfd-id")
    if number >= 0:
        return told[number:].partition("\n")[0]
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def _same(one: str, other: str) -> bool:
    """Compare two descriptions of a descriptor; the kernel may not have told of both as exactly."""
    kinds = [_EVENTFD if told.startswith("eventfd-id") else told for told in (one, other)]
    return kinds[0] == kinds[1] and (one == other or _EVENTFD in (one, other))


def _require_descriptors() -> None:
    """Raise OSError where there may be too few descriptors: libzmq ends the process when it gets none."""
    spare: list[int] = []
    try:
        for _ in range(_DESCRIPTORS):
            spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 (closed when one fails)
    finally:
        for descriptor in spare:
            os.close(descriptor)
