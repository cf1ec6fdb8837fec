from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
import zmq
from hub_cluster import Cluster, Node, cluster, knock_at

from ranktop.agent import hub_door
from ranktop.agent.hub_door import Keys
from ranktop.wire.codec import decode_batch, encode_ask, encode_body, encode_header
from ranktop.wire.nodes import Door, Doors
from ranktop.wire.schema import Ask, Batch, Header, Sample

GREETING = b"\xff" + b"\0" * 7 + b"\x01\x7f\x03\0" + b"CURVE".ljust(20, b"\0") + b"\0" * 32
"""Of ZMTP 3.0 (rfc.zeromq.org/spec/23) with CURVE, as a client."""


@pytest.fixture
def lab() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


class Stranger:
    """Somebody on the network who knows where the door is, and its public key."""

    def __init__(self, lab: Cluster, node: Node) -> None:
        self.lab, self.node = lab, node
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.keys = Keys.new()
        assert node.door is not None
        self.door = node.door

    def knocks(self, keys: Keys | None, server: str | None = None) -> zmq.Socket[bytes]:
        return knock_at(self.context, self.door, keys, server)

    def asks(self, knocker: zmq.Socket[bytes], data: bytes = encode_ask(Ask(wait=0))) -> None:
        knocker.send(data)

    def raw(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.door.port))
        connection.settimeout(10)
        connection.sendall(data)
        return connection


@pytest.fixture
def node(lab: Cluster) -> Node:
    return lab.first_node()


@pytest.fixture
def stranger(lab: Cluster, node: Node) -> Iterator[Stranger]:
    made = Stranger(lab, node)
    yield made
    made.context.destroy(linger=0)


def admit(node: Node, *keys: Keys) -> None:
    doors = tuple(
        Door(node_rank=1 + i, addresses=("127.0.0.1",), port=9, key=key.public.decode(), hub=f"h{i}", job_id="n1")
        for i, key in enumerate(keys)
    )
    node.introduce(doors)


def answered(lab: Cluster, knocker: zmq.Socket[bytes]) -> Batch:
    lab.until(lambda: knocker.poll(0))
    return decode_batch(knocker.recv())


def refused(lab: Cluster, node: Node, knock: Callable[[], object]) -> None:
    """See that a knock is counted, that it gets no answer, and that ranks and viewers notice nothing."""
    before = node.hub.state.refused
    knocker = knock()
    lab.until(lambda: node.hub.state.refused > before)
    if isinstance(knocker, zmq.Socket):
        assert not knocker.poll(50)
    assert node.send("sample", 0, encode_body(Sample(rank=0, step=9))).hub == node.hub.state.hub


def test_a_hub_with_a_key_from_the_jobs_store_is_told_of_this_nodes_ranks(
    lab: Cluster, node: Node, stranger: Stranger
) -> None:
    admit(node, stranger.keys)
    knocker = stranger.knocks(stranger.keys)
    stranger.asks(knocker)
    batch = answered(lab, knocker)
    assert batch.snapshot
    assert batch.hub == node.hub.state.hub
    assert len(batch.items) == 2 * 5
    assert node.hub.state.refused == 0


def test_who_has_no_key_of_the_job_is_turned_away(
    lab: Cluster, node: Node, stranger: Stranger, capfd: pytest.CaptureFixture[str]
) -> None:
    admit(node, Keys.new())

    def with_own_key() -> zmq.Socket[bytes]:
        knocker = stranger.knocks(stranger.keys)
        stranger.asks(knocker)
        return knocker

    def for_another_door() -> zmq.Socket[bytes]:
        knocker = stranger.knocks(stranger.keys, Keys.new().public.decode())
        stranger.asks(knocker)
        return knocker

    def without_key() -> zmq.Socket[bytes]:
        knocker = stranger.knocks(None)
        stranger.asks(knocker)
        return knocker

    for knock in (with_own_key, for_another_door, without_key):
        refused(lab, node, knock)
    log = capfd.readouterr().err
    assert "connections turned away at the door so far: 1\n" in log
    assert stranger.door.key not in log


def test_a_key_is_good_only_from_the_time_on_that_it_is_in_the_store(
    lab: Cluster, node: Node, stranger: Stranger
) -> None:
    refused(lab, node, lambda: stranger.knocks(stranger.keys))
    admit(node, stranger.keys)
    knocker = stranger.knocks(stranger.keys)
    stranger.asks(knocker)
    assert answered(lab, knocker).snapshot


