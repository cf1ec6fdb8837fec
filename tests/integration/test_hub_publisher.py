"""What a publisher keeps and what it drops while nobody reads, and that it never lets an error out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hub_harness import JOB, Node, OtherHub, card, fresh_node, pump, sample, until

from ranktop.agent import publisher as publisher_module
from ranktop.agent.publisher import QUEUE_MESSAGES
from ranktop.budget.terms import Memory
from ranktop.wire import codec
from ranktop.wire.endpoints import AGENTS_SOCKET, RunDirectoryError, secure_directory
from ranktop.wire.schema import Ack, Card, End, Sample


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with fresh_node(monkeypatch) as made:
        secure_directory(made.directory.parent)
        secure_directory(made.directory)
        yield made


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times at which a publisher would have started a hub."""
    times: list[float] = []
    monkeypatch.setattr(publisher_module, "ensure_hub", lambda *_: times.append(time.monotonic()))
    return times


def ack(*, want_card: bool = False, seq: int = -1) -> bytes:
    return codec.encode_ack(Ack(hub="h", want_card=want_card, seq=seq))


@pytest.mark.usefixtures("starts")
def test_oldest_samples_go_and_the_newest_card_and_the_end_stay(node: Node) -> None:
    publisher = node.publisher()
    for step in range(1000):
        publisher.send(sample(step))
        if step in (500, 900):
            publisher.send(Card(job=JOB, rank=0, revision=step))
    publisher.send(End(rank=0, how="exit", code=0))
    assert len(publisher._queue) == QUEUE_MESSAGES
    hub = OtherHub(node, AGENTS_SOCKET, lambda: ack(seq=codec.decode_header(hub.messages[-1][0]).seq))
    try:
        until(lambda: not pump(publisher)._queue)
        publisher.close(5)
        heads = [codec.decode_header(head) for head, _ in hub.messages]
        bodies = [codec.decode_body(head, body) for head, (_, body) in zip(heads, hub.messages, strict=True)]
        assert len(bodies) == 1003 - publisher.dropped - 1  # the older card was replaced, not dropped
        numbers = [head.seq for head in heads]
        assert numbers == sorted(set(numbers))
        assert [body.revision for body in bodies if isinstance(body, Card)] == [900]
        assert isinstance(bodies[-1], End)
        steps = [body.step for body in bodies if isinstance(body, Sample)]
        assert steps[-QUEUE_MESSAGES + 2 :] == list(range(1000 - QUEUE_MESSAGES + 2, 1000))
    finally:
        hub.close()


@pytest.mark.usefixtures("starts")
def test_what_cannot_be_sent_is_counted_and_nothing_is_raised(node: Node) -> None:
    publisher = node.publisher()
    publisher.send(Sample(rank=0, now=Memory(total=2**70)))
    publisher.send(sample(1, padding=5 * 2**20))
    assert publisher.dropped == 2
    assert "too large" in publisher.problem
    publisher.send(sample(2))
    hub = OtherHub(node, AGENTS_SOCKET, ack)
    try:
        until(lambda: pump(publisher).connected)
        (message,) = hub.messages
        assert codec.decode_header(message[0]).seq == 2  # the gap shows what was lost
    finally:
        hub.close()


def test_hub_is_started_at_first_and_when_it_falls_silent_less_and_less_often(
    node: Node, starts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "HUB_SILENCE", 0.05)
    publisher = node.publisher()
    publisher._retry = 0.05
    publisher.pump()
    assert len(starts) == 1
    publisher.send(sample(0))
    until(lambda: pump(publisher) and len(starts) == 4)
    pauses = [late - early for early, late in pairwise(starts)]
    assert pauses[0] >= 0.05
    assert pauses[1] >= 0.1
    assert pauses[2] >= 0.2


@pytest.mark.usefixtures("starts")
def test_card_is_sent_again_to_a_hub_that_wants_it_and_not_in_circles(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_CARD_SPACING", 1000.0)
    publisher = node.publisher()
    publisher.send(card())
    hub = OtherHub(node, AGENTS_SOCKET, lambda: ack(want_card=True))
    try:
        for step in range(20):
            publisher.send(sample(step))
            until(lambda: pump(publisher)._waiting_since is None)
        assert len(cards_of(hub)) == 1
        publisher._card_sent_at -= 1000
        publisher.send(sample(20))
        until(lambda: pump(publisher) and len(cards_of(hub)) >= 2)
    finally:
        hub.close()


def cards_of(hub: OtherHub) -> list[list[bytes]]:
    return [message for message in hub.messages if codec.decode_header(message[0]).kind == "card"]


@pytest.mark.parametrize("error", [RunDirectoryError("chmod 700 x"), OSError("no more processes"), TypeError("x")])
def test_failure_to_start_a_hub_is_told_and_not_raised(
    node: Node, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(publisher_module, "ensure_hub", fail)
    publisher = node.publisher()
    publisher.send(sample(0))
    publisher.pump()
    assert publisher.problem == str(error)
    assert not publisher.connected


@pytest.mark.usefixtures("starts")
def test_close_waits_no_longer_than_it_may_and_twice_is_harmless(node: Node) -> None:
    publisher = node.publisher()
    publisher.send(sample(0))
    start = time.monotonic()
    publisher.close(0.1)
    publisher.close(0.1)
    publisher.send(sample(1))
    publisher.pump()
    assert 0.1 <= time.monotonic() - start < 2
    unused = node.publisher()
    unused.close()
