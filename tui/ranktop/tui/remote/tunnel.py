"""Keeps the connection to the far side, on a thread of its own: makes it anew when it is lost, and tells how it is."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ranktop.tui.remote.connection import HELLO_SECONDS, Connection
from ranktop.tui.remote.explain import forbidden
from ranktop.tui.remote.far import FarError, Listing
from ranktop.tui.remote.place import Place
from ranktop.tui.remote.ssh import Ssh, SshError
from ranktop.tui.view.text import duration
from ranktop.wire.endpoints import Found, JobEntry

TICK: Final = 1.0
"""Seconds between two looks at a connection that stands; its end is told at once."""
LIST_EVERY: Final = 5.0
"""Seconds between two looks for jobs, or for one whose hub is silent: each starts a Python there."""
LIST_SELDOM: Final = 60.0
"""The same once the job has ended."""
GONE: Final = 20.0
"""Seconds without a hub after which a job that has not ended is given up: its agents start another hub sooner."""
SILENT: Final = 4.0
"""Seconds without an answer of the hub after which its job is looked for."""
PING_EVERY: Final = 5.0
PING_OFTEN: Final = 1.0
"""The same while the hub is silent: is it the hub, or the way to it?"""
PONG_SECONDS: Final = 30.0
"""A far shell that answers no sooner is lost. Long, because a slow line may be full of a snapshot; ssh itself notices
a dead connection earlier, but not the user's own shared one that is set up otherwise."""
FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 15.0
AUTH_WAIT: Final = 60.0
"""Seconds between two tries while ssh is refused: many of them would have this address banned."""
SLEPT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How the connection is."""

    up: bool
    detail: str = ""
    ended: bool = False
    """The job's hub is gone for good."""
    generation: int = 0
    """Rises whenever the hub's socket has been forwarded anew."""
    since: float = 0.0
    """When it came to be so, on the monotonic clock."""
    again: float | None = None
    """When the next try begins; None while one is going on."""

    def words(self, now: float) -> str:
        """Say what is wrong and what happens next."""
        if self.up or self.ended:
            return self.detail
        wait = "trying again" if self.again is None else f"again in {max(0.0, self.again - now):.0f} s"
        return f"{wait}: {self.detail}"


