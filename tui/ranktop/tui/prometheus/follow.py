"""Follows all jobs of this machine on one thread, and lays down what a scrape reads.

A scrape never touches a hub: it asks this thread for a picture, waits a moment for it, and else takes the last one,
whose age it knows.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ranktop.tui.cli import matching
from ranktop.tui.prometheus.labels import MOST_JOBS, MOST_RANKS, label
from ranktop.tui.prometheus.tally import Tallies, Tally
from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Link, Received, Source
from ranktop.tui.session.state import Session, Snapshot
from ranktop.wire.codec import clean
from ranktop.wire.endpoints import Found, JobEntry

FIND_EVERY: Final = 2.0
"""Seconds between two searches for jobs."""

BEAT: Final = 0.25
"""Seconds between two looks at what has arrived."""

BEHIND: Final = 0.5
"""Seconds that the youngest message is old from which on there is more to come: of many ranks one look takes a part."""

LOOK_EVERY: Final = 5.0
"""Seconds between two looks of the findings' rules where nobody scrapes: some compare what they see with before."""

FEW_RANKS: Final = 256
"""Up to so many ranks; of more in proportion more seldom."""

ENDED_SECONDS: Final = 120.0
"""For so long after its end a job is still told of (that it has ended): two scrapes of a minute."""

PATIENCE: Final = 1.0
"""Seconds that a scrape waits for a new picture, at most."""

LONGEST_LINE: Final = 200
MOST_TOLD: Final = 8
"""Different failures and problems that are told."""

SLICE: Final = 0.05
"""Seconds of budget arithmetic in one go."""


@dataclass(frozen=True, slots=True)
class JobNow:
    """One job as it was when the picture was made; nothing in it changes."""

    id: str
    snapshot: Snapshot
    link: Link
    tallies: Mapping[int, Tally]
    awaited: frozenset[int] = frozenset()
    """Ranks whose place was known, until another hub took over that has not heard of it yet."""


@dataclass(frozen=True, slots=True)
class Picture:
    """All jobs at one time."""

    at: float
    """On the follower's clock."""
    jobs: tuple[JobNow, ...] = ()
    left_out: int = 0
    """Jobs that are not followed because there are too many."""


@dataclass(slots=True)
class _Followed:
    id: str
    directory: Path
    source: Source
    session: Session
    listed: float
    """When a search last gave it."""
    ended: float | None = None
    """When a search first gave it as ended; None while it runs."""
    tallies: Tallies = field(default_factory=lambda: Tallies(MOST_RANKS))
    carded: set[int] = field(default_factory=set)
    """Ranks that have said where they are."""

    def now(self) -> JobNow:
        """Return the job as it is now."""
        snapshot = self.session.snapshot()
        self.carded.update(view.rank for view in snapshot.ranks if view.card is not None)
        awaited = frozenset(view.rank for view in snapshot.ranks if view.card is None and view.rank in self.carded)
        return JobNow(self.id, snapshot, self.source.link(), self.tallies.now(), awaited)


