"""The hub of one node in a job of several: its door for the others, and what it gathers from theirs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Final

import zmq
from msgspec.structs import replace

from ranktop.agent.hub_door import HubDoor, Keys
from ranktop.agent.hub_gathering import Gathering
from ranktop.agent.hub_state import HubState
from ranktop.wire.codec import BadMessage, clean
from ranktop.wire.nodes import Door, Doors

MOST_NODES: Final = 4096
_ADDRESS: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:%_-]{0,63}|::[0-9A-Fa-f.:]{0,40}")
_JOB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_MOST_ADDRESSES: Final = 16
_LONGEST_NAME: Final = 256
_MOST_PORTS: Final = 1024
_EVERYWHERE: Final = ("*", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hub may listen: ``RANKTOP_HUB_BIND`` (addresses, by commas), ``RANKTOP_HUB_PORT`` (a port or a range)."""

    addresses: tuple[str, ...] = ()
    ports: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Place:
        """Read the two variables; ValueError, one line, for what cannot be understood."""
        named = tuple(filter(None, (part.strip() for part in environ.get("RANKTOP_HUB_BIND", "").split(","))))
        if not all(address in _EVERYWHERE or _ADDRESS.fullmatch(address) for address in named):
            raise ValueError(f"RANKTOP_HUB_BIND={clean(','.join(named))[:80]!r} is no list of addresses")
        text = environ.get("RANKTOP_HUB_PORT", "").strip()
        if not text:
            return cls(named)
        found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if not 0 <= first <= last < 65536:
            raise ValueError(f"RANKTOP_HUB_PORT={clean(text)[:40]!r} is neither a port nor a range like 41000-41099")
        return cls(named, tuple(range(first, last + 1))[:_MOST_PORTS])


class HubNodes:
    """Opens with the first word of other nodes; until then a hub has no port."""

    def __init__(self, state: HubState, poller: zmq.Poller, log: Callable[[str], None]) -> None:
        self._state = state
        self._poller = poller
        self._log = log
        self._doors = Doors(node_rank=0)
        self._door: HubDoor | None = None
        self._gathering: Gathering | None = None
        self._problem = ""
        self._log_at = 1
        """Connections turned away at which the log is told next."""
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def take(self, doors: Doors, now: float) -> Door | None:
        """Take what an agent says of the job's nodes; returns this hub's door, None where none can be opened.

        BadMessage for what cannot be.
        """
        self._doors = _checked(doors)
        if self._door is None and not self._problem:
            self._open()
        if self._door is None:
            return None
        own = Door(
            node_rank=self._doors.node_rank,
            host=self._doors.host,
            addresses=self._advertised(),
            port=self._door.port,
            key=self._keys.public.decode(),
            hub=self._state.hub,
            job_id=self._state.job.id,
        )
        self._door.admit(door.key for door in self._doors.doors)
        if self._gathering is not None:
            self._gathering.meet(self._doors, own, now)
        # Whoever joins when the first node has gone is to know the job by the id that it has.
        return replace(own, job_id=self._state.job.id)

    def turn(self, now: float, asked_at: float, ready: Container[object]) -> None:
        """Serve the door and gather. ``asked_at``: when a viewer of this hub last asked; ``ready``: sockets to read."""
        if self._door is not None:
            self._door.turn(now)
            if self._door.refused >= self._log_at:
                self._log(f"connections turned away at the door so far: {self._door.refused}")
                self._log_at = 10 * self._door.refused
        if self._gathering is not None:
            self._gathering.turn(now, asked_at, ready)

    def deadline(self) -> float | None:
        """Return when ``turn`` should be called at the latest; None when only its sockets matter."""
        due = [part.deadline() for part in (self._door, self._gathering) if part is not None]
        return min((when for when in due if when is not None), default=None)

    def others_train(self, now: float, patience: float) -> bool:
        """Tell whether ranks of other nodes of which this hub is to tell train on (``Gathering.ranks_live``)."""
        return self._gathering is not None and self._gathering.ranks_live(now, patience)

    def close(self) -> None:
        """Close every port and connection."""
        if self._gathering is not None:
            self._gathering.close()
        if self._door is not None:
            self._door.close()
        if self._context is not None:
            self._context.destroy(linger=0)

    def _open(self) -> None:
        """Open the door, once. A hub that cannot goes on for its own node, and says why."""
        try:
            self._place = Place.of(os.environ)
            self._keys = Keys.new()
            # A context of its own: whatever comes over the network must not hold up the thread that serves agents.
            self._context = zmq.Context()
            door = HubDoor(self._context, self._keys, self._state)
            named = [address for address in self._place.addresses if address not in _EVERYWHERE]
            everywhere = len(named) < len(self._place.addresses)
            door.open([] if everywhere else named or self._doors.addresses, self._place.ports)
        except (zmq.ZMQError, OSError, ValueError) as error:
            self._problem = f"this node's hub takes no connections of other nodes: {error}"
            self._log(self._problem)
            if self._context is not None:
                self._context.destroy(linger=0)
                self._context = None
            return
        self._state.part()
        self._door = door
        self._gathering = Gathering(self._context, self._keys, self._state, self._poller, self._log)
        for socket in door.sockets():
            self._poller.register(socket, zmq.POLLIN)
        self._log(f"port {door.port} takes connections of the hubs of the job's other nodes")

    def _advertised(self) -> tuple[str, ...]:
        named = tuple(address for address in self._place.addresses if address not in _EVERYWHERE)
        return named or self._doors.addresses


def _checked(doors: Doors) -> Doors:
    """Return the message with only what can be; BadMessage when it makes no sense as a whole."""
    if not 0 <= doors.node_rank < MOST_NODES:
        raise BadMessage(f"node {doors.node_rank} is out of range")
    known = {
        door.node_rank: replace(door, host=clean(door.host[:_LONGEST_NAME])) for door in doors.doors if _possible(door)
    }
    return Doors(
        node_rank=doors.node_rank,
        nodes=min(max(doors.nodes, 0), MOST_NODES),
        host=clean(doors.host[:_LONGEST_NAME]),
        addresses=_addresses(doors.addresses),
        doors=tuple(known[node] for node in sorted(known)),
    )


def _possible(door: Door) -> bool:
    return (
        0 <= door.node_rank < MOST_NODES
        and 0 < door.port < 65536
        and len(door.key) == 40
        and door.key.isascii()
        and bool(_addresses(door.addresses))
        and len(door.hub) <= _LONGEST_NAME
        and _JOB_ID.fullmatch(door.job_id) is not None
    )


def _addresses(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(address for address in given[:_MOST_ADDRESSES] if _ADDRESS.fullmatch(address))
