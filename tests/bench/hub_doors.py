"""Many nodes' hubs in one process, as the hub of a job's first node sees them: doors that answer for a few ranks each.

As a script: ``hub_doors.py JSON``. It prints its doors, takes the key of the hub that may ask, says that it is ready,
and has its ranks speak once a second until its input ends. Doors, keys, batches and streams are those of real hubs;
their own nodes' sockets are left out.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
import zmq
from bench.hub_load import Tape
from bench.simulated import DEVICE_EVERY, SimulatedJob, raise_file_limit

from ranktop.agent.hub_door import HubDoor, Keys
from ranktop.agent.hub_state import HubState
from ranktop.wire.codec import encode_body, encode_header
from ranktop.wire.nodes import Door
from ranktop.wire.schema import Card, Device, Header, Sample

_TICK = 0.02


class Node:
    """What one node's hub knows, and its door."""

    def __init__(self, number: int, job: SimulatedJob, ranks: range) -> None:
        self.ranks = ranks
        self.state = HubState(job.job, f"hub{number}", time.monotonic())
        self.state.part()
        self._number = number
        self._keys = Keys.new()
        # One each, as the question who may connect goes to the whole context.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._door = HubDoor(context, self._keys, self.state)
        self._door.open(["127.0.0.1"], (0,))
        self._seq = dict.fromkeys(ranks, 0)

    def door(self) -> Door:
        """Return where it is to be found."""
        return Door(
            node_rank=self._number, host=f"node{self._number}", addresses=("127.0.0.1",), port=self._door.port,
            key=self._keys.public.decode(), hub=self.state.hub, job_id=self.state.job.id,
        )  # fmt: skip

    def admit(self, key: str) -> None:
        """Let the first node's hub in."""
        self._door.admit([key])

    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        """Return what wakes it."""
        return self._door.sockets()

    def turn(self, now: float) -> None:
        """Answer."""
        self._door.turn(now)

    def say(self, rank: int, body: Card | Sample | Device) -> None:
        """Take a message of one of its ranks."""
        header = Header(type(body).__name__.lower(), rank, 1000 + rank, 0, self._seq[rank])
        self._seq[rank] += 1
        self.state.accept(time.monotonic(), encode_header(header), encode_body(body))

    @property
    def said(self) -> int:
        """Messages so far."""
        return sum(self._seq.values())


def serve(nodes: list[Node], job: SimulatedJob, stop: threading.Event) -> None:
    """Have every rank speak once a second, each at its own time, and answer what is asked."""
    tape = Tape(job)
    poller = zmq.Poller()
    of: dict[Any, Node] = {}
    for node in nodes:
        for socket in node.sockets():
            poller.register(socket, zmq.POLLIN)
            of[socket] = node
    order = sorted(
        ((rank * 0.6180339887 % 1.0, node, rank) for node in nodes for rank in node.ranks), key=lambda x: x[0]
    )
    began = time.monotonic()
    said = 0
    while not stop.is_set():
        elapsed = time.monotonic() - began
        spoken = set()
        while said < elapsed * len(order):
            _, node, rank = order[said % len(order)]
            turn = said // len(order)
            node.say(rank, tape.sample(rank, elapsed, 1.0))
            if (turn + rank) % DEVICE_EVERY == 0:
                node.say(rank, tape.device(rank))
            spoken.add(node)
            said += 1
        asked = {of[socket] for socket, _ in poller.poll(0)}
        now = time.monotonic()
        for node in spoken | asked:
            node.turn(now)
        stop.wait(max(0.0, began + elapsed + _TICK - time.monotonic()))


def main(order: dict[str, Any]) -> None:
    """Tell of the doors, wait for the key, and serve until a line comes in."""
    raise_file_limit()
    job = SimulatedJob(order["ranks"])
    each = order["each"]
    nodes = [
        Node(n, job, range(n * each, (n + 1) * each)) for n in range(order["first"], order["first"] + order["count"])
    ]
    for node in nodes:
        for rank in node.ranks:
            node.say(rank, job.card(rank, 1000 + rank))
    print(msgspec.json.encode([node.door() for node in nodes]).decode(), flush=True)
    key = sys.stdin.readline().strip()
    for node in nodes:
        node.admit(key)
    stop = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print("ready", flush=True)
    serve(nodes, job, stop)
    print(json.dumps({"said": sum(node.said for node in nodes)}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
