"""``ranktop status`` waits for the whole of a snapshot, however long it is, and has the device messages in it."""

from __future__ import annotations

import os
import signal

from fake_device import h100_detail
from hub_harness import Node, pump, sample, until

from ranktop.probes.reading import AllocatorReading
from ranktop.tui.status import ask
from ranktop.wire.codec import BATCH_BYTES
from ranktop.wire.endpoints import find_jobs
from ranktop.wire.schema import Device

RANKS = 6


def test_every_rank_of_a_long_snapshot_is_there(node: Node) -> None:
    publishers = [node.connected(rank) for rank in range(RANKS)]
    for rank, publisher in enumerate(publishers):
        publisher.send(Device(rank=rank, detail=h100_detail(rank), allocator=AllocatorReading(backend="native")))
        publisher.send(sample(7, rank, padding=BATCH_BYTES // 2))
    viewer = node.viewer()
    until(lambda: [pump(publisher) for publisher in publishers] and len(viewer.bodies(Device)) >= RANKS)
    (entry,) = find_jobs().jobs
    session = ask(entry)
    assert session is not None
    views = session.snapshot().ranks[:RANKS]
    assert [view.sample is not None and view.sample.step for view in views] == [7] * RANKS
    assert [view.detail for view in views] == [h100_detail(rank) for rank in range(RANKS)]


def test_a_hub_that_takes_over_is_given_the_device_again(node: Node) -> None:
    publisher = node.connected(0)
    message = Device(rank=0, detail=h100_detail(0), allocator=AllocatorReading(backend="native"))
    publisher.send(message)
    viewer = node.viewer()
    viewer.wait_for(lambda body: isinstance(body, Device))
    first = node.hub()
    os.kill(first, signal.SIGKILL)

    def told_again() -> bool:
        publisher.send(sample(1))
        return bool(pump(publisher)) and len(viewer.bodies(Device)) > 1

    until(told_again)
    assert node.hub() != first
    assert viewer.bodies(Device) == [message, message]
