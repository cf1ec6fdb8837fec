"""The files of recordings, as a hub finds, makes and removes them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ranktop.wire.codec import clean
from ranktop.wire.recording_file import RecordingError
from ranktop.wire.recording_place import journal_for, local_directory, prepare, state_directory
from ranktop.wire.recording_writer import RecordingWriter, TakenByAnother
from ranktop.wire.recordings import find_recordings, recording_path
from ranktop.wire.schema import Job

ASIDE: Final = ".damaged"
"""Ending of a file that could not be used; it is never removed."""

_MOST: Final = 100
_BESIDE: Final = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class Opened:
    """A recording that is being written."""

    writer: RecordingWriter
    news: str = ""
    """What viewers should be told."""


def open_recording(job: Job, local_id: str, started: float, hub: str, began: float, wall: float, limit: int) -> Opened:
    """Make the job's recording, or go on in that of the hub before; sqlite3.Error, OSError, RecordingError.

    A file that is damaged is set aside. Where the state directory's disk can't lock files, a local one is used.
    """
    directory = state_directory()
    prepare(directory)
    path = recording_path(local_id, started, directory)
    try:
        return _open(path, job, started, hub, began, wall, limit)
    except sqlite3.OperationalError as error:
        if journal_for(directory) == "WAL" or "full" in str(error):
            raise
        local = local_directory()
        prepare(local)
        opened = _open(recording_path(local_id, started, local), job, started, hub, began, wall, limit)
        reason = f"the disk of {clean(str(directory))} can't lock files ({clean(str(error))[:80]})"
        return Opened(opened.writer, f"{reason}: recording to {local}")


def _open(path: Path, job: Job, started: float, hub: str, began: float, wall: float, limit: int) -> Opened:
    def create(mine: Path) -> RecordingWriter:
        journal = journal_for(mine.parent)
        return RecordingWriter.create(
            mine, job, hub=hub, began=began, wall=wall, started=started, journal=journal, limit=limit
        )

    for attempt in range(1, _MOST):
        # Two nodes of one job may share a home directory; each hub has a file of its own.
        mine = path if attempt == 1 else path.with_name(f"{path.stem}.{attempt}{path.suffix}")
        if not os.path.lexists(mine):
            with contextlib.suppress(FileExistsError):
                return Opened(create(mine))
        try:
            if not stat.S_ISREG(os.lstat(mine).st_mode):
                raise RecordingError(f"{clean(mine.name)} is not a file")
            return Opened(RecordingWriter.resume(mine, job, hub=hub, began=began, wall=wall, limit=limit))
        except TakenByAnother:
            continue
        except RecordingError as error:
            reason = f"{error}; it is kept as {set_aside(mine)}, and another one begins"
            return Opened(create(mine), reason)
    raise RecordingError(f"{clean(str(path))} cannot be used: remove what is in its place")


def set_aside(path: Path) -> str:
    """Rename a file that can't be used, whatever it is, and what SQLite keeps beside it; returns its new name."""
    for number in range(1, _MOST):
        aside = path.with_name(f"{path.name}{ASIDE}{'' if number == 1 else f'-{number}'}")
        if os.path.lexists(aside):
            continue
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, aside)
        for end in _BESIDE:
            with contextlib.suppress(OSError):
                os.rename(path.with_name(path.name + end), aside.with_name(aside.name + end))
        return aside.name
    raise RecordingError(f"{clean(str(path))} is damaged, and {_MOST} such files are there already: remove some")


def remove_old(own: Path, keep: int) -> list[Path]:
    """Remove the oldest recordings beyond ``keep``, simulated ones first; never a live one, nor ``own``."""
    entries = find_recordings().entries
    ended = [entry for entry in entries if not entry.live and entry.path != own]
    ended.sort(key=lambda entry: (not entry.simulated, entry.started))
    old = ended[: max(0, len(entries) - max(1, keep))]
    for entry in old:
        for end in ("", *_BESIDE):
            with contextlib.suppress(OSError):
                os.unlink(entry.path.with_name(entry.path.name + end))
    return [entry.path for entry in old]
