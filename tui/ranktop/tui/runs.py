"""Which run a word on the command line means: a file, a job that is live or past, or one of another machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranktop.tui.cli import FAILED, NONE, USAGE, matching
from ranktop.tui.view.text import plain
from ranktop.wire.endpoints import JobEntry, find_jobs
from ranktop.wire.recording_file import RecordingError
from ranktop.wire.recordings import SUFFIX, RecordingEntry, entry_of, list_recordings

if TYPE_CHECKING:
    from ranktop.tui.remote.ssh import Way

AT_ONCE: Final = 5.0
"""Seconds within which a job's hub has made its directory and its recording."""


class NoRun(Exception):
    """A word names no run, or several; the text is one line: what is wrong and what to do."""

    def __init__(self, text: str, code: int = NONE) -> None:
        super().__init__(text)
        self.code = code
        """Exit code of a command that needs the run."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its recording, its hub, or both."""

    job_id: str
    name: str
    path: Path | None = None
    """The recording; None for a live job that is not recorded."""
    entry: JobEntry | None = None
    """The live job; None for a past one and for a file."""
    place: str = ""
    """The other machine that the recording was fetched from, as it was named; else empty."""

    @property
    def live(self) -> bool:
        """Whether the job has a hub on this machine."""
        return self.entry is not None


def find_run(text: str, way: Way | None = None) -> Run:
    """Return the run that ``FILE``, ``JOB`` or ``TARGET/JOB`` names.

    An existing path is a file; what else has ``@`` or ``/`` is a job of another machine, fetched through ssh; anything
    else is the id (or its beginning) or the name of a job of this machine, live before past. NoRun when there is none.
    ``way``: how a machine is reached; None: as the user's own ssh does.
    """
    path = os.path.expanduser(text)
    if os.path.exists(path):
        return _file(Path(path))
    if text.startswith((".", "/", "~")):
        raise NoRun(f"no file {plain(text)!r}")
    if text.endswith(SUFFIX) and "@" not in text:
        raise NoRun(f"no file {plain(text)!r}; `ranktop jobs` lists the recordings of this machine")
    if "@" in text or "/" in text:
        return _remote(text, way)
    return _of_this_machine(text)


def _file(path: Path) -> Run:
    if path.is_dir():
        raise NoRun(f"{plain(str(path))} is a directory, not a recording", USAGE)
    try:
        told = entry_of(path)
    except RecordingError as error:
        raise NoRun(f"{plain(path.name)}: {error}", FAILED) from None
    return Run(told.job_id, told.name, path)


def _remote(text: str, way: Way | None) -> Run:
    """Fetch the recording of another machine's job through the user's own ssh."""
    from ranktop.tui.remote.far import FarError
    from ranktop.tui.remote.fetch import fetch_recording
    from ranktop.tui.remote.ssh import Ssh, SshError, named_command
    from ranktop.tui.remote.target import TargetError, split_job

    try:
        target, job = split_job(text)
        path = fetch_recording(way(target) if way is not None else Ssh(target, remote_command=named_command(None)), job)
    except (TargetError, SshError) as error:
        raise NoRun(str(error), USAGE) from None
    except FarError as error:
        raise NoRun(str(error), NONE if error.kind == "missing" else FAILED) from None
    found = _file(path)
    return Run(found.job_id, found.name, path, place=text.rpartition("/")[0])


def _of_this_machine(text: str) -> Run:
    live = matching(find_jobs().jobs, text)
    running = [entry for entry in live if not entry.ended]
    past = list_recordings()
    best = running if len(running) == 1 else live
    if len(best) == 1:
        return _live(best[0], past)
    if best:
        raise NoRun(_several(text, [(entry.id, entry.name) for entry in best]), USAGE)
    one = find_past(text, past)
    return Run(one.job_id, one.name, one.path)


def _live(entry: JobEntry, recordings: Sequence[RecordingEntry]) -> Run:
    own = recording_of(entry, recordings)
    return Run(entry.id, entry.name, own.path if own is not None else None, entry)


def recording_of(entry: JobEntry, recordings: Sequence[RecordingEntry]) -> RecordingEntry | None:
    """Return the recording that a live job's hub writes; None when there is none.

    A job that is started again under its old id has a recording of its own.
    """
    ids = (entry.id, entry.directory.name)
    own = [one for one in recordings if one.job_id in ids and (one.live or abs(one.started - entry.started) < AT_ONCE)]
    return max(own, key=lambda one: (one.live, one.bytes), default=None)


def find_past(text: str, recordings: Sequence[RecordingEntry]) -> RecordingEntry:
    """Return the one recording that an id (or its beginning), a name or a file's stem names; NoRun otherwise.

    Of several with one id the newest is meant. Where every node's hub has written one into the same folder, the first
    node's, which has the whole job, is the largest.
    """
    named = [one for one in recordings if text == one.path.stem]
    named = named or [one for one in recordings if text in (one.job_id, one.name)]
    named = named or [one for one in recordings if one.job_id.startswith(text)]
    if not named:
        raise NoRun(f"no job {plain(text)!r} on this machine, live or past; `ranktop jobs` lists those there are")
    if len({one.job_id for one in named}) > 1:
        raise NoRun(_several(text, [(one.job_id, one.name) for one in named]), USAGE)
    newest = max(named, key=lambda one: one.started)
    beside = [one for one in named if one.ended is None or one.ended > newest.started]
    return max([newest, *beside], key=lambda one: one.bytes)


def _several(text: str, jobs: Sequence[tuple[str, str]]) -> str:
    names = ", ".join(f"{plain(id_)} ({plain(name)})" for id_, name in dict.fromkeys(jobs))
    return f"{plain(text)!r} names several jobs: {names}; give an id"
