"""Several nodes of one job in one process: real hubs on loopback, a clock that can be turned, wires that can be cut."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import zmq
from msgspec.structs import replace

from ranktop.agent.hub_door import Keys
from ranktop.agent.hub_server import HubServer
from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Received, Reset, Whole
from ranktop.wire.codec import decode_ack, encode_body, encode_header
from ranktop.wire.endpoints import secure_directory
from ranktop.wire.nodes import Door, Doors, NodeLink, Nodes
from ranktop.wire.schema import Ack, Body, Card, Header, History, Job, Sample

_T = TypeVar("_T")
JOB = Job(id="n0", name="train", world_size=6, launcher="torchrun")


class Cluster:
    """Nodes that take their turns one after the other in the test's own thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[Node] = []
        self.viewers: list[Watcher] = []
        self.skipped = 0.0

    def clock(self) -> float:
        """Seconds, ahead of the real clock by what was skipped."""
        return time.monotonic() + self.skipped

    def node(self, node_rank: int, *, ahead: float = 0.0) -> Node:
        """Start another node, whose hub's clock is ``ahead`` seconds ahead."""
        node = Node(self, node_rank, ahead)
        self.nodes.append(node)
        return node

    def first_node(self) -> Node:
        """Start a node of three ranks whose door is open and that knows of no other."""
        node = self.node(0)
        node.train(range(3))
        node.introduce(())
        return node

    def turn(self) -> None:
        for node in self.nodes:
            if not node.frozen:
                node.hub.turn(0.001)
        for viewer in self.viewers:
            viewer.drain()

    def until(self, condition: Callable[[], _T], timeout: float = 20.0) -> _T:
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            assert time.monotonic() < deadline, "waited too long"
            self.turn()
        return value

    def meet(self, *, among: tuple[Node, ...] | None = None, nodes: int = 0) -> None:
        """Tell every hub of all others' doors, as the agents do through the job's store."""
        among = tuple(self.nodes) if among is None else among
        for node in among:
            if node.door is None:
                node.introduce(())
        doors = tuple(node.shown() for node in among)
        # The first node's last: who asks at once must be known there, or is turned away and comes again later.
        for node in reversed(among):
            node.introduce(doors, nodes=nodes or len(doors))

    def watch(self, node: Node) -> Watcher:
        viewer = Watcher(self, node)
        self.viewers.append(viewer)
        return viewer

    def close(self) -> None:
        for viewer in self.viewers:
            viewer.source.close()
        for node in self.nodes:
            node.close()


class Node:
    """One node: a hub, two ranks that say what they are told to, and the wire to the hub's door."""

    def __init__(self, cluster: Cluster, node_rank: int, ahead: float) -> None:
        self.cluster, self.node_rank, self.ahead = cluster, node_rank, ahead
        self.ranks = (2 * node_rank, 2 * node_rank + 1)
        self.name = f"n{node_rank}"
        """By which its own agents know the job."""
        self.directory = cluster.folder / f"n{node_rank}"
        secure_directory(self.directory)
        self.frozen = False
        self.door: Door | None = None
        self.wire: Wire | None = None
        self.pids: dict[int, int] = {}
        self.said: dict[int, list[float]] = {}
        """Rank -> when each of its steps was told of, on the cluster's clock."""
        self._seq: dict[int, int] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._start()

    def _start(self) -> None:
        job = replace(JOB, id=self.name)
        self.hub = HubServer(self.directory, job, 1.0, clock=lambda: self.cluster.clock() + self.ahead, signals=False)
        self._agent = self._context.socket(zmq.DEALER)
        self._agent.linger = 0
        self._agent.connect(f"ipc://{self.directory}/agents.sock")

    def replace_hub(self) -> None:
        """Kill the hub; another one takes over, with other keys and a history that starts anew."""
        self.hub.close()
        self._agent.close(linger=0)
        self.door = None
        self._start()

    def introduce(self, doors: tuple[Door, ...], *, nodes: int = 3) -> Door:
        """Tell this node's hub of doors; returns its own."""
        word = Doors(
            node_rank=self.node_rank, nodes=nodes, host=f"host{self.node_rank}", addresses=("127.0.0.1",), doors=doors
        )
        ack = self.send("doors", self.ranks[0], encode_body(word))
        assert ack.door is not None
        self.door = ack.door
        return ack.door

    def shown(self) -> Door:
        """Return the door as the others know it: at the end of a wire of the test's."""
        assert self.door is not None
        if self.wire is None:
            self.wire = Wire()
        self.wire.port = self.door.port
        return replace(self.door, port=self.wire.listens)

    def send(self, kind: str, rank: int, body: bytes, *, restart: int = 0) -> Ack:
        seq = self._seq[rank] = self._seq.get(rank, -1) + 1
        header = Header(kind, rank, self.pids.get(rank, os.getpid()), restart, seq)
        self._agent.send_multipart([encode_header(header), body])
        while not self._agent.poll(0):
            self.hub.turn(0.001)
        return decode_ack(self._agent.recv())

    def say(self, body: Body, *, restart: int = 0) -> None:
        rank: int = body.rank  # type: ignore[union-attr]
        self.send(type(body).__name__.lower(), rank, encode_body(body), restart=restart)

    def card(self, rank: int) -> None:
        self.say(Card(job=replace(JOB, id=self.name), rank=rank, node=f"host{self.node_rank}"))

    def train(self, steps: range, *, every: float = 1.0) -> None:
        """Have both ranks say a sample a step, ``every`` seconds apart by the cluster's clock."""
        for step in steps:
            for rank in self.ranks:
                if f"card {rank}" not in self._said():
                    self.card(rank)
                self.said.setdefault(rank, []).append(self.cluster.clock())
                self.say(Sample(rank=rank, step=step))
            self.cluster.skipped += every

    def _said(self) -> set[str]:
        return {f"card {number}" for number, rank in self.hub.state.ranks.items() if rank.card is not None}

    def close(self) -> None:
        self.hub.close()
        if self.wire is not None:
            self.wire.close()
        self._context.destroy(linger=0)


