"""Sends what simulated ranks say through real publishers, each with a socket of its own, as in a job."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import zmq

from ranktop.agent.publisher import Publisher
from ranktop.agent.simulation.job import Setup
from ranktop.agent.simulation.voice import INTERVAL, Job, Voice

TICK: Final = 0.002
"""Seconds that a rank may be early: waking up for each costs more than it gives."""

CONNECT_SECONDS: Final = 60.0
CONFIRM_SECONDS: Final = 2.0

GOLDEN: Final = 0.6180339887
"""Spreads the ranks evenly over an interval."""


class Speakers:
    """Some ranks of a job, each at its own time within the interval."""

    def __init__(self, setup: Setup, ranks: Sequence[int], directory: Path, epoch: float, stops: bool = False) -> None:
        """``epoch``: CLOCK_MONOTONIC at which the job begins; ``stops``: this process is the one that gets SIGSTOP."""
        self.sent = 0
        self._setup, self._directory, self._epoch, self._stops = setup, directory, epoch, stops
        self._job = Job(setup)
        # One for all: thousands of I/O threads in one process would keep the scheduler busy.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.max_sockets = 2 * len(ranks) + 16
        mine = [rank for rank in ranks if rank not in self._job.silent]
        self._voices = [Voice(self._job, rank, os.getpid()) for rank in sorted(mine, key=lambda one: one * GOLDEN % 1)]
        self._publishers = {rank: self._publisher(rank, 0) for rank in mine}

    def _publisher(self, rank: int, life: int) -> Publisher:
        publisher = Publisher(self._setup.job, rank, os.getpid(), life, self._directory)
        publisher._context = self._context
        return publisher

    def connect(self) -> None:
        """Send every card and wait until the hub has answered each; RuntimeError when it does not."""
        for voice in self._voices:
            publisher = self._publishers[voice.rank]
            publisher.send(self._setup.card(voice.rank, os.getpid()))
            publisher.pump()
        limit = time.monotonic() + CONNECT_SECONDS
        while waiting := [one for one in self._publishers.values() if not one.connected]:
            if time.monotonic() > limit:
                raise RuntimeError(f"{len(waiting)} simulated ranks did not reach the hub: {waiting[0].problem}")
            for publisher in waiting:
                publisher.pump()
            time.sleep(0.02)

    def publish(self, stop: threading.Event) -> None:
        """Let each rank speak every interval until told to stop."""
        began = max(time.monotonic(), self._epoch)
        turn = 0
        while not stop.is_set():
            for place, voice in enumerate(self._voices):
                due = began + (turn + place / len(self._voices)) * INTERVAL
                if due > time.monotonic() + TICK and stop.wait(due - time.monotonic()):
                    return
                self._let_speak(voice)
            if not self._voices and stop.wait(INTERVAL):
                return
            turn += 1

    def _let_speak(self, voice: Voice) -> None:
        now = time.monotonic()
        publisher = self._publishers[voice.rank]
        was, life = voice.over, voice.life
        said = voice.speak(now - self._epoch, now)
        if voice.life != life:
            publisher = self._publishers[voice.rank] = self._publisher(voice.rank, voice.life)
        for body in said:
            publisher.send(body)
            self.sent += 1
        if voice.over and not was and not said and self._stops:
            os.kill(os.getpid(), signal.SIGSTOP)  # as in a real job, its node can tell what has become of it
        # A process that is gone keeps no hub alive.
        if not voice.over or said:
            publisher.pump()

    def close(self) -> dict[str, int]:
        """Wait for the hub to have everything; returns counts."""
        limit = time.monotonic() + CONFIRM_SECONDS
        publishers = self._publishers.values()
        while time.monotonic() < limit and any(one._confirmed < one._sent for one in publishers):
            for publisher in publishers:
                publisher.pump()
            time.sleep(0.02)
        unconfirmed = sum(one._confirmed < one._sent for one in publishers)
        dropped = sum(one.dropped for one in publishers)
        for publisher in publishers:
            publisher.close(0)
        return {"sent": self.sent, "dropped": dropped, "unconfirmed": unconfirmed}


def raise_file_limit() -> None:
    """Allow as many descriptors as this user may have: each rank has a socket."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
