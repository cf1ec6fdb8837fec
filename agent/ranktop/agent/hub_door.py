"""The door of a node's hub: one TCP port that the hubs of the job's other nodes may ask at, and nobody else.

It speaks CURVE: who does not hold the secret key to a public key of the job's own store is turned away in the
handshake. It is read only, like the viewers' socket, and tells of this node's ranks only.
"""

from __future__ import annotations

import contextlib
import resource
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import zmq
from zmq.utils import z85

from ranktop.agent.hub_state import HubState
from ranktop.agent.hub_viewers import Viewers, read_asks, send_answers
from ranktop.agent.hub_zap import DOMAIN, Gate

BATCH: Final = 256 * 1024
"""Bytes at which a batch ends: small enough for a slow network to bring it in time."""

HANDSHAKE: Final = 3.0
"""Seconds that a connection may take to show its key."""
_BACKLOG: Final = 64
_LONGEST_ASK: Final = 4096
_MOST_FILES: Final = 8192
MOST_KNOCKING: Final = 2048
"""Connections that have not shown a key yet, beyond which the door is shut for a while; a quarter of the files that
this process may open, where that is less."""
MOST_REFUSED: Final = 1000
"""Connections turned away within a second, beyond which the same is done: each costs the node's CPUs about 0.2 ms, and
they are the job's."""
MOST_LET_IN: Final = 64
"""Connections that have shown a key, beyond which it is done too; four for each known key, where that is more."""
_SHUT: Final = 5.0
"""Seconds for which the door is shut when too many connections come."""
_AT_ONCE: Final = 256
"""Events taken in one turn."""
_EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_EVENT: Final = struct.Struct("=hi")
"""Of zmq_socket_monitor(3): which event, and the descriptor of the connection."""


