"""The exchange of doors through a real torchrun store: complete, cheap, silent and without a hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from ranktop.agent.identity import Identity
from ranktop.agent.meeting import LONGEST_PAUSE, SETTLED_PAUSE, Meeting, newest
from ranktop.agent.own_addresses import own_addresses
from ranktop.agent.store import StoreError, check_torch, is_up, place
from ranktop.wire.nodes import Door, Doors
from ranktop.wire.schema import Job

SERVER = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
uv = sys.argv[1] == "uv"
store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False, use_libuv=uv)
print(store.port, flush=True)
sys.stdin.read()
"""


class Server:
    """A store in a process of its own."""

    def __init__(self, log: Path, backend: str = "uv") -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER, backend], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def environment(self) -> dict[str, str]:
        return {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        }  # fmt: skip

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    found = Server(tmp_path / "log", getattr(request, "param", "uv"))
    yield found
    found.end()


def identity(node_rank: int, nodes: int) -> Identity:
    job = Job(id=f"job{node_rank}", name="train", world_size=2 * nodes)
    return Identity(job, 2 * node_rank, 0, "host", os.getpid(), 0, 2, node_rank, nodes)


def door(node_rank: int, hub: str = "") -> Door:
    return Door(
        node_rank=node_rank, host="h", addresses=(f"10.0.0.{node_rank + 1}",), port=40000 + node_rank, key="k" * 40,
        hub=hub or f"hub{node_rank}", job_id=f"job{node_rank}",
    )  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def meet(meeting: Meeting) -> Doors | None:
    meeting.look()
    return meeting.take()


