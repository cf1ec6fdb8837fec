"""What a hub gathers from those of the job's other nodes, and what it tells viewers of how that goes.

The hub of the first node gathers for as long as it lives, any other while somebody watches there. Nothing that is
gathered is passed on to another hub, so there are no loops.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Container
from typing import Final

import zmq

from ranktop.agent.hub_door import Keys
from ranktop.agent.hub_gather import Gather, Notes
from ranktop.agent.hub_state import HubState
from ranktop.wire.nodes import Door, Doors, NodeLink, Nodes

KEEP: Final = 60.0
"""Seconds after a viewer's last question for which a hub that is not the first node's still gathers."""

_SLICE: Final = 0.05
"""Seconds of one turn for other nodes' messages; this node's own ranks come first."""

_ASKS: Final = 1000.0
"""Questions a second to all other nodes together, at most; each costs this hub and the other one some 0.1 ms."""
_SPACING: Final = 0.2
"""Seconds between two questions to one node when there is nothing to catch up with, at least: many ranks' messages come
in one answer."""

_TELL_EVERY: Final = 0.25
_LOGGED: Final = 8


class Gathering:
    """The links to all other nodes of the job that are known."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: Keys,
        state: HubState,
        poller: zmq.Poller,
        log: Callable[[str], None],
    ) -> None:
        self._context = context
        self._keys = keys
        self._state = state
        self._poller = poller
        self._log = log
        self._failures = 0
        self._links: list[Gather] = []
        self._ways = 0
        self._polled: dict[int, zmq.Socket[bytes]] = {}
        self._here = NodeLink(node_rank=0, state="here")
        self._first = False
        self._unmet: dict[int, float] = {}
        """Nodes that are not known but by their number -> since when."""
        self._changed = False
        self._told_at = -_TELL_EVERY
        self._moves = 0

    def meet(self, doors: Doors, own: Door, now: float) -> None:
        """Take which doors there are now; this hub's own is ``own``."""
        others = {
            door.node_rank: door for door in doors.doors if own.node_rank != door.node_rank and door.key != own.key
        }
        lowest = min([own, *others.values()], key=lambda door: door.node_rank)
        self._first = lowest is own
        self._state.rename(lowest.job_id)
        since = self._here.since or now
        here = NodeLink(node_rank=own.node_rank, host=own.host, state="here", since=since)
        if here != self._here:
            self._here, self._changed = here, True
        self._match(others, now)
        unmet = set(range(doors.nodes)) - {own.node_rank, *others}
        if unmet != set(self._unmet):
            self._unmet = {node: self._unmet.get(node, now) for node in sorted(unmet)}
            self._changed = True

    def _match(self, doors: dict[int, Door], now: float) -> None:
        """Give each door its link: the same hub's, else that of the node's hub before it, else a new one."""
        free = list(self._links)
        kept: list[Gather] = []
        waiting: list[Door] = []
        for door in doors.values():
            link = next((link for link in free if link.door.hub == door.hub), None)
            if link is None:
                waiting.append(door)
            else:
                free.remove(link)
                kept.append(link)
                link.follow(door, now)
        for door in waiting:
            link = next((link for link in free if link.door.node_rank == door.node_rank), None)
            if link is None:
                link = Gather(self._ways, door, self._keys, self._state, Notes(self._note_change, self._log), now)
                self._ways += 1
                self._changed = True
            else:
                free.remove(link)
                link.follow(door, now)
            kept.append(link)
        for link in free:
            link.close()
            self._poll(link)
            self._changed = True
        self._links = sorted(kept, key=lambda link: link.door.node_rank)

    def turn(self, now: float, asked_at: float, ready: Container[object]) -> None:
        """Ask, take what has come, and tell of changes.

        ``asked_at``: when a viewer last asked this hub; ``ready``: sockets on which something has come. Of hundreds of
        links most have nothing to do in one turn.
        """
        wanted = self._first or now - asked_at <= KEEP
        for link in self._links:
            if wanted and not link.active:
                link.start(now)
            elif not wanted and link.active:
                link.stop(now, "not followed while nobody watches here")
        until = time.perf_counter() + _SLICE
        for link in list(self._links):
            heard = link.socket in ready and time.perf_counter() < until
            if heard or link.due(now):
                self._serve(link, now, heard)
        if len(self._links) > 1:
            # Whoever came last in this turn comes first in the next.
            self._links.append(self._links.pop(0))
        if self._moves != self._state.moves:
            self._moves, self._changed = self._state.moves, True
        if self._changed and now - self._told_at >= _TELL_EVERY:
            self._tell(now)

    def _serve(self, link: Gather, now: float, heard: bool) -> None:
        """Let one link do what is due, and read if something was heard; a failure costs that link only."""
        try:
            # One answer, for one question is open: what a hub sends unasked wakes this one again.
            if heard:
                link.take(now)
            link.tend(self._context, now, _spacing(len(self._links)))
        except Exception:
            self._failures += 1
            if self._failures <= _LOGGED:
                self._log(f"gathering from node {link.door.node_rank}: {traceback.format_exc()}")
            link.fail(now, "its messages could not be used; hub.log says why")
        self._poll(link)

    def _poll(self, link: Gather) -> None:
        """Have the link's present socket wake the hub, and no other."""
        way = link.merge.way
        before = self._polled.get(way)
        if before is link.socket:
            return
        if before is not None:
            self._poller.unregister(before)
            del self._polled[way]
        if link.socket is not None:
            self._poller.register(link.socket, zmq.POLLIN)
            self._polled[way] = link.socket

    def deadline(self) -> float | None:
        """Return when ``turn`` should be called at the latest; None when only sockets matter."""
        due = [link.deadline() for link in self._links]
        if self._changed:
            due.append(self._told_at + _TELL_EVERY)
        return min((when for when in due if when is not None), default=None)

    def ranks_live(self, now: float, patience: float) -> bool:
        """Tell whether a rank of another node trains on, as far as the hub of the first node knows.

        Those of a node that is lost do so for ``patience`` seconds after it was last heard.
        """
        if not self._first:
            return False
        heard: set[int | None] = {
            link.merge.way
            for link in self._links
            if link.state in ("linked", "behind") or (link.state == "lost" and now - link.since <= patience)
        }
        return any(
            rank.way in heard and rank.end is None for rank in self._state.ranks.values() if rank.way is not None
        )

    def close(self) -> None:
        """Let go of all links."""
        for link in self._links:
            link.close()
            self._poll(link)

    def _note_change(self) -> None:
        self._changed = True

    def _tell(self, now: float) -> None:
        """Put the state of all nodes into the stream, with the time of the newest change among them."""
        own = tuple(sorted(number for number, rank in self._state.ranks.items() if rank.way is None))
        unmet = [
            NodeLink(node_rank=node, state="unseen", since=since, detail="its hub has not been heard of")
            for node, since in self._unmet.items()
        ]
        here = NodeLink(
            node_rank=self._here.node_rank, host=self._here.host, state="here", since=self._here.since, ranks=own
        )
        links = sorted([here, *unmet, *(link.link() for link in self._links)], key=lambda link: link.node_rank)
        self._changed, self._told_at = False, now
        nodes = Nodes(here=here.node_rank, nodes=tuple(links))
        self._state.tell_nodes(max(link.since for link in links), nodes)


def _spacing(links: int) -> float:
    return max(_SPACING, links / _ASKS)