@pytest.mark.parametrize(
    "data",
    [
        random.Random(1).randbytes(2000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 300,
        GREETING + random.Random(2).randbytes(500),
        GREETING + b"\x06" + (2**30).to_bytes(8, "big") + b"x" * 5000,
        GREETING + b"\x02" + (2**63 - 1).to_bytes(8, "big") + b"x" * 5000,
    ],
    ids=["random", "http", "ones", "random after the greeting", "1 GiB command", "endless frame"],
)
def test_bytes_that_are_no_handshake_are_turned_away(lab: Cluster, node: Node, stranger: Stranger, data: bytes) -> None:
    size = psutil.Process().memory_info().rss
    refused(lab, node, lambda: stranger.raw(data))
    assert psutil.Process().memory_info().rss - size < 50 * 2**20


def test_who_says_nothing_is_turned_away_after_a_while(lab: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_door, "HANDSHAKE", 0.5)
    node = lab.node(0)
    node.introduce(())
    stranger = Stranger(lab, node)
    connection = stranger.raw(b"")
    before = time.monotonic()
    lab.until(lambda: node.hub.state.refused == 1)
    assert connection.recv(1000)[:1] == b"\xff"
    assert time.monotonic() - before < 6
    stranger.context.destroy(linger=0)


def test_a_session_that_was_overheard_cannot_be_played_again(lab: Cluster) -> None:
    nodes = [lab.node(0), lab.node(1)]
    for node in nodes:
        node.train(range(3))
    lab.meet()
    lab.until(lambda: len(nodes[0].hub.state.ranks) == 4)
    wire = nodes[1].wire
    assert wire is not None
    heard = b"".join(wire.heard)
    assert len(heard) > 600, "greeting, handshake and questions of the first node's hub"
    eavesdropper = Stranger(lab, nodes[1])
    try:
        refused(lab, nodes[1], lambda: eavesdropper.raw(heard))
        connection = eavesdropper.raw(heard[:64])
        connection.sendall(heard[64:])
        lab.until(lambda: nodes[1].hub.state.refused >= 2)
    finally:
        eavesdropper.context.destroy(linger=0)


@pytest.mark.parametrize("size", [5000, 3 * 2**20])
def test_the_door_takes_short_questions_only(lab: Cluster, node: Node, stranger: Stranger, size: int) -> None:
    admit(node, stranger.keys)
    knocker = stranger.knocks(stranger.keys)
    stranger.asks(knocker)
    answered(lab, knocker)
    stranger.asks(knocker, b"x" * size)
    lab.until(lambda: not established(stranger.door.port))


def test_nobody_can_say_anything_through_the_door(lab: Cluster, node: Node, stranger: Stranger) -> None:
    admit(node, stranger.keys)
    knocker = stranger.knocks(stranger.keys)
    word = Doors(node_rank=0, nodes=9, addresses=("127.0.0.1",))
    for kind, body in (("doors", encode_body(word)), ("sample", encode_body(Sample(rank=0, step=99)))):
        before = node.hub.state.refused
        knocker.send_multipart((encode_header(Header(kind, 0, os.getpid(), 0, 99)), body))
        lab.until(lambda before=before: node.hub.state.refused > before)  # type: ignore[misc]
    assert node.hub.state.ranks[0].step == 2
    stranger.asks(knocker)
    assert answered(lab, knocker).refused == 2


def test_doors_are_taken_from_agents_only(lab: Cluster, node: Node) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        visitor = context.socket(zmq.DEALER)
        visitor.connect(f"ipc://{node.directory}/viewers.sock")
        word = encode_body(Doors(node_rank=0, doors=()))
        visitor.send_multipart((encode_header(Header("doors", 0, os.getpid(), 0, 0)), word))
        lab.until(lambda: node.hub.state.refused == 1)
    finally:
        context.destroy(linger=0)


def test_a_crowd_at_the_door_disturbs_nobody(lab: Cluster, node: Node, stranger: Stranger) -> None:
    admit(node, stranger.keys)
    knocker = stranger.knocks(stranger.keys)
    stranger.asks(knocker)
    answered(lab, knocker)
    crowd = [stranger.raw(b"\xff") for _ in range(300)]
    began = time.monotonic()
    assert node.send("sample", 0, encode_body(Sample(rank=0, step=9))).seq >= 0
    assert time.monotonic() - began < 1.0
    stranger.asks(knocker)
    answered(lab, knocker)  # who is in stays in
    for connection in crowd:
        connection.close()
    lab.until(lambda: node.hub.state.refused == 300)


def test_too_large_a_crowd_shuts_the_door_for_a_while(lab: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_door, "MOST_KNOCKING", 100)
    node = lab.node(0)
    node.train(range(3))
    node.introduce(())
    stranger = Stranger(lab, node)
    admit(node, stranger.keys)
    crowd = [stranger.raw(b"\xff") for _ in range(101)]
    lab.until(lambda: node.hub.state.refused == 101)
    assert node.send("sample", 0, encode_body(Sample(rank=0, step=9))).seq >= 0
    lab.until(lambda: not listening(stranger.door.port))
    lab.skipped += 6
    lab.turn()
    knocker = stranger.knocks(stranger.keys)
    stranger.asks(knocker)
    assert answered(lab, knocker).snapshot
    for connection in crowd:
        connection.close()
    stranger.context.destroy(linger=0)


@pytest.mark.parametrize(
    ("bind", "port", "problem"),
    [("nowhere at all", "", "is no list of addresses"), ("", "70000", "is neither a port nor a range")],
)
def test_a_place_that_cannot_be_is_told_in_the_log_and_the_hub_goes_on(
    lab: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], bind: str, port: str, problem: str
) -> None:
    monkeypatch.setenv("RANKTOP_HUB_BIND", bind)
    monkeypatch.setenv("RANKTOP_HUB_PORT", port)
    node = lab.node(0)
    node.train(range(2))
    ack = node.send("doors", 0, encode_body(Doors(node_rank=0, addresses=("127.0.0.1",))))
    assert ack.door is None
    assert ack.hub == node.hub.state.hub
    assert problem in capfd.readouterr().err


def test_the_port_may_be_chosen_from_a_range(lab: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("RANKTOP_HUB_PORT", f"{port}-{min(port + 20, 65535)}")
        monkeypatch.setenv("RANKTOP_HUB_BIND", "127.0.0.1")
        door = lab.node(0).introduce(())
    assert port < door.port <= port + 20
    assert door.addresses == ("127.0.0.1",)


def listening(port: int) -> bool:
    connections = psutil.Process().net_connections("tcp")
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def established(port: int) -> list[object]:
    connections = psutil.Process().net_connections("tcp")
    return [c for c in connections if c.status == psutil.CONN_ESTABLISHED and c.laddr.port == port]