class Follower:
    """Owns the connections to the hubs. All but ``picture``, ``failed`` and ``stop`` is for its own thread."""

    def __init__(
        self,
        find: Callable[[], Found],
        *,
        wanted: str | None = None,
        connect: Callable[[Path], Source] = HubSource,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``wanted``: follow only jobs of this id, beginning of an id, or name."""
        self.clock = clock
        self.errors = 0
        """Failures, each of which cost a job's news for a moment."""
        self._find = find
        self._wanted = wanted
        self._connect = connect
        self._jobs: dict[Path, _Followed] = {}
        self._over: set[Path] = set()
        """Jobs that have been told of for long enough, until their hub is gone."""
        self._left_out = 0
        self._behind = False
        """There is more to take at once."""
        self._searched: float | None = None
        self._picture = Picture(clock())
        self._asked = threading.Event()
        self._stopping = threading.Event()
        self._made = threading.Condition()
        self._told: set[str] = set()

    def run(self) -> None:
        """Follow until told to stop."""
        try:
            while not self._stopping.is_set():
                asked = self._asked.wait(0.0 if self._behind else BEAT)
                if asked:  # what is asked for just now must not be forgotten
                    self._asked.clear()
                self.beat(asked)
        finally:
            for job in self._jobs.values():
                job.source.close()

    def stop(self) -> None:
        """End ``run`` within a beat."""
        self._stopping.set()
        self._asked.set()

    def picture(self) -> Picture:
        """Return all jobs as they are now, or as they last were where that takes too long. For any thread."""
        with self._made:
            before = self._picture
            self._asked.set()
            self._made.wait_for(lambda: self._picture is not before, PATIENCE)
            return self._picture

    def beat(self, asked: bool = True) -> None:
        """Search, take what has arrived and, where it is due or ``asked``, make a picture."""
        now = self.clock()
        if self._searched is None or now - self._searched >= FIND_EVERY:
            self._searched = now
            self._guarded(self._search, "search for jobs")
        self._behind = False
        for job in list(self._jobs.values()):
            self._guarded(lambda job=job: self._take(job), f"job {job.id}")  # type: ignore[misc]
        ranks = sum(len(job.session.ranks) for job in self._jobs.values())
        if asked or now - self._picture.at >= LOOK_EVERY * max(1.0, ranks / FEW_RANKS):
            self._draw()

    def _search(self) -> None:
        found = self._find()
        now = self.clock()
        for problem in found.problems:
            self._tell(problem)
        entries = {entry.directory: entry for entry in matching(found.jobs, self._wanted)}
        ended = {directory for directory, entry in entries.items() if entry.ended}
        self._over &= ended
        for directory, job in list(self._jobs.items()):
            if directory in entries:
                job.listed = now
                job.ended = (job.ended or now) if directory in ended else None
            if self._is_over(job, now):
                del self._jobs[directory]
                job.source.close()
                self._over.update({directory} & ended)
        new = [entry for entry in entries.values() if entry.directory not in self._jobs.keys() | self._over]
        room = max(0, MOST_JOBS - len(self._jobs))
        self._left_out = max(0, len(new) - room)
        for entry in new[:room]:
            self._guarded(lambda entry=entry: self._follow(entry, now), f"job {label(entry.id)}")  # type: ignore[misc]

    def _follow(self, entry: JobEntry, now: float) -> None:
        # The directory's name is an id that was looked at, whatever the file in it says.
        name = entry.directory.name
        if any(job.id == name for job in self._jobs.values()):
            return
        session = Session(self.clock, budget_slice=SLICE, findings_every=1.0)
        self._jobs[entry.directory] = _Followed(name, entry.directory, self._connect(entry.directory), session, now)

    def _is_over(self, job: _Followed, now: float) -> bool:
        """Whether it has been told of for long enough since its last rank ended, or since its hub is gone."""
        if job.ended is None:
            return now - job.listed >= ENDED_SECONDS
        told = [state.ended for state in job.session.ranks.values() if state.ended is not None]
        return now - min(job.ended, max(told, default=job.ended)) >= ENDED_SECONDS

    def _take(self, job: _Followed) -> None:
        received, link = job.source.drain(), job.source.link()
        job.session.unheard = (link.age or 0.0) if link.state != "live" else 0.0
        ages = [item.age for item in received if isinstance(item, Received)]
        self._behind |= min(ages, default=0.0) > BEHIND
        job.tallies.take(received)
        job.session.feed(received)

    def _draw(self) -> None:
        jobs: list[JobNow] = []
        for job in self._jobs.values():
            self._guarded(lambda job=job: jobs.append(job.now()), f"job {job.id}")  # type: ignore[misc]
        with self._made:
            self._picture = Picture(self.clock(), tuple(jobs), self._left_out)
            self._made.notify_all()

    def _guarded(self, call: Callable[[], None], what: str) -> None:
        """One job that cannot be read costs no other."""
        try:
            call()
        except Exception as error:
            self.failed(what, error)

    def failed(self, what: str, error: Exception) -> None:
        """Count a failure, and tell it once on standard error. For any thread."""
        self.errors += 1
        self._tell(f"{what}: {type(error).__name__}: {error}")

    def _tell(self, words: str) -> None:
        text = clean(words)[:LONGEST_LINE]
        if text not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(text)
            print(f"ranktop: {text}", file=sys.stderr, flush=True)