class Tunnel:
    """The way to one machine and, once a job is chosen, to its hub."""

    def __init__(self, ssh: Ssh, place: Place, connection: Connection, listing: Listing) -> None:
        """``connection`` is one that works; the tunnel owns it and the place from here on."""
        self.ssh, self.place = ssh, place
        self._connection: Connection | None = connection
        self._listing = listing
        self._job: str | None = None
        self._forwarded = ""
        self._missing_since: float | None = None
        self._had_ended = False
        self._only_own = False
        self._standing = Standing(True, since=time.monotonic())
        self.silent_for: Callable[[], float] = lambda: 0.0
        """Seconds since the hub was last heard of; the source sets it."""
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True, name="ranktop-tunnel")
        self._thread.start()

    def found(self) -> Found:
        """Return the jobs that the far side had when it was last asked."""
        standing, listing = self._standing, self._listing
        now = time.monotonic()
        trouble = (
            [f"no connection for {duration(now - standing.since)}, {standing.words(now)}"] if not standing.up else []
        )
        return Found(list(listing.jobs), [*trouble, *listing.problems])

    def follow(self, job: JobEntry) -> None:
        """Forward the socket of this job's hub, from now on after every loss too."""
        self._job = job.id
        self._wake.set()

    def standing(self) -> Standing:
        """Return how the connection is."""
        return self._standing

    def recording(self, job: str) -> Path:
        """Copy the recording of a job to here, over the connection that stands; takes its time. FarError, SshError."""
        from ranktop.tui.remote.fetch import fetch_quietly

        connection = self._connection
        if connection is None or not self._standing.up:
            raise FarError(f"no connection to {self.ssh.target.words} now")
        folder = self.place.path / "recording"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return fetch_quietly(self.ssh, job, connection.shared.use(), folder)

    def heard_for(self) -> float:
        """Return the seconds since the far machine last said anything."""
        connection = self._connection
        return time.monotonic() - connection.heard if connection is not None else float("inf")

    def close(self) -> None:
        """End ssh and remove the folder with its sockets; within a second."""
        self._closing.set()
        self._wake.set()
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._thread.join(0.2)
        self.place.close()

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        wait = FIRST_WAIT
        while not self._closing.is_set():
            try:
                connection = self._connection or self._connect()
                self._set(up=True, again=None, detail=self._standing.detail if self._missing_since else "")
                began = time.monotonic()
                failure = self._keep(connection)
                # One that is lost at once each time is no reason to try all the faster.
                wait = FIRST_WAIT if time.monotonic() - began > LONGEST_WAIT else wait
            except (FarError, SshError) as error:
                failure = error if isinstance(error, FarError) else FarError(str(error), "final")
            if self._closing.is_set():
                return
            self._drop()
            pause = {"": wait}.get(failure.kind, AUTH_WAIT)
            self._set(up=False, detail=str(failure), again=time.monotonic() + pause)
            self._wait(pause)
            wait = min(2 * wait, LONGEST_WAIT)
            self._set(again=None)

    def _connect(self) -> Connection:
        """Make the connection anew without asking anybody anything; FarError, SshError."""
        connection = Connection(self.ssh, self.place, person=False, only_own=self._only_own)
        with self._lock:
            closing = self._closing.is_set()
            self._connection = None if closing else connection
        if closing:
            connection.close()
            raise FarError("closing")
        try:
            connection.wait_for_shell(HELLO_SECONDS)
        except FarError:
            # The user's own connection may be half open and answer nothing: the next try does without it.
            self._only_own = connection.shared.theirs
            raise
        self._only_own = False
        self._listing = connection.jobs()
        self._note_missing(connection)
        return connection

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        self._forwarded = ""
        if connection is not None:
            connection.close()

    def _keep(self, connection: Connection) -> FarError:
        """Look after a connection until it is lost; returns why."""
        listed = pinged = time.monotonic()
        number, asleep = 0, _asleep()
        connection.on_end = self._wake.set
        while True:
            if self._closing.is_set():
                return FarError("closing")
            if not connection.alive:
                return connection.failure()
            if _asleep() - asleep > SLEPT:
                return FarError("this machine was suspended")
            now = time.monotonic()
            if number and not connection.answered(number) and now - pinged > PONG_SECONDS:
                self._only_own = connection.shared.theirs
                return FarError(f"{self.ssh.target.words} has not answered for {PONG_SECONDS:.0f} s (timed out)")
            often = self._job is not None and self.silent_for() > PING_OFTEN
            if now - pinged > (PING_OFTEN if often else PING_EVERY) and (not number or connection.answered(number)):
                number, pinged = number + 1, now
                connection.ping(number)
            if now - listed > self._list_after():
                self._look(connection)
                # Nothing else is answered while ranktop there lists its jobs.
                listed = pinged = time.monotonic()
            self._forward(connection)
            self._wait(TICK)

    def _list_after(self) -> float:
        if self._standing.ended:
            return LIST_SELDOM
        return LIST_EVERY if self._job is None or self._missing_since or self.silent_for() > SILENT else float("inf")

    def _look(self, connection: Connection) -> None:
        refused = forbidden(connection.talk.said(), self.ssh.target)
        try:
            self._listing = connection.jobs()
        except FarError as error:
            if connection.alive:
                self._set(detail=str(error))
            return
        self._note_missing(connection)
        if refused and self._entry() is not None:
            self._set(detail=refused)

    def _note_missing(self, connection: Connection) -> None:
        """Say what it means when the chosen job has no hub, and give it up in the end."""
        if self._job is None or (entry := self._entry()) is not None:
            self._missing_since = None
            self._had_ended = self._job is not None and entry is not None and entry.ended
            self._set(detail="")
            return
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        if self._had_ended or now - self._missing_since > GONE:
            if not self._standing.ended:
                connection.stop_forwarding()
                self._forwarded = ""
                self._set(ended=True, detail=self._how_gone())
        else:
            self._set(detail="the hub is gone; the job's agents start another one")

    def _how_gone(self) -> str:
        if self._had_ended:
            return "the hub has ended, some time after the job's last rank"
        # As schedulers and containers do: they kill it with the job.
        run = f"{self.ssh.target.words}/{self._job}"
        return f"the hub is gone, with its job it seems; see how that ended: ranktop replay {run}"

    def _entry(self) -> JobEntry | None:
        return next((job for job in self._listing.jobs if job.id == self._job), None)

    def _forward(self, connection: Connection) -> None:
        """Forward the chosen job's socket where that is not done yet; FarError."""
        if self._job is None:
            return
        entry = self._entry()
        if entry is None:
            return
        remote = f"{entry.directory}/viewers.sock"
        if remote == self._forwarded:
            return
        if self._forwarded:
            connection.stop_forwarding()
        connection.forward(remote)
        self._forwarded = remote
        self._set(generation=self._standing.generation + 1, ended=False, detail="")

    def _wait(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _set(self, **changed: object) -> None:
        standing = self._standing
        if "up" in changed and changed["up"] != standing.up:
            changed["since"] = time.monotonic()
        self._standing = replace(standing, **changed)  # type: ignore[arg-type]


def _asleep() -> float:
    """Return by how many seconds this machine's monotonic clock has stood still while it was suspended."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.time() if boot is None else time.clock_gettime(boot)) - time.monotonic()
