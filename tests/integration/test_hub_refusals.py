"""Bytes that no agent or viewer of ours would send: refused, counted, and the hub goes on."""

from __future__ import annotations

import os
import random
import struct

import psutil
import pytest
from hub_harness import JOB, Node, OtherHub, card, hubs, pump, sample, until

from ranktop.agent import publisher as publisher_module
from ranktop.tui.session.receiver import HubSource
from ranktop.wire import codec
from ranktop.wire.endpoints import AGENTS_SOCKET, VIEWERS_SOCKET
from ranktop.wire.schema import (
    MAX_MESSAGE,
    SCHEMA_VERSION,
    Ack,
    Ask,
    Batch,
    Card,
    Header,
    Mark,
    Sample,
)


def of_version(frame: bytes, version: int) -> bytes:
    """Return the frame as a ranktop of another schema version would send it."""
    return codec.MAGIC + struct.pack(">H", version) + frame[len(codec.PREFIX) :]


def refused(node: Node) -> int:
    """Ask the hub how many messages it has refused; that it answers shows that it is well."""
    raw = node.socket(VIEWERS_SOCKET)
    raw.send(codec.encode_ask(Ask(wait=0)))
    assert raw.poll(10_000), "the hub does not answer"
    return codec.decode_batch(raw.recv()).refused


def junk(seed: int) -> list[list[bytes]]:
    """Messages of random bytes, of damaged frames, and of the wrong number of frames."""
    choice = random.Random(seed)
    head = codec.encode_header(Header("sample", 0, os.getpid(), 0, 1))
    body = codec.encode_body(sample(1))
    made = [[choice.randbytes(choice.randrange(1, 200)) for _ in range(choice.randrange(1, 4))] for _ in range(50)]
    made += [[head[: choice.randrange(len(head))], body] for _ in range(20)]
    made += [[head, body[: choice.randrange(len(body))]] for _ in range(20)]
    made += [[head], [body], [head, body, body], [b""], [b"", b""], [head, b""], [codec.PREFIX]]
    made += [[head, b"\x81\xa4rank" + b"\x91" * 100_000], [head, body + bytes(MAX_MESSAGE)]]
    return made


def test_junk_for_agents_socket_is_counted_and_harms_nobody(node: Node) -> None:
    publisher = node.connected()
    raw = node.socket(AGENTS_SOCKET)
    messages = junk(1)
    for message in messages:
        raw.send_multipart(message)
    until(lambda: refused(node) == len(messages))
    publisher.send(sample(7))
    node.viewer().wait_for(lambda body: isinstance(body, Sample) and body.step == 7)
    watcher = node.viewer()
    watcher.wait_for(lambda body: isinstance(body, Sample))
    assert watcher.source.link().bad == len(messages)
    log = (node.directory / "hub.log").read_text()
    assert "Traceback" not in log
    assert len(log) < 2000


def test_junk_for_viewers_socket_is_counted_and_harms_nobody(node: Node) -> None:
    node.connected()
    raw = node.socket(VIEWERS_SOCKET)
    # A damaged Ask can still be one: what is sent here is never a whole frame of ours.
    messages = [message for message in junk(2) if not message[0].startswith(codec.PREFIX)]
    for message in messages:
        raw.send_multipart(message)
    until(lambda: refused(node) == len(messages))
    node.viewer().wait_for(lambda body: isinstance(body, Card))
    assert "Traceback" not in (node.directory / "hub.log").read_text()


def test_frames_far_above_the_limit_are_cut_off_and_cost_no_memory(node: Node) -> None:
    publisher = node.connected()
    hub = psutil.Process(node.hub())
    before = hub.memory_info().rss
    raw = node.socket(AGENTS_SOCKET)
    for _ in range(3):
        raw.send(bytes(64 * 2**20))
    publisher.send(sample(3))
    node.viewer().wait_for(lambda body: isinstance(body, Sample))
    assert hub.memory_info().rss - before < 32 * 2**20


@pytest.mark.parametrize("wait", [1e308, -1.0, 0.0])
@pytest.mark.parametrize("since", [-(2**63), 2**63, 10**15])
def test_strange_questions_get_a_snapshot(node: Node, since: int, wait: float) -> None:
    node.connected()
    raw = node.socket(VIEWERS_SOCKET)
    raw.send(codec.encode_ask(Ask(hub="x" * 1000, since=since, wait=wait)))
    assert raw.poll(10_000)
    assert codec.decode_batch(raw.recv()).snapshot


def test_viewer_that_asks_without_reading_is_bounded(node: Node) -> None:
    publisher = node.connected()
    for step in range(200):
        publisher.send(sample(step, padding=20_000))
        publisher.pump()
    until(lambda: not pump(publisher)._queue)
    hub = psutil.Process(node.hub())
    node.viewer().wait_for(lambda body: isinstance(body, Sample) and body.step == 199)
    hub_id = codec.decode_batch(ask_once(node)).hub
    before = hub.memory_info().rss
    raw = node.socket(VIEWERS_SOCKET)
    raw.rcvhwm = 1
    for _ in range(300):
        raw.send(codec.encode_ask(Ask(hub=hub_id, since=0)))  # each answer has about 1 MiB
    assert refused(node) == 0
    assert hub.memory_info().rss - before < 40 * 2**20


