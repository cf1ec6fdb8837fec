"""The TCP port of a node's hub under attack, and where the secret keys of a job of several nodes are: nowhere."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq
from hub_cluster import Cluster, Node, cluster, knock_at
from zmq.utils import z85

from ranktop.agent import hub_door
from ranktop.agent.hub_door import Keys
from ranktop.agent.meeting import newest
from ranktop.wire.codec import decode_batch, encode_ask, encode_body
from ranktop.wire.nodes import Door, Doors, Nodes
from ranktop.wire.recording import Recording
from ranktop.wire.schema import Ask, Sample


@pytest.fixture
def lab() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def node(lab: Cluster) -> Node:
    return lab.first_node()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def of(number: int, keys: Keys, host: str = "") -> Door:
    return Door(
        node_rank=number, host=host, addresses=("127.0.0.1",), port=9, key=keys.public.decode(), hub=f"h{number}",
        job_id="n1",
    )  # fmt: skip


def knock(context: zmq.Context[zmq.Socket[bytes]], node: Node, keys: Keys) -> zmq.Socket[bytes]:
    assert node.door is not None
    knocking = knock_at(context, node.door, keys)
    knocking.send(encode_ask(Ask(wait=0)))
    return knocking


def serves(node: Node) -> bool:
    """Tell whether the hub serves its own ranks."""
    return node.send("sample", 0, encode_body(Sample(rank=0, step=9))).hub == node.hub.state.hub


@pytest.mark.parametrize("mechanism", [b"NULL", b"PLAIN", b"GSSAPI", b"CURVE", b"X" * 20])
def test_another_mechanism_of_zmtp_is_turned_away(lab: Cluster, node: Node, mechanism: bytes) -> None:
    assert node.door is not None
    hello = b"\x05HELLO\x01x\x01x" if mechanism == b"PLAIN" else b"\x05READY"
    with socket.create_connection(("127.0.0.1", node.door.port)) as connection:
        connection.sendall(b"\xff" + bytes(7) + b"\x01\x7f\x03\0" + mechanism.ljust(20, b"\0") + bytes(32))
        connection.sendall(b"\x04" + bytes([len(hello)]) + hello)
        lab.until(lambda: node.hub.state.refused == 1)
        connection.settimeout(5)
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(4096):
                heard += data
    assert len(heard) <= 64, "its greeting, and nothing else"
    assert serves(node)


def test_the_key_of_a_former_hub_is_good_no_longer(
    lab: Cluster, node: Node, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    former, present = Keys.new(), Keys.new()
    node.introduce((of(1, former),))
    knocker = knock(context, node, former)
    lab.until(lambda: knocker.poll(0))
    node.introduce((of(1, present),))
    late = knock(context, node, former)
    lab.until(lambda: node.hub.state.refused == 1)
    assert not late.poll(50)
    knocker = knock(context, node, present)
    lab.until(lambda: knocker.poll(0))
    batch = decode_batch(knocker.recv())
    assert batch.snapshot
    assert batch.refused == 0, "no message was lost: no viewer is told that one was"


def crowd(node: Node, count: int) -> None:
    """Come, say something that is no handshake, and go."""
    assert node.door is not None
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", node.door.port), 1) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")


def is_open(node: Node) -> bool:
    """Look without a connection, which would count."""
    assert node.door is not None
    sockets = psutil.Process().net_connections("tcp")
    return any(found.status == psutil.CONN_LISTEN and found.laddr.port == node.door.port for found in sockets)


def test_connections_that_come_and_go_without_end_shut_the_door_for_a_while(
    lab: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_door, "MOST_REFUSED", 20)
    crowd(node, 30)
    lab.until(lambda: not is_open(node))
    assert serves(node)
    lab.skipped += 6
    lab.until(lambda: is_open(node))


def test_a_key_of_the_job_opens_a_limited_number_of_connections(
    lab: Cluster, node: Node, context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_door, "MOST_LET_IN", 5)
    keys = Keys.new()
    node.introduce((of(1, keys),))
    knockers = [knock(context, node, keys) for _ in range(5)]
    lab.until(lambda: all(knocker.poll(0) for knocker in knockers))
    assert is_open(node)
    knockers.append(knock(context, node, keys))
    lab.until(lambda: not is_open(node))
    assert serves(node)
    lab.skipped += 6
    lab.until(lambda: is_open(node))
    knocker = knock(context, node, keys)
    lab.until(lambda: knocker.poll(0))


def test_a_flood_of_questions_from_a_node_of_the_job_holds_up_nobody(
    lab: Cluster, node: Node, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    keys = Keys.new()
    node.introduce((of(1, keys),))
    knocker = knock(context, node, keys)
    lab.until(lambda: knocker.poll(0))
    knocker.rcvhwm = 1
    sent = 0
    for step in range(20):
        while sent < 300 * (step + 1) and knocker.poll(0, zmq.POLLOUT):
            knocker.send(encode_ask(Ask(wait=0)), zmq.NOBLOCK)
            sent += 1
        ack = node.send("sample", 0, encode_body(Sample(rank=0, step=step)))
        assert ack.seq == node.hub.state.ranks[0].seq
    assert sent > 500
    assert len(node.hub.nodes._door.viewers) <= 1  # type: ignore[union-attr]


def test_doors_of_a_hostile_store_are_bounded_and_cleaned(lab: Cluster, node: Node) -> None:
    keys = Keys.new()
    node.introduce((of(1, keys, host="\x1b]0;x\x07evil\r\n" + "y" * 2**20), of(2, Keys.new(), host="\x1b[2J" * 2**18)))
    viewer = lab.watch(node)
    lab.until(lambda: 1 in viewer.links and viewer.links[1].host)
    assert viewer.links[1].host.startswith("evil yyy")
    for said in viewer.told:
        assert isinstance(said, Nodes)
        assert all(len(link.host) <= 256 and "\x1b" not in link.host + link.detail for link in said.nodes)


def test_lines_of_a_hostile_store_are_skipped() -> None:
    good = b'{"node_rank":1,"host":"b","addresses":["10.0.0.1"],"port":5,"key":"k","hub":"h1","job_id":"j"}'
    bad = [
        b"[" * 100_000, b"{", b"null", b"\xff", b'{"node_rank":1e400}', b'{"node_rank":99999,"hub":"x"}',
        b'{"node_rank":-1,"hub":"y"}', b'{"node_rank":2,"hub":"z","host":"' + b"x" * 2**20 + b'"}', b"",
    ]  # fmt: skip
    assert [door.hub for door in newest([*bad, good, *bad])] == ["h1"]


def places(secret: bytes, folder: Path, state: Path) -> list[str]:
    """Return where a secret key stands in files, and in what recordings unpack to."""
    wanted = (secret, z85.decode(secret), secret.hex().encode(), z85.decode(secret).hex().encode())
    found = []
    for path in (*folder.rglob("*"), *state.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".ranktop":
                with Recording.open(path) as recording:
                    data += b"".join(item.header + item.body for item in recording.items(-1.0, 1e12))
            found += [str(path)] * any(key in data for key in wanted)
    return found


def test_secret_keys_are_nowhere(lab: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    nodes = [lab.node(0), lab.node(1)]
    for node in nodes:
        node.train(range(3))
    lab.meet()
    viewers = [lab.watch(node) for node in nodes]
    lab.until(lambda: all(viewer.states().count("linked") == 1 for viewer in viewers))
    for node in nodes:
        assert node.hub.recorder is not None
        node.hub.recorder.turn()
    log = "".join(capfd.readouterr())
    assert "port" in log
    state = Path(os.environ["RANKTOP_STATE_DIR"])
    assert len(list(state.glob("*.ranktop"))) == 2
    for node in nodes:
        keys = node.hub.nodes._keys
        assert zmq.curve_public(keys.secret) == keys.public, "it is the secret one that is looked for"
        assert places(keys.secret, lab.folder, state) == []
        said = [str(event) for viewer in viewers for event in viewer.events]
        said += [log, repr(keys), repr(node.door), str(dict(os.environ)), str([n.wire and n.wire.heard for n in nodes])]
        assert not [text for text in said if keys.secret.decode() in text]
        assert not [n for n in nodes if n.wire and z85.decode(keys.secret) in b"".join(n.wire.heard)]
        assert isinstance(node.door, Door)
        assert not places(keys.public, lab.folder, state), "not even the public one is kept"


def test_what_a_door_tells_of_other_doors_is_nothing(
    lab: Cluster, node: Node, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    keys = Keys.new()
    node.introduce((of(1, keys, host="somewhere"),))
    knocker = knock(context, node, keys)
    lab.until(lambda: knocker.poll(0))
    batch = decode_batch(knocker.recv())
    assert not [item for item in batch.items if b"somewhere" in item.body or keys.public in item.body]
    assert encode_body(Doors(node_rank=0)) not in [item.body for item in batch.items]
