"""Where recordings are, which there are, and what each is of."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ranktop.wire.codec import clean
from ranktop.wire.recording import Recording
from ranktop.wire.recording_file import RecordingError
from ranktop.wire.recording_place import check, search_directories, state_directory

SUFFIX: Final = ".ranktop"
_NAME: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,31})-([0-9]{1,12})(?:\.[0-9]{1,3})?\.ranktop")


@dataclass(frozen=True, slots=True)
class RecordingEntry:
    """A recording that can be opened."""

    job_id: str
    name: str
    path: Path
    world_size: int
    started: float
    """Wall clock, seconds since the epoch."""
    ended: float | None
    """Wall clock of its last message; None while it is being written."""
    live: bool
    bytes: int
    """Of the file and its journal."""
    steps: int = 0
    """The largest step that any rank finished."""
    simulated: bool = False
    host: str = ""
    """Of the hub that wrote it (last)."""
    clock_set: float = 0.0
    """Seconds by which the wall clock was set meanwhile, forward or back (less than 0)."""


@dataclass(frozen=True, slots=True)
class Recordings:
    """What a search for recordings gave."""

    entries: list[RecordingEntry]
    """Live ones first, then the newest."""
    problems: list[str]
    """One line each for a file that could not be used."""


def recording_path(job_id: str, started: float, directory: Path | None = None) -> Path:
    """Return the usual path of a job's recording. ``started``: seconds since the epoch."""
    return (directory or state_directory()) / f"{job_id}-{int(started)}{SUFFIX}"


def list_recordings() -> list[RecordingEntry]:
    """Return the recordings that can be opened, live ones first, then the newest."""
    return find_recordings().entries


def find_recordings() -> Recordings:
    """Look where recordings are; what can't be used is told in a line each."""
    found = Recordings([], [])
    for directory in search_directories():
        if not os.path.lexists(directory):
            continue
        try:
            check(directory)
            paths = sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))
        except RecordingError as error:
            found.problems.append(str(error))
            continue
        except OSError as error:
            found.problems.append(f"{directory} cannot be read: {error.strerror}")
            continue
        for path in paths:
            _look_at(path, found)
    found.entries.sort(key=lambda entry: (not entry.live, -entry.started))
    return found


def _look_at(path: Path, found: Recordings) -> None:
    try:
        found.entries.append(entry_of(path))
    except RecordingError as error:
        found.problems.append(f"{path.name}: {error}")


def entry_of(path: Path) -> RecordingEntry:
    """Return what a recording is of; RecordingError."""
    with Recording.open(path) as recording:
        return RecordingEntry(
            job_id=clean(recording.job.id)[:64], name=clean(recording.job.name)[:200], path=path,
            world_size=recording.job.world_size, started=recording.started, ended=recording.ended,
            live=recording.live, bytes=file_bytes(path), steps=recording.steps, simulated=recording.simulated,
            host=recording.host, clock_set=clock_set(recording),
        )  # fmt: skip


def clock_set(recording: Recording) -> float:
    """Return by how many seconds more the wall clock went than the recording's own, which is never set."""
    begin, end = recording.begin, recording.end
    return recording.wall(end) - recording.wall(begin) - (end - begin)


def file_bytes(path: Path) -> int:
    """Return the bytes of a recording with its journal; 0 when it is gone."""
    total = 0
    for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-journal")):
        with contextlib.suppress(OSError):
            total += os.stat(name).st_size
    return total


__all__ = [
    "RecordingEntry", "Recordings", "entry_of", "file_bytes", "find_recordings", "list_recordings", "recording_path",
    "state_directory",
]  # fmt: skip
