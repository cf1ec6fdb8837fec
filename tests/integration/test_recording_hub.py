"""Recordings of real hubs: killed under load, ended, and out of reach of other users."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hub_harness import JOB, Node, end_hub, hubs, pump, sample, until

from ranktop.agent.lifecycle import ensure_hub
from ranktop.wire.codec import decode_header
from ranktop.wire.endpoints import MARKER_FILE
from ranktop.wire.recording import Recording
from ranktop.wire.recording_place import state_directory
from ranktop.wire.recordings import list_recordings
from ranktop.wire.schema import End

RANKS = 8
KILLS = 3
LOST_AT_MOST = 2.0
"""Seconds before a kill of which messages may be missing."""


class Load:
    """Eight ranks that speak ten times a second each, in a thread."""

    def __init__(self, node: Node) -> None:
        self._publishers = [node.connected(rank, pid=os.getpid()) for rank in range(RANKS)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._speak)
        self._thread.start()

    def _speak(self) -> None:
        step = 0
        while not self._stop.wait(0.1):
            step += 1
            for rank, publisher in enumerate(self._publishers):
                publisher.send(sample(step, rank, padding=300))
                publisher.pump()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class Witness:
    """A viewer that notes what a hub has told, and when."""

    def __init__(self, node: Node) -> None:
        self._watcher = node.viewer()
        self.told: list[tuple[float, int, int]] = []
        """(when, rank, number)."""

    def look(self) -> int:
        """Take what has come; returns how many messages have so far."""
        for received in self._watcher.received():
            if received.header.kind == "sample":
                self.told.append((time.monotonic() - received.age, received.header.rank, received.header.seq))
        self._watcher.events.clear()
        return len(self.told)

    def between(self, since: float, t: float) -> dict[tuple[int, int], float]:
        """Return rank and number of the messages that the hub had after ``since`` and by ``t``, with when."""
        return {(rank, number): when for when, rank, number in self.told if since < when <= t}


def running_hub(node: Node) -> tuple[str, int]:
    """Return identity and process of the hub, once it serves.

    One that dies holds its lock until its last thread has ended.
    """

    def look() -> tuple[str, int] | None:
        ensure_hub(JOB, node.directory)
        with contextlib.suppress(OSError, ValueError):
            hub, pid = (node.directory / MARKER_FILE).read_text().split()
            return (hub, int(pid)) if int(pid) in hubs(node.directory) else None
        return None

    return until(look) or ("", 0)


def test_a_kill_under_load_loses_two_seconds_at_most_and_never_the_file(node: Node) -> None:
    load, witness = Load(node), Witness(node)
    sure: dict[tuple[int, int], float] = {}
    killed = dead = 0.0
    try:
        for _ in range(KILLS):
            _, pid = running_hub(node)
            seen = len(witness.told)
            until(lambda seen=seen: witness.look() > seen + 28 * RANKS, 30.0)  # type: ignore[misc]
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            sure |= witness.between(dead, killed - LOST_AT_MOST)
            until(lambda pid=pid: pid not in hubs(node.directory))  # type: ignore[misc]
            # What it told in its last moment is not of the next hub, whenever it is read.
            witness.look()
            witness.look()
            dead = time.monotonic()
        _, pid = running_hub(node)
        seen = len(witness.told)
        until(lambda: witness.look() > seen + RANKS, 30.0)
        sure |= witness.between(dead, time.monotonic())
    finally:
        load.close()
    end_hub(node.directory)
    (entry,) = list_recordings()
    heard = numbers_of(entry.path)
    assert max(Counter(heard).values()) == 1, "each message once"
    assert len(sure) > 10 * RANKS, "the test looked at something"
    lost = {message: round(when - killed, 2) for message, when in sure.items() if message not in set(heard)}
    assert not lost, sorted(lost.items())[:20]
    assert os.listdir(state_directory()) == [entry.path.name], "one finished file, no journal"
    integrity(entry.path)


def numbers_of(path: Path) -> list[tuple[int, int]]:
    with Recording.open(path) as recording:
        assert len(recording.rows("SELECT 1 FROM hubs")) == KILLS + 1
        headers = [decode_header(item.header) for item in recording.items(-1.0, 1e12)]
    return [(header.rank, header.seq) for header in headers if header.kind == "sample"]


def integrity(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


READ = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    try:
        print(os.listdir(path) if os.path.isdir(path) else len(open(path, "rb").read()))
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_live_recording_is_listed_and_closed_to_other_users(node: Node) -> None:
    publisher = node.connected(0, pid=os.getpid())
    publisher.send(sample(5))

    def live() -> Path | None:
        pump(publisher)
        return next((entry.path for entry in list_recordings() if entry.live and entry.steps == 5), None)

    path = until(live)
    assert path is not None
    files = [name for name in state_directory().iterdir() if name.name.startswith(path.name)]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert len(files) == 3, "the file, its journal and the journal's index"
    # The test's own folder is closed too; that alone must not be what keeps others out.
    os.chmod(state_directory().parent, 0o755)
    places = [str(state_directory()), *map(str, files)]
    done = subprocess.run([sys.executable, "-c", READ, *places], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"PermissionError"}
    publisher.send(End(rank=0, how="exit", code=0))
    pump(publisher)