@dataclass(frozen=True, slots=True)
class Keys:
    """A hub's key pair, new with every hub process; the secret one stays in its memory."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls) -> Keys:
        """Make a pair; zmq.ZMQError where this ZeroMQ has no CURVE."""
        return cls(*zmq.curve_keypair())


class HubDoor:
    """A ROUTER with CURVE, and the one that looks at keys (ZAP), both served in the hub's own thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, state: HubState) -> None:
        self.port = 0
        self.refused = 0
        """Connections that were turned away."""
        self.state = state
        self._known: frozenset[bytes] = frozenset()
        self._endpoints: list[str] = []
        self._closed: list[str] = []
        self._shut_until: float | None = None
        self._knocking: dict[int, None] = {}
        """Descriptors of connections that have not shown a key yet, the oldest first."""
        self._let_in = 0
        self._window = (0.0, 0)
        """Since when those that are turned away are counted for ``MOST_REFUSED``, and how many there were before."""
        self._most_knocking = min(MOST_KNOCKING, _raise_limit() // 4)
        self.viewers = Viewers(state, own=True, most=BATCH)
        # Before the door: without it every key would do.
        self._gate = Gate(context, b"key not known")
        self._router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        router = self._router
        router.linger = 0
        router.sndhwm = router.rcvhwm = 4
        router.maxmsgsize = _LONGEST_ASK
        router.backlog = _BACKLOG
        router.handshake_ivl = int(HANDSHAKE * 1000)
        router.tcp_keepalive = 1
        router.curve_server = True
        router.curve_secretkey = keys.secret
        router.curve_publickey = keys.public
        router.zap_domain = DOMAIN
        watch = f"inproc://ranktop-door-{id(self)}"
        router.monitor(watch, _EVENTS)
        self._events: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        # Without a bound: a full queue would hold up the thread that serves all connections.
        self._events.rcvhwm = 0
        self._events.connect(watch)

    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        """Return what is to be polled."""
        return self._gate.socket, self._events, self._router

    def open(self, addresses: Iterable[str], ports: Iterable[int]) -> None:
        """Listen on one port of all addresses that are this machine's; on every interface where none is.

        ``ports`` are tried in turn, 0 means any. OSError when none can be had.
        """
        wanted = list(dict.fromkeys(addresses))
        for port in ports:
            for first in [*wanted, "*"]:
                if self._bind(first, port):
                    rest = wanted[wanted.index(first) + 1 :] if first != "*" else []
                    for address in rest:
                        self._bind(address, self.port)
                    return
        raise OSError("no port for the other nodes' hubs can be opened (RANKTOP_HUB_BIND, RANKTOP_HUB_PORT)")

    def _bind(self, address: str, port: int) -> bool:
        host = f"[{address}]" if ":" in address else address
        self._router.ipv6 = ":" in address
        try:
            self._router.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError:
            return False
        endpoint = self._router.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._endpoints.append(endpoint)
        self.port = int(endpoint.rpartition(":")[2])
        return True

    def admit(self, keys: Iterable[str]) -> None:
        """Let in those with these public keys (Z85) from now on, and no others."""
        known = set()
        for key in keys:
            with contextlib.suppress(ValueError, KeyError, struct.error):
                known.add(z85.decode(key))
        self._known = frozenset(key for key in known if len(key) == 32)

    def turn(self, now: float) -> None:
        """Look at the keys that are shown, and answer questions. ``now`` on the hub's clock."""
        self._gate.turn(self._may)
        self._follow_connections()
        if self._shut_until is None and self._is_flooded(now):
            self._shut(now)
        elif self._shut_until is not None and now >= self._shut_until:
            self._reopen(now)
        read_asks(self._router, self.viewers, self.state, now)
        send_answers(self._router, self.viewers, now)

    def _is_flooded(self, now: float) -> bool:
        since, before = self._window
        if now - since >= 1.0:
            self._window = (now, self.refused)
        return (
            len(self._knocking) > self._most_knocking
            or self._let_in > max(MOST_LET_IN, 4 * len(self._known))
            or (now - since < 1.0 and self.refused - before > MOST_REFUSED)
        )

    def deadline(self) -> float | None:
        """Return when ``turn`` should be called at the latest; None when only the sockets matter."""
        due = (self.viewers.deadline(), self._shut_until)
        return min((when for when in due if when is not None), default=None)

    def close(self) -> None:
        """Close the port."""
        self._router.disable_monitor()
        for socket in self.sockets():
            socket.close(linger=0)

    def _may(self, frames: Sequence[bytes]) -> bool:
        """Tell whether a connection shows a key that is known."""
        return len(frames) == 7 and frames[0] == b"1.0" and frames[5] == b"CURVE" and frames[6] in self._known

    def _follow_connections(self) -> None:
        """Count the connections that ended before they were let in: another key, none, other bytes, too slow."""
        for _ in range(_AT_ONCE):
            try:
                event, descriptor = _EVENT.unpack(self._events.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                return
            if event == zmq.EVENT_ACCEPTED:
                self._knocking[descriptor] = None
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                # It does not say whose. One for the other evens out in the count when both are gone.
                self._knocking.pop(next(iter(self._knocking), -1), None)
                self._let_in += 1
            elif self._knocking.pop(descriptor, descriptor) is None:
                self._refuse(1)
            else:
                self._let_in = max(0, self._let_in - 1)

    def _refuse(self, count: int) -> None:
        self.refused += count
        self.state.refused += count
        self.state.turned_away += count

    def _shut(self, now: float) -> None:
        """Close the port and with it all its connections, also those of other hubs: they come again by themselves."""
        self._refuse(len(self._knocking))
        self._knocking.clear()
        self._let_in = 0  # no event tells of connections that go with the port
        self._shut_until, self._closed = now + _SHUT, list(self._endpoints)
        for endpoint in self._endpoints:
            with contextlib.suppress(zmq.ZMQError):
                self._router.unbind(endpoint)

    def _reopen(self, now: float) -> None:
        self._closed = [endpoint for endpoint in self._closed if not self._bound(endpoint)]
        self._shut_until = now + _SHUT if self._closed else None

    def _bound(self, endpoint: str) -> bool:
        try:
            self._router.bind(endpoint)
        except zmq.ZMQError as error:
            # Those that were closed a moment ago may still have it; an address may be gone for good.
            return error.errno != zmq.EADDRINUSE
        return True


def _raise_limit() -> int:
    """Allow this process more open files, as connections that only knock take some for a while; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
