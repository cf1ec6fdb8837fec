"""The viewer's side: ages, cut-off snapshots and lost messages, against a hub that the test controls."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hub_harness import JOB, Node, OtherHub, sample, until

from ranktop.tui.session import receiver as receiver_module
from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Received, Reset, Whole
from ranktop.wire import codec
from ranktop.wire.endpoints import VIEWERS_SOCKET
from ranktop.wire.schema import Batch, Header, Item


def item(number: int, t: float, body: bytes | None = None) -> Item:
    head = codec.encode_header(Header("sample", 0, 1, 0, number))
    return Item(number, t, head, codec.encode_body(sample(number)) if body is None else body)


def batch(now: float, *items: Item, hub: str = "h", snapshot: bool = False, last: int = 0, lost: int = 0) -> bytes:
    return codec.encode_batch(Batch(hub=hub, job=JOB, now=now, snapshot=snapshot, last=last, items=items, lost=lost))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def drain(source: HubSource) -> list[Received | Reset | Whole]:
    return until(lambda: source.drain() if source.poll(0.05) else [])


def test_age_counts_the_time_a_batch_lay_unread(node: Node) -> None:
    clock = Clock()
    read_first, read_second = threading.Event(), threading.Event()

    def answers() -> Iterator[bytes]:
        yield batch(100.0, item(0, 99.5), snapshot=True)
        read_first.wait(15)
        yield batch(101.0, item(1, 101.0), last=1)
        read_second.wait(15)
        while True:
            yield batch(130.0, last=1)

    hub = OtherHub(node, VIEWERS_SOCKET, answers().__next__)
    source = HubSource(node.directory, clock=clock)
    try:
        reset, first = drain(source)
        assert isinstance(reset, Reset)
        assert isinstance(first, Received)
        assert first.age == pytest.approx(0.5)
        read_first.set()
        clock.now = 2.5  # the second batch was made after 1 s, and read after 2.5 s
        (second,) = drain(source)
        assert isinstance(second, Received)
        assert second.age == pytest.approx(1.5)
        assert source.link().age == 0.0
    finally:
        read_first.set()
        read_second.set()
        source.close()
        hub.close()


def test_a_viewer_that_is_behind_catches_up_in_one_drain(node: Node) -> None:
    """Each answer holds a part of what there is; one a drain would never be enough for a busy viewer."""
    numbers = iter(range(1000))

    def answer() -> bytes:
        number = next(numbers)
        age = max(0.0, 9.0 - number)
        return batch(100.0, item(number, 100.0 - age), snapshot=number == 0, last=number)

    hub = OtherHub(node, VIEWERS_SOCKET, answer)
    source = HubSource(node.directory)
    try:
        # The snapshot, then nine old samples, the ninth of which is new enough; on a busy machine a few drains.
        drains = [drain(source)]
        while len([one for out in drains for one in out if isinstance(one, Received)]) < 10:
            drains.append(drain(source))
        assert max(len(out) for out in drains) >= 4
    finally:
        source.close()
        hub.close()


def test_the_end_of_a_snapshot_in_parts_is_told(node: Node) -> None:
    first = batch(1.0, item(0, 1.0), snapshot=True, last=-1)
    parts = iter([first, batch(1.0, item(1, 1.0), last=-1), batch(1.0, item(2, 1.0), last=2)])
    hub = OtherHub(node, VIEWERS_SOCKET, lambda: next(parts, batch(1.0, last=2)))
    source = HubSource(node.directory)
    try:
        events: list[Received | Reset | Whole] = []
        while not any(isinstance(one, Whole) for one in events):
            events += drain(source)
        assert isinstance(events[0], Reset)
        assert events[0].parts
        assert [type(one) for one in events[1:]] == [Received, Received, Received, Whole]
    finally:
        source.close()
        hub.close()


def test_unreadable_items_are_counted_and_the_rest_is_shown(node: Node) -> None:
    answers = iter([batch(1.0, item(0, 1.0), item(1, 1.0, b"\xc1"), item(2, 1.0), snapshot=True, last=2, lost=7)])
    hub = OtherHub(node, VIEWERS_SOCKET, lambda: next(answers, batch(1.0, last=2)))
    source = HubSource(node.directory)
    try:
        events = drain(source)
        assert [event.number for event in events if isinstance(event, Received)] == [0, 2]
        assert (source.link().bad, source.link().lost) == (1, 7)
    finally:
        source.close()
        hub.close()


def test_connection_lost_within_a_snapshot_begins_it_anew(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_module, "LOST_AFTER", 0.1)
    monkeypatch.setattr(receiver_module, "ASK_WAIT", 0.1)
    hub = OtherHub(node, VIEWERS_SOCKET, lambda: batch(1.0, item(0, 1.0), snapshot=True, last=-1))
    source = HubSource(node.directory)
    try:
        until(lambda: [source.drain()] and len(hub.messages) >= 2)
        hub.silent = True
        until(lambda: [source.drain()] and source.link().state == "lost")
        asked = len(hub.messages)
        until(lambda: [source.drain()] and len(hub.messages) > asked)
        questions = [codec.decode_ask(question) for (question,) in hub.messages]
        assert {question.since for question in questions} == {-1}
        assert [question.hub for question in questions[:2]] == ["", "h"]  # the second goes on where it was
        assert questions[-1].hub == ""
    finally:
        source.close()
        hub.close()