class Watcher:
    """A viewer of one node's hub, through the real receiver."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.cluster = cluster
        self.source = HubSource(node.directory, clock=cluster.clock)
        self.events: list[Received | Reset | Whole] = []
        self.at: dict[int, list[tuple[int, float]]] = {}
        """Rank -> (step, when on the cluster's clock) of each sample, as they came."""
        self.links: dict[int, NodeLink] = {}
        self.told: list[Nodes] = []
        self.points: dict[int, list[float]] = {}
        """Rank -> times of the points of histories."""

    def drain(self) -> None:
        for event in self.source.drain():
            self.events.append(event)
            if isinstance(event, Received):
                self._take(event)

    def _take(self, event: Received) -> None:
        at = self.cluster.clock() - event.age
        if isinstance(event.body, Sample):
            self.at.setdefault(event.body.rank, []).append((event.body.step, at))
        elif isinstance(event.body, Nodes):
            self.told.append(event.body)
            self.links = {link.node_rank: link for link in event.body.nodes}
        elif isinstance(event.body, History):
            points = event.body.points
            shift = at - points[-1].t
            self.points.setdefault(event.body.rank, []).extend(point.t + shift for point in points)

    def received(self) -> list[Received]:
        return [event for event in self.events if isinstance(event, Received)]

    def steps(self, rank: int) -> list[int]:
        return [step for step, _ in self.at.get(rank, ())]

    def states(self) -> str:
        return " ".join(link.state for _, link in sorted(self.links.items()))


class Wire:
    """A TCP port that passes everything on to another one, until it is cut; remembers what was sent to the door."""

    def __init__(self) -> None:
        self.port = 0
        self.heard: list[bytes] = []
        self._is_cut = False
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.listens: int = self._listener.getsockname()[1]
        self._wake_in, self._wake_out = socket.socketpair()
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Let nothing through from now on; connections stay open and hear nothing, as after a pulled cable."""
        self._is_cut = True
        self._wake_out.send(b"x")

    def mend(self) -> None:
        """Take new connections again; those from before the cut are gone."""
        self._is_cut = False
        self._wake_out.send(b"x")

    def close(self) -> None:
        self._stop = True
        self._wake_out.send(b"x")
        self._thread.join(5)
        for end in (*self._pairs, self._listener, self._wake_in, self._wake_out):
            end.close()

    def _run(self) -> None:
        was_cut = False
        while not self._stop:
            if was_cut and not self._is_cut:
                self._forget()
            was_cut = self._is_cut
            sources = [self._wake_in] if self._is_cut else [self._wake_in, self._listener, *self._pairs]
            for ready in select.select(sources, [], [])[0]:
                if ready is self._wake_in:
                    ready.recv(64)
                elif ready is self._listener:
                    self._accept()
                elif ready in self._pairs:
                    self._pass(ready)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self.port))
        except OSError:
            near.close()
            return
        self._pairs[near], self._pairs[far] = far, near

    def _pass(self, source: socket.socket) -> None:
        target = self._pairs[source]
        with contextlib.suppress(OSError):
            data = source.recv(65536)
            if data:
                if source.getsockname()[1] == self.listens:
                    self.heard.append(data)
                target.sendall(data)
                return
        for end in (source, target):
            self._pairs.pop(end, None)
            end.close()

    def _forget(self) -> None:
        for end in list(self._pairs):
            end.close()
        self._pairs.clear()


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Make a cluster in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="rt-hubs-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder))
        try:
            yield made
        finally:
            made.close()


def knock_at(
    context: zmq.Context[zmq.Socket[bytes]], door: Door, keys: Keys | None, server: str | None = None
) -> zmq.Socket[bytes]:
    """Connect to a door, once, as a hub with these keys does; ``server``: by another key than the door's."""
    made = context.socket(zmq.DEALER)
    made.linger = 0
    made.reconnect_ivl = -1
    if keys is not None:
        made.curve_serverkey = (door.key if server is None else server).encode()
        made.curve_publickey, made.curve_secretkey = keys.public, keys.secret
    made.connect(f"tcp://127.0.0.1:{door.port}")
    return made
