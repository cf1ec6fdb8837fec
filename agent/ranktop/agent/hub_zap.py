"""libzmq asks for each connection whether it may be (ZAP, rfc.zeromq.org/spec/27); answered in the hub's own thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import zmq

DOMAIN: Final = b"ranktop"
"""``zap_domain`` of the sockets that are looked after; without one libzmq asks only where there are keys."""

_ENDPOINT: Final = "inproc://zeromq.zap.01"
_AT_ONCE: Final = 256
"""Requests taken in one turn."""


class Gate:
    """Where a context's questions arrive."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], refusal: bytes) -> None:
        """Begin before any of the context's sockets is bound: without it everybody would do."""
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ENDPOINT)
        self._refusal = refusal

    def turn(self, may: Callable[[Sequence[bytes]], bool]) -> None:
        """Answer what is asked. ``may`` gets a request's frames, as many as have come: nothing in them is checked."""
        for _ in range(_AT_ONCE):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            request = frames[1] if len(frames) > 1 else b""
            verdict = (b"200", b"OK") if may(frames) else (b"400", self._refusal)
            self.socket.send_multipart((b"1.0", request, *verdict, b"", b""))
