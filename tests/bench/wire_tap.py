"""Counts what crosses a Unix socket, by kind of message: stands between an agent and its hub, or a viewer and it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ranktop.wire.codec import PREFIX, WireError, decode_header

_GREETING = 64
"""Bytes of ZMTP's greeting, each way."""
_MORE, _LONG, _COMMAND = 1, 2, 4
_READ = 1 << 20


@dataclass
class Stream:
    """One direction of a connection, cut into ZMTP's frames (rfc.zeromq.org/spec/23)."""

    tap: Tap
    answers: bool
    """Whether it comes from the hub."""
    rest: bytearray = field(default_factory=bytearray)
    greeted: bool = False
    kind: str = ""
    """Of the message whose frames are coming; empty between two."""

    def take(self, data: bytes) -> None:
        """Count what has come."""
        rest = self.rest
        rest += data
        if not self.greeted:
            if len(rest) < _GREETING:
                return
            self._count("handshake", _GREETING)
            del rest[:_GREETING]
            self.greeted = True
        while len(rest) >= 2:
            head = 9 if rest[0] & _LONG else 2
            size = int.from_bytes(rest[1:head], "big")
            if len(rest) < head + size:
                return
            self._frame(rest[0], bytes(rest[head : head + size]), head + size)
            del rest[: head + size]

    def _frame(self, flags: int, body: bytes, size: int) -> None:
        if flags & _COMMAND:
            # READY at the start; PING and PONG where heartbeats are on.
            name = body[1 : 1 + body[0]].decode(errors="replace")
            self._count("handshake" if name == "READY" else name, size)
            return
        first = not self.kind
        if first:
            self.kind = self._kind_of(body)
        self._count(self.kind, size, first)
        if not flags & _MORE:
            self.kind = ""

    def _kind_of(self, frame: bytes) -> str:
        if self.answers:
            return "answer"
        with contextlib.suppress(WireError):
            return decode_header(frame).kind
        return "question" if frame.startswith(PREFIX) else "other"

    def _count(self, kind: str, size: int, first: bool = True) -> None:
        with self.tap.lock:
            self.tap.bytes[kind] += size
            self.tap.messages[kind] += first


class Tap:
    """Listens at one path and passes on, both ways, to another. A thread of its own."""

    def __init__(self, listen: Path, target: Path) -> None:
        self.bytes: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.lock = threading.Lock()
        self._target = str(target)
        self._selector = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(listen))
        self._door.listen(1024)
        self._selector.register(self._door, selectors.EVENT_READ)
        self._open: list[socket.socket] = [self._door]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def counted(self) -> tuple[Counter[str], Counter[str]]:
        """Return bytes and messages by kind so far."""
        with self.lock:
            return self.bytes.copy(), self.messages.copy()

    def close(self) -> None:
        """Hang up."""
        self._stop.set()
        self._thread.join()
        for end in self._open:
            end.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.1):
                if key.data is None:
                    self._accept()
                else:
                    self._pass(key.fileobj, *key.data)  # type: ignore[arg-type]

    def _accept(self) -> None:
        near, _ = self._door.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(self._target)
        self._open += [near, far]
        self._selector.register(near, selectors.EVENT_READ, (far, Stream(self, answers=False)))
        self._selector.register(far, selectors.EVENT_READ, (near, Stream(self, answers=True)))

    def _pass(self, source: socket.socket, other: socket.socket, stream: Stream) -> None:
        try:
            data = source.recv(_READ)
            other.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(source)
            with contextlib.suppress(OSError):
                other.shutdown(socket.SHUT_WR)
            return
        stream.take(data)