@pytest.mark.parametrize("server", ["uv", "threads"], indirect=True)
def test_every_node_is_told_of_every_door_and_of_nothing_twice(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    meetings = [Meeting(identity(node, 3), server.environment()) for node in range(3)]
    for node, meeting in enumerate(meetings):
        first = meet(meeting)
        # Before there is a door: the hub opens it only now that it is told of other nodes.
        assert first is not None
        assert (first.node_rank, first.nodes, first.doors) == (node, 3, ())
        assert first.addresses == own_addresses("127.0.0.1", {})
        meeting.answered(door(node))
    told = [meet(meeting) for meeting in meetings]
    assert [len(news.doors) for news in told if news is not None] == [1, 2, 3]
    told = [meet(meeting) for meeting in meetings]
    assert [news and [one.node_rank for one in news.doors] for news in told] == [[0, 1, 2], [0, 1, 2], None]
    assert [meet(meeting) for meeting in meetings] == [None, None, None]
    # A hub that replaced another on its node.
    meetings[1].answered(door(1, hub="new"))
    news = [meet(meetings[1]), meet(meetings[0])]
    assert [one and [found.hub for found in one.doors] for one in news] == [["hub0", "new", "hub2"]] * 2
    assert capfd.readouterr().err == ""
    assert server.log.read_text() == ""
    # It is what torch's own client finds.
    client: Any = getattr(torch.distributed, "TCPStore")(  # noqa: B009 (not in the stubs)
        "127.0.0.1", server.port, None, False, timedelta(seconds=60), wait_for_workers=False
    )
    store: Any = getattr(torch.distributed, "PrefixStore")(  # noqa: B009
        "ranktop", client
    )
    assert store.add("changes", 0) == 4
    assert [line["hub"] for line in map(json.loads, store.get("doors").splitlines())] == ["hub0", "hub1", "hub2", "new"]


def test_a_store_that_hangs_or_dies_costs_no_line_and_no_hang(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    os.kill(server.process.pid, signal.SIGSTOP)
    hung = Meeting(identity(0, 2), server.environment())
    hung.answered(door(0))
    hung.start()
    while hung.is_alive() and not _connected(server.port):
        time.sleep(0.01)
    started = time.monotonic()
    hung.stop(0.5)  # the end of a process does not wait for it
    assert time.monotonic() - started < 1.5
    os.kill(server.process.pid, signal.SIGCONT)
    hung.join(10)
    assert not hung.is_alive()

    clock = Clock()
    meeting = Meeting(identity(0, 2), server.environment(), clock)
    meeting.answered(door(0))
    assert meet(meeting) is not None
    server.end()
    with pytest.raises(StoreError, match="does not answer"):
        meeting.look()
    meeting._failed("")
    meeting.start()
    deadline = time.monotonic() + 10
    while meeting.problem == "" and time.monotonic() < deadline:
        clock.now += 100
        meeting.answered(door(0, hub=str(clock.now)))
        time.sleep(0.01)
    assert "127.0.0.1" in meeting.problem
    meeting.stop(5.0)
    assert not meeting.is_alive()
    assert capfd.readouterr().err == ""


def _connected(port: int) -> bool:
    import psutil

    return any(one.raddr and one.raddr.port == port for one in psutil.Process().net_connections("tcp"))


def test_looks_become_seldom() -> None:
    clock = Clock()
    meeting = Meeting(identity(0, 2), {}, clock)
    pauses = [meeting.pause() for _ in range(20)]
    assert pauses[0] < 1.0
    assert sum(pauses[:4]) < 6.0
    assert 0.7 * LONGEST_PAUSE < pauses[-1] <= LONGEST_PAUSE
    clock.now = 3600.0
    assert 0.7 * SETTLED_PAUSE < meeting.pause() <= SETTLED_PAUSE


def test_the_last_door_of_a_node_and_of_a_hub_counts() -> None:
    import msgspec

    lines = [msgspec.json.encode(one) for one in (door(0), door(1), door(2), door(1, "other"))]
    # Node 2's hub is node 1's after the ranks were dealt out anew.
    moved = msgspec.json.encode(door(1, "hub2"))
    assert [(one.node_rank, one.hub) for one in newest([*lines, b"{nonsense", b"", moved])] == [
        (0, "hub0"),
        (1, "hub2"),
    ]


def test_where_the_store_is() -> None:
    torchrun = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    found = place(torchrun)
    assert found is not None
    assert (found.host, found.port, found.early) == ("n1", 29500, True)
    assert is_up(found)
    # Rank 0 makes it: nobody connects before, not even to ask, for its port might be taken by that.
    late = place({"MASTER_ADDR": "n1", "MASTER_PORT": "29500"})
    assert late is not None
    assert not late.early
    assert not is_up(late)
    named = place({**torchrun, "RANKTOP_STORE": "[fd00::1]:4000"})
    assert named is not None
    assert (named.host, named.port, named.early) == ("fd00::1", 4000, True)
    for nonsense in ({}, {"MASTER_ADDR": "n1"}, {"MASTER_ADDR": "n1", "MASTER_PORT": "x"}, {"RANKTOP_STORE": "n1"}):
        assert place(nonsense) is None


@pytest.mark.parametrize("version", ["2.3.1+cu121", "1.13.0", "", "2", "two.four"])
def test_the_store_of_an_old_torch_is_left_alone(version: str) -> None:
    with pytest.raises(StoreError, match=r"older than 2\.4"):
        check_torch(version)


@pytest.mark.parametrize("version", ["2.4.0", "2.13.0+cpu", "3.0.0a0+git1234", torch.__version__])
def test_the_store_of_a_newer_torch_is_spoken_to(version: str) -> None:
    check_torch(version)


def test_of_an_interface_that_is_named_no_link_local_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    has = {"ib0": ["10.1.2.3", "fe80::1", "fd00::3"], "eth0": ["192.0.2.9"]}
    monkeypatch.setattr("ranktop.agent.own_addresses._by_interface", lambda: has)
    assert own_addresses("192.0.2.7", {"RANKTOP_HUB_ADDRESS": "ib0"}) == ("10.1.2.3", "fd00::3")


def test_own_addresses() -> None:
    found = own_addresses("192.0.2.7", {})
    assert found[0] == "192.0.2.7"
    assert len(found) <= 8
    assert not any(one.startswith(("127.", "fe80")) for one in found)
    # The first node's own name is often a loopback address in its hosts file.
    assert len(found) == 1 or "127.0.1.1" not in own_addresses("127.0.1.1", {})
    assert own_addresses("::ffff:192.0.2.7", {})[0] == "192.0.2.7"
    assert own_addresses("192.0.2.7", {"RANKTOP_HUB_ADDRESS": "198.51.100.1, lo"})[:2] == ("198.51.100.1", "127.0.0.1")
