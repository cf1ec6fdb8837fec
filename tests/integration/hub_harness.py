"""Parts of the tests of the hub: a run directory of their own, real processes, waiting for conditions."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import zmq

from ranktop.agent.publisher import Publisher
from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Received, Reset, Whole
from ranktop.wire.endpoints import job_directory, secure_directory
from ranktop.wire.schema import Body, Card, Job, Sample

JOB = Job(id="a1b2c3", name="train", world_size=8)

_T = TypeVar("_T")


def until(condition: Callable[[], _T], timeout: float = 15.0) -> _T:
    """Return the first truthy value of ``condition``; fail after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)
    return value


def hubs(directory: Path) -> list[int]:
    """Return the pids of the hub processes of a job's directory, dead ones excluded."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"ranktop.agent.hub" in words and os.fsencode(directory) in words:
                found.append(int(entry.name))
    return found


def end_hub(directory: Path) -> None:
    """Have the hub end in order: at the second SIGTERM, as its ranks, this very process, live on."""
    deadline = time.monotonic() + 15.0
    while found := hubs(directory):
        assert time.monotonic() < deadline, "the hub does not end"
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.05)


class Node:
    """A run directory with the hub, publishers, viewers and processes of one test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._close: list[Callable[[], None]] = []

    def publisher(self, rank: int = 0, *, pid: int | None = None, restart: int = 0) -> Publisher:
        publisher = Publisher(JOB, rank, os.getpid() if pid is None else pid, restart, self.directory)
        self._close.append(lambda: publisher.close(0))
        return publisher

    def connected(self, rank: int = 0, *, pid: int | None = None) -> Publisher:
        """Return a publisher that has sent its card and heard of the hub."""
        publisher = self.publisher(rank, pid=pid)
        publisher.send(card(rank))
        until(lambda: pump(publisher).connected)
        return publisher

    def viewer(self) -> Watcher:
        watcher = Watcher(self.directory)
        self._close.append(watcher.source.close)
        return watcher

    def hub(self) -> int:
        """Return the pid of the only hub."""
        (pid,) = hubs(self.directory)
        return pid

    def socket(self, name: str) -> zmq.Socket[bytes]:
        """Return a raw socket that talks to the hub as no well-behaved program would."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._close.append(lambda: context.destroy(linger=0))
        raw = context.socket(zmq.DEALER)
        raw.connect(f"ipc://{self.directory / name}")
        return raw

    def run(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a Python script that has JOB, DIRECTORY and the usual names at hand."""
        process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + script, str(self.directory), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._close.append(lambda: end(process))
        return process

    def close(self) -> None:
        for close in self._close:
            close()
        for pid in hubs(self.directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not hubs(self.directory))


def pump(publisher: Publisher) -> Publisher:
    publisher.pump()
    return publisher


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def card(rank: int = 0) -> Card:
    return Card(job=JOB, rank=rank, pid=os.getpid(), node="here")


PREAMBLE = """
import os, sys, time
from pathlib import Path
from ranktop.agent.publisher import Publisher
from ranktop.agent.lifecycle import ensure_hub
from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Received, Reset
from ranktop.wire.schema import Card, End, Job, Sample
JOB = Job(id="a1b2c3", name="train", world_size=8)
DIRECTORY = Path(sys.argv[1])

def connect(rank):
    publisher = Publisher(JOB, rank, os.getpid(), 0, DIRECTORY)
    publisher.send(Card(job=JOB, rank=rank, pid=os.getpid()))
    deadline = time.monotonic() + 15
    while not publisher.connected:
        publisher.pump()
        assert time.monotonic() < deadline, publisher.problem
        time.sleep(0.005)
    return publisher
"""


TALK = """
publisher = connect(3)
print("ready", flush=True)
"""


class Watcher:
    """A viewer that remembers what it was told."""

    def __init__(self, directory: Path) -> None:
        self.source = HubSource(directory)
        self.events: list[Received | Reset | Whole] = []

    def drain(self) -> list[Received | Reset | Whole]:
        self.source.poll(0.05)
        self.events += self.source.drain()
        return self.events

    def received(self) -> list[Received]:
        self.drain()
        return [event for event in self.events if isinstance(event, Received)]

    def resets(self) -> list[Reset]:
        return [event for event in self.events if isinstance(event, Reset)]

    def bodies(self, kind: type[_T]) -> list[_T]:
        return [event.body for event in self.received() if isinstance(event.body, kind)]

    def wait_for(self, matches: Callable[[Body], bool], timeout: float = 15.0) -> Received:
        def look() -> Received | None:
            return next((event for event in self.received() if matches(event.body)), None)

        found = until(look, timeout)
        assert found is not None
        return found


class OtherHub:
    """A hub that is none of ours, in a thread: answers every message with one frame."""

    def __init__(self, node: Node, name: str, answer: Callable[[], bytes]) -> None:
        secure_directory(node.directory.parent)
        secure_directory(node.directory)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(f"ipc://{node.directory / name}")
        self._answer = answer
        self.silent = False
        self.messages: list[list[bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            if self._router.poll(20):
                address, *frames = self._router.recv_multipart()
                self.messages.append(frames)
                if not self.silent:
                    self._router.send_multipart([address, self._answer()])

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)


def sample(step: int, rank: int = 0, padding: int = 0) -> Sample:
    return Sample(rank=rank, step=step, phase="x" * padding)


@contextlib.contextmanager
def fresh_node(monkeypatch: pytest.MonkeyPatch, linger: float = 60.0) -> Iterator[Node]:
    """Make a node whose run directory is short, private and gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as parent:
        monkeypatch.setenv("RANKTOP_RUN_DIR", f"{parent}/run")
        monkeypatch.setenv("RANKTOP_HUB_LINGER", str(linger))
        node = Node(job_directory(JOB.id))
        try:
            yield node
        finally:
            node.close()
