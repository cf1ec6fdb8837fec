"""Counts of a real hub process and of a hub's sockets: descriptors and threads by ranks, readings by message."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import zmq
from hub_harness import JOB, Node, card, hubs, sample, until

from ranktop.agent.hub_server import HubServer
from ranktop.wire.codec import decode_ack, encode_body, encode_header
from ranktop.wire.endpoints import AGENTS_SOCKET, secure_directory
from ranktop.wire.schema import Header


def connect(node: Node, ranks: range) -> list[zmq.Socket[bytes]]:
    """Have ranks of this very process say their cards, and wait until the hub has answered each."""
    sockets = []
    for rank in ranks:
        socket = node.socket(AGENTS_SOCKET)
        head = encode_header(Header("card", rank, os.getpid(), 0, 0))
        socket.send_multipart((head, encode_body(card(rank))))
        assert socket.poll(15_000)
        assert decode_ack(socket.recv()).seq == 0
        sockets.append(socket)
    return sockets


def test_a_rank_takes_one_descriptor_of_the_hub_and_no_thread(node: Node) -> None:
    node.connected(0)
    (pid,) = hubs(node.directory)
    counts, kept = [], []
    for ranks in (range(1, 9), range(9, 25), range(25, 41)):
        kept += connect(node, ranks)
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        counts.append((descriptors, len(list(Path(f"/proc/{pid}/task").iterdir()))))
    assert len(kept) == 40
    # The process of them all is watched by one more, which was there before the first was counted.
    assert [later[0] - former[0] for former, later in pairwise(counts)] == [16, 16]
    assert counts[0][1] == counts[1][1] == counts[2][1] <= 4


class Counted:
    """A socket that counts what is asked of it."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self.reads = self.sends = 0
        self._within = False
        """Whether the frames of a message are being read."""

    def recv(self, *how: Any, **copied: Any) -> Any:
        if not self._within:
            self.reads += 1
        frame = self._socket.recv(*how, **copied)
        self._within = frame.more
        return frame

    def send(self, *what: Any) -> None:
        self.sends += 1
        self._socket.send(*what)


def test_a_hub_that_is_behind_reads_once_a_message_and_answers_once_a_rank(tmp_path: Path) -> None:
    directory = tmp_path / JOB.id
    secure_directory(directory)
    hub = HubServer(directory, JOB, 0.0, signals=False)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        ranks = {rank: context.socket(zmq.DEALER) for rank in range(8)}
        for rank, socket in ranks.items():
            socket.connect(f"ipc://{directory / AGENTS_SOCKET}")
            for seq in range(50):
                body = encode_body(sample(seq, rank))
                socket.send_multipart((encode_header(Header("sample", rank, os.getpid(), 0, seq)), body))

        def turned() -> bool:
            hub.turn(0.01)
            return hub.state.stream.last >= 8 * 50 - 1

        until(turned)
        for rank, socket in ranks.items():
            for seq in range(50, 100):
                body = encode_body(sample(seq, rank))
                socket.send_multipart((encode_header(Header("sample", rank, os.getpid(), 0, seq)), body))
        counted = Counted(hub._agents)
        turns = 0

        def turn() -> bool:
            nonlocal turns
            ready = hub._agents.poll(10)
            before = hub.state.stream.last
            hub._agents, real = counted, hub._agents  # type: ignore[assignment]
            try:
                if ready:
                    turns += 1
                    hub._read_agents()
            finally:
                hub._agents = real
            return before == hub.state.stream.last == 8 * 100 - 1

        until(turn)
        assert counted.reads == 8 * 50 + turns
        # Two frames an answer, and one answer a rank in each turn, however many messages it has sent.
        assert counted.sends <= 2 * 8 * turns
    finally:
        context.destroy(linger=0)
        hub.close()
