"""``ranktop jobs``: live and past jobs of this machine, as a table and as the documented JSON (``docs/jobs.md``)."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from ranktop.tui.cli import FOUND, NONE
from ranktop.tui.outcome import Outcome, outcome_of
from ranktop.tui.runs import recording_of
from ranktop.tui.stdout import columns, put
from ranktop.tui.view.text import fit, plain
from ranktop.wire.endpoints import VIEWERS_SOCKET, Found, JobEntry, find_jobs
from ranktop.wire.recordings import RecordingEntry, find_recordings
from ranktop.wire.schema import SCHEMA_VERSION

SCHEMA: Final = 1

UNITS: Final = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))

HEADS: Final = ("ID", "NAME", "RANKS", "STARTED", "LENGTH", "SIZE", "STATE")
RIGHT: Final = frozenset({"RANKS", "LENGTH", "SIZE"})
GAP: Final = 2
LONGEST_NAME: Final = 18
SHORTEST_NAME: Final = 8
STATE_CELLS: Final = 20
"""Cells that the last column has at least before names are cropped."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One job of the list."""

    id: str
    name: str
    state: str
    """``running``, ``ended`` (its hub still tells of it) or ``past``."""
    world_size: int
    started: float
    ended: float | None
    """Wall clock, seconds since the epoch."""
    directory: Path | None
    recording: RecordingEntry | None
    how: str
    """How it ended, in words; empty while it runs and where nobody recorded it."""

    def seconds(self, now: float) -> float:
        """Return how long it took, whatever the wall clock was set to meanwhile."""
        return (self.ended or now) - self.started - (self.recording.clock_set if self.recording is not None else 0.0)

    def json(self) -> dict[str, Any]:
        """Return it in the documented form."""
        recording = self.recording
        return {
            "id": self.id,
            "name": self.name,
            "state": self.state,
            "world_size": self.world_size,
            "started": self.started,
            "ended": self.ended,
            "directory": str(self.directory) if self.directory is not None else None,
            "socket": str(self.directory / VIEWERS_SOCKET) if self.directory is not None else None,
            "recording": str(recording.path) if recording is not None else None,
            "bytes": recording.bytes if recording is not None else None,
            "steps": recording.steps if recording is not None else None,
            "simulated": recording.simulated if recording is not None else None,
            "how": self.how or None,
        }


def print_jobs(*, as_json: bool) -> int:
    """Print all jobs and return the exit code: 0, or 3 when there is none."""
    found, recorded = find_jobs(), find_recordings()
    for problem in (*found.problems, *recorded.problems):
        print(f"ranktop: {plain(problem)}", file=sys.stderr)
    jobs = listed(found, recorded.entries)
    if as_json:
        told = {
            "schema": SCHEMA,
            "ranktop": version("ranktop"),
            "wire": SCHEMA_VERSION,
            "host": socket.gethostname(),
            "jobs": [job.json() for job in jobs],
        }
        put(json.dumps(told, indent=2) + "\n")
    elif jobs:
        put("\n".join(table(jobs, columns(), time.time())) + "\n")
    else:
        text = "no job on this machine, live or past; start one with: torchrun ... -m ranktop.agent train.py"
        print(f"ranktop: {text}", file=sys.stderr)
    return FOUND if jobs else NONE


def listed(found: Found, recordings: Sequence[RecordingEntry]) -> list[Listed]:
    """Return the live jobs, those that run before those that have ended, and then the past ones, the newest first."""
    left = list(recordings)
    jobs = []
    for entry in found.jobs:
        own = recording_of(entry, left)
        if own is not None:
            left.remove(own)
        jobs.append(_live(entry, own))
    return [*jobs, *map(_past, sorted(left, key=lambda one: -one.started))]


def _live(entry: JobEntry, own: RecordingEntry | None) -> Listed:
    outcome = outcome_of(own.path, own.world_size) if own is not None and entry.ended else None
    return Listed(
        id=entry.id, name=plain(entry.name), state="ended" if entry.ended else "running", world_size=entry.world_size,
        started=entry.started, ended=outcome.ended if outcome is not None else None, directory=entry.directory,
        recording=own, how=outcome.words if outcome is not None else "",
    )  # fmt: skip


def _past(one: RecordingEntry) -> Listed:
    """Tell of a job of which there is only the recording; its hub may write it on another machine."""
    outcome = outcome_of(one.path, one.world_size) if not one.live else Outcome(f"running on {plain(one.host)}", None)
    ended = outcome.ended if outcome.ended is not None else one.ended
    return Listed(
        id=one.job_id, name=plain(one.name), state="past", world_size=one.world_size, started=one.started,
        ended=ended, directory=None, recording=one, how=outcome.words,
    )  # fmt: skip


def table(jobs: Sequence[Listed], width: int, now: float) -> list[str]:
    """Return the lines of the table. Ids stay whole; the last column and then the names are cropped."""
    rows = [
        (
            job.id, job.name, str(job.world_size), when(job.started, now), length(job.seconds(now)),
            size(job.recording.bytes) if job.recording is not None else "–", _state(job),
        )
        for job in jobs
    ]  # fmt: skip
    wide = [max(len(head), *(len(row[at]) for row in rows)) for at, head in enumerate(HEADS)]
    wide[1] = min(wide[1], LONGEST_NAME)
    taken = sum(wide[:-1]) + GAP * (len(wide) - 1)
    if width - taken < STATE_CELLS:
        wide[1] = max(min(wide[1], SHORTEST_NAME), wide[1] - (STATE_CELLS - (width - taken)))
        taken = sum(wide[:-1]) + GAP * (len(wide) - 1)
    wide[-1] = max(8, min(wide[-1], width - taken))
    return [_line(HEADS, wide), *(_line(row, wide) for row in rows)]


def _line(cells: Sequence[str], wide: Sequence[int]) -> str:
    parts = (
        fit(cell, cells_wide, ">" if head in RIGHT else "<")
        for head, cell, cells_wide in zip(HEADS, cells, wide, strict=True)
    )
    return (" " * GAP).join(parts).rstrip()


def _state(job: Listed) -> str:
    simulated = "simulated, " if job.recording is not None and job.recording.simulated else ""
    return simulated + (job.how or job.state)


def when(started: float, now: float) -> str:
    """Write a wall clock in local time: ``10:42`` of today, else ``30 Nov 10:42`` or ``30 Nov 2025``."""
    then, today = time.localtime(started), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    months = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    day = f"{then.tm_mday:2d} {months[then.tm_mon - 1]}"
    return f"{day} {time.strftime('%H:%M', then)}" if then.tm_year == today.tm_year else f"{day} {then.tm_year}"


def length(seconds: float) -> str:
    """Write how long a job took: ``45 s``, ``75 min``, ``5.3 h``, ``3.2 d``."""
    if seconds < 0:
        return "–"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} d"


def size(value: int) -> str:
    """Write the bytes of a file: ``512 B``, ``1.5 MiB``, ``512 MiB``."""
    for unit, name in UNITS:
        if value >= unit:
            number = value / unit
            return f"{number:.1f} {name}" if number < 10 else f"{number:.0f} {name}"
    return f"{value} B"
