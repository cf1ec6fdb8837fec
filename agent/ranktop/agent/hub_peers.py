"""Lets processes of the hub's own user connect to its Unix sockets, and nobody else."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from ranktop.agent.hub_zap import Gate
from ranktop.wire.peers import is_trusted, user_at


class Peers:
    """Answers who may connect."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Begin before any of the context's sockets is bound: without it every user would do."""
        self._gate = Gate(context, b"another user")
        self.socket = self._gate.socket
        self._refused: list[int] = []

    def turn(self) -> list[int]:
        """Answer what libzmq asks; returns the users that were turned away, one for each connection."""
        self._gate.turn(self._may)
        refused, self._refused = self._refused, []
        return refused

    def _may(self, frames: Sequence[bytes]) -> bool:
        user = user_at(frames[3].decode(errors="replace")) if len(frames) > 3 else None
        good = is_trusted(user)
        if not good and user is not None:
            self._refused.append(user)
        return good