def ask_once(node: Node) -> bytes:
    raw = node.socket(VIEWERS_SOCKET)
    raw.send(codec.encode_ask(Ask(wait=0)))
    assert raw.poll(10_000)
    return raw.recv()


@pytest.mark.parametrize(
    ("version", "older"), [(SCHEMA_VERSION - 1, "the agent is older"), (SCHEMA_VERSION + 1, "the hub is older")]
)
def test_agent_of_another_version_is_named_once(node: Node, version: int, older: str) -> None:
    node.connected()
    raw = node.socket(AGENTS_SOCKET)
    head = of_version(codec.encode_header(Header("card", 1, os.getpid(), 0, 0)), version)
    for _ in range(20):
        raw.send_multipart([head, codec.encode_body(card(1))])
    until(lambda: refused(node) == 20)
    assert isinstance(codec.decode_ack(raw.recv()), Ack)  # so that the agent learns the hub's version
    watcher = node.viewer()
    watcher.wait_for(lambda body: isinstance(body, Card))
    (mark,) = watcher.bodies(Mark)
    assert mark.what == "refused"
    assert older in mark.detail
    assert f"schema {version}" in mark.detail
    assert [body.rank for body in watcher.bodies(Card)] == [0]


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_viewer_of_another_version_gets_an_answer_that_tells_the_hubs(node: Node, version: int) -> None:
    node.connected()
    raw = node.socket(VIEWERS_SOCKET)
    raw.send(of_version(codec.encode_ask(Ask()), version))
    assert raw.poll(10_000)
    answer = codec.decode_batch(raw.recv())
    assert answer.items == ()


@pytest.mark.parametrize(
    ("version", "words"),
    [(SCHEMA_VERSION - 1, "the other side is older"), (SCHEMA_VERSION + 1, "this side is older")],
)
def test_agent_and_viewer_say_who_is_older_to_a_hub_of_another_version(
    node: Node, monkeypatch: pytest.MonkeyPatch, version: int, words: str
) -> None:
    started: list[object] = []
    monkeypatch.setattr(publisher_module, "ensure_hub", lambda *_: started.append(1))
    monkeypatch.setattr(publisher_module, "HUB_SILENCE", 0.2)
    agents = OtherHub(node, AGENTS_SOCKET, lambda: of_version(codec.encode_ack(Ack(hub="h")), version))
    batch = codec.encode_batch(Batch(hub="h", job=JOB, now=0.0, snapshot=True, last=0))
    viewers = OtherHub(node, VIEWERS_SOCKET, lambda: of_version(batch, version))
    try:
        publisher = node.publisher()
        publisher.send(card())
        until(lambda: words in pump(publisher).problem)
        assert not publisher.connected
        source = HubSource(node.directory)
        until(lambda: source.poll(0.05) and source.drain() == [] and source.link().state == "lost")
        assert words in source.link().detail
        source.close()
        assert len(started) == 1  # only at first: a hub that answers needs no successor
    finally:
        agents.close()
        viewers.close()


def test_viewer_survives_a_hub_that_answers_junk(node: Node) -> None:
    answers = iter([b"", b"rtop", os.urandom(100), codec.PREFIX + b"\xc1", codec.PREFIX + b"\x91" * 50_000])
    good = Batch(hub="h", job=JOB, now=1.0, snapshot=True, last=4, items=())
    hub = OtherHub(node, VIEWERS_SOCKET, lambda: next(answers, codec.encode_batch(good)))
    try:
        source = HubSource(node.directory)
        until(lambda: source.poll(0.05) and bool(source.drain()))
        assert source.link().bad == 5
        assert source.link().state == "live"
        source.close()
    finally:
        hub.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
def test_agent_and_viewer_refuse_a_directory_of_another_user(node: Node) -> None:
    node.directory.mkdir(parents=True)
    node.directory.parent.chmod(0o700)
    os.chown(node.directory, 1, 1)
    publisher = node.publisher()
    publisher.send(card())
    publisher.pump()
    assert "belongs to user daemon: refused" in publisher.problem
    assert publisher._socket is None  # nothing is sent to whoever listens there
    assert not hubs(node.directory)
    source = HubSource(node.directory)
    assert source.drain() == []
    assert source.link().state == "lost"
    assert "belongs to user daemon: refused" in source.link().detail
    source.close()


def test_agent_goes_on_without_a_directory(node: Node) -> None:
    node.directory.parent.mkdir(mode=0o755)
    node.directory.parent.chmod(0o755)
    publisher = node.publisher()
    for step in range(1000):
        publisher.send(sample(step))
        publisher.pump()
    assert "chmod 700" in publisher.problem
    publisher.close(0)
    assert publisher.dropped == 1000
