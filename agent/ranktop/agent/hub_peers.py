"""Lets processes of the hub's own user connect to its Unix sockets, and nobody else: asked by libzmq (ZAP)."""

from __future__ import annotations

from typing import Final

import zmq

from ranktop.wire.peers import is_trusted, user_at

DOMAIN: Final = b"ranktop"
"""``zap_domain`` of the sockets that are looked after; without one libzmq asks nobody."""

_ZAP: Final = "inproc://zeromq.zap.01"
_AT_ONCE: Final = 256


class Peers:
    """Answers who may connect (rfc.zeromq.org/spec/27); served in the hub's own thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Begin before any of the context's sockets is bound: without it every user would do."""
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP)

    def turn(self) -> list[int]:
        """Answer what libzmq asks; returns the users that were turned away, one for each connection."""
        refused = []
        for _ in range(_AT_ONCE):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            request = frames[1] if len(frames) > 1 else b""
            user = user_at(frames[3].decode(errors="replace")) if len(frames) > 3 else None
            good = is_trusted(user)
            if not good and user is not None:
                refused.append(user)
            verdict = (b"200", b"OK") if good else (b"400", b"another user")
            self.socket.send_multipart((b"1.0", request, *verdict, b"", b""))
        return refused
