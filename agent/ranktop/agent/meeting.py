"""Has the hubs of a job's nodes find each other, through the job's own torchrun store.

One thread in the agent of each node's local rank 0, and only where the launcher says that there are several nodes. It
takes the own hub's door to the store, and the other nodes' doors from there to the own hub, by way of the sampling
thread, which alone may speak with the hub. Nothing in a job waits for it.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from ranktop.agent.own_addresses import own_addresses
from ranktop.agent.runner import one_line
from ranktop.agent.store import Place, Store, StoreError, check_torch, is_up, place
from ranktop.wire.nodes import Door, Doors

if TYPE_CHECKING:
    from ranktop.agent.identity import Identity

FIRST_PAUSE: Final = 0.5
"""Seconds between the first two looks into the store."""

LONGEST_PAUSE: Final = 10.0
"""Between two looks while nodes are still to come."""

SETTLED_PAUSE: Final = 60.0
"""Between two looks later, when only a hub that was replaced makes news."""

SETTLING: Final = 60.0
"""Seconds from the start in which a door that is known may be one of a former attempt."""

GIVEN_UP: Final = 600.0
"""Seconds from the start after which a node that is still missing may run without the agent."""

REPEAT: Final = 5.0
"""Seconds after which the own hub is asked for its door again."""

PATIENCE: Final = 60.0
"""Seconds of failure after which it is said."""

MOST_DOORS: Final = 8192

_LONGEST_LINE: Final = 8192
"""Bytes; a door takes some 300."""

_decode: Final = msgspec.json.Decoder(Door).decode
_encode: Final = msgspec.json.Encoder().encode


class Meeting(threading.Thread):
    """The thread, and what it hands to and takes from the sampling thread."""

    def __init__(
        self,
        identity: Identity,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="ranktop-meeting", daemon=True)
        self.problem = ""
        """Why the other nodes are not met, in one line; empty while they are, or may still be."""
        self._identity = identity
        self._environ = os.environ if environ is None else environ
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = False
        self._door: Door | None = None
        self._news: Doors | None = None
        self._told: Doors | None = None
        self._told_at = 0.0
        self._store: Store | None = None
        self._left: Door | None = None
        self._changes = -1
        self._doors: tuple[Door, ...] = ()
        self._addresses: tuple[str, ...] = ()
        self._pause = FIRST_PAUSE
        self._began = clock()
        self._failing_since: float | None = None

    # -- for the sampling thread ---------------------------------------------------------------------------------

    def answered(self, door: Door | None) -> None:
        """Take the hub's door, as its last answer told it."""
        if door is not None and door != self._door:
            self._door = door
            self._wake.set()

    def take(self) -> Doors | None:
        """Return what the hub is to be told, once."""
        news, self._news = self._news, None
        return news

    def stop(self, deadline: float) -> None:
        """End the thread; waits up to ``deadline`` seconds while it talks with the store."""
        self._stopping = True
        self._wake.set()
        if (store := self._store) is not None:
            store.interrupt()
        if self.is_alive():
            self.join(deadline)

    # -- the thread ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Look into the store until told to stop."""
        while not self._stopping:
            self._wake.clear()
            try:
                self.look()
            except StoreError as error:
                self._failed(str(error))
            except Exception as error:  # whatever goes wrong here costs the sight of other nodes, nothing more
                self._failed(one_line(error)[:200])
            if not self._stopping:
                self._wake.wait(self.pause())
        if self._store is not None:
            self._store.close()

    def pause(self) -> float:
        """Return the seconds to the next look: few at first, then many; never all nodes at once."""
        age = self._clock() - self._began
        if age > (SETTLING if self._complete() else GIVEN_UP):
            self._pause = SETTLED_PAUSE
        else:
            self._pause = min(1.5 * self._pause, LONGEST_PAUSE)
        return self._pause * random.uniform(0.8, 1.0)

    def look(self) -> None:
        """Leave the own door where it is new, and take what others have left; StoreError when that fails."""
        where = self._where()
        if where is None or not is_up(where):
            return
        store = self._store
        if store is None:
            check_torch(str(getattr(sys.modules.get("torch"), "__version__", "")))
            store = self._store = Store(where)
            self._left, self._changes = None, -1  # it may be another one than the last
            self._addresses = own_addresses(store.own_address, self._environ)
        if self._door is not None:
            self._meet(store, self._door)
        self._failing_since, self.problem = None, ""
        self._tell()

    def _where(self) -> Place | None:
        where = place(self._environ)
        if where is None:
            raise StoreError(
                "nothing tells where the job's store is (MASTER_ADDR and MASTER_PORT, or RANKTOP_STORE=host:port)"
            )
        return where

    def _meet(self, store: Store, door: Door) -> None:
        changes = store.changes()
        if door != self._left:
            store.leave(_encode(door))
            self._left = door
            changes = store.changes()
        if changes != self._changes:
            self._doors = newest(store.lines())
            self._changes = changes

    def _complete(self) -> bool:
        return self._identity.nodes > 0 and len(self._doors) >= self._identity.nodes

    def _tell(self) -> None:
        identity = self._identity
        news = Doors(
            node_rank=identity.node_rank,
            nodes=identity.nodes,
            host=socket.gethostname(),
            addresses=self._addresses,
            doors=tuple(door for door in self._doors if not identity.nodes or door.node_rank < identity.nodes),
        )
        now = self._clock()
        if news != self._told or (self._door is None and now - self._told_at >= REPEAT):
            self._news = self._told = news
            self._told_at = now

    def _failed(self, why: str) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        now = self._clock()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since >= PATIENCE:
            self.problem = f"the hubs of the job's other nodes are not looked for: {why}"


def newest(lines: Iterable[bytes]) -> tuple[Door, ...]:
    """Return the last door of each node, in the order of the nodes; what is none is skipped.

    A hub that came back as another node, after ranks were dealt out anew, is that node only.
    """
    of_hub: dict[str, Door] = {}
    for line in lines:
        if len(line) > _LONGEST_LINE:
            continue
        try:
            door = _decode(line)
        except Exception:  # anybody in the job may write there
            continue
        of_hub.pop(door.hub, None)
        of_hub[door.hub] = door
    of_node = {door.node_rank: door for door in of_hub.values() if 0 <= door.node_rank < MOST_DOORS}
    return tuple(of_node[node] for node in sorted(of_node))
