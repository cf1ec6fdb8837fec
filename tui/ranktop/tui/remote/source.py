"""The hub of a job on another machine as a source: the local one's way, over a socket that ssh forwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ranktop.tui.remote.tunnel import Tunnel
from ranktop.tui.session.receiver import ASK_WAIT, LOST_AFTER, HubSource
from ranktop.tui.session.source import Link, Received, Reset, Whole

OVERDUE: Final = ASK_WAIT + LOST_AFTER
"""Seconds after its last answer from which a hub is not called live: it answers once a second at least."""

PATIENCE: Final = 120.0
"""Seconds that an answer may be overdue before it is asked for again: a large one on a slow line is on its way all the
time, and a lost connection is told by ssh."""


class RemoteSource:
    """Follows a job's hub through a tunnel; after every loss it goes on behind the last message it has."""

    def __init__(self, tunnel: Tunnel, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``tunnel`` follows the job; it is closed with this source."""
        self._tunnel = tunnel
        self._clock = clock
        self._hub: HubSource | None = None
        self._generation = 0
        self._began = clock()
        tunnel.silent_for = self._silent_for

    def drain(self) -> list[Received | Reset | Whole]:
        """Return what has arrived since the last call, in order; never blocks for long."""
        generation = self._tunnel.standing().generation
        if generation != self._generation:
            self._generation = generation
            if self._hub is None:
                self._hub = HubSource(self._tunnel.place.path, clock=self._clock, patience=PATIENCE, relayed=True)
            else:
                self._hub.reconnect()
        return self._hub.drain() if self._hub is not None else []

    def poll(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for something to drain; tells whether there is."""
        if self._hub is not None and self._generation == self._tunnel.standing().generation:
            return self._hub.poll(timeout)
        time.sleep(min(timeout, 0.02))
        return False

    @property
    def caught_up(self) -> bool:
        """Whether the whole snapshot has been drained."""
        return self._hub is not None and self._hub.caught_up

    def link(self) -> Link:
        """Return the state of the connection: live only while the hub itself answers."""
        standing = self._tunnel.standing()
        place = self._tunnel.ssh.target.words
        hub = self._hub.link() if self._hub is not None else Link()
        state, detail = hub.state, hub.detail
        if standing.ended:
            state, detail = "ended", standing.detail
        elif not standing.up:
            state, detail = "lost", standing.words(time.monotonic())
        elif standing.detail:
            state, detail = "lost", standing.detail
        elif hub.state == "live" and hub.age is not None and hub.age > OVERDUE:
            state, detail = "lost", self._silence(hub.age, place)
        return Link(state=state, detail=detail, age=hub.age, lost=hub.lost, bad=hub.bad, place=place)

    def recording(self, job: str) -> Path:
        """Return a copy of a job's recording, as far as it has come there; takes its time. FarError, SshError."""
        return self._tunnel.recording(job)

    def close(self) -> None:
        """Let go of the hub, of ssh and of what it needed."""
        if self._hub is not None:
            self._hub.close()
        self._tunnel.close()

    def _silence(self, age: float, place: str) -> str:
        """Say who it is that does not answer, as far as that is known: the far shell is asked as well."""
        heard_for = self._tunnel.heard_for()
        if heard_for < age - ASK_WAIT:
            return "the hub does not answer, or slowly; the connection to its machine stands"
        if heard_for > 2 * OVERDUE:
            return f"{place} does not answer: the network, or the machine, is stuck"
        return f"no answer from {place}"

    def _silent_for(self) -> float:
        age = self._hub.link().age if self._hub is not None else None
        return self._clock() - self._began if age is None else age
