"""Directories for recordings: whose they are, who else could write there, and what kind of disk is below."""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path
from typing import Final

import platformdirs

from ranktop.wire.recording_file import RecordingError

NETWORK: Final = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p", "ceph", "lustre", "gpfs", "beegfs", "pvfs2",
    "orangefs", "panfs", "ocfs2", "gfs2", "glusterfs", "mmfs", "wekafs", "virtiofs", "acfs", "vboxsf",
})  # fmt: skip
"""File systems that several machines may share: SQLite's WAL needs memory shared by all who open the file."""

_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_ADVICE: Final = "set RANKTOP_STATE_DIR to a directory of yours"


def state_directory() -> Path:
    """Return where this user's recordings are, made or not: ``RANKTOP_STATE_DIR``, else the user's state directory."""
    named = os.environ.get("RANKTOP_STATE_DIR")
    if named:
        return Path(os.path.abspath(os.path.expanduser(named)))
    return Path(platformdirs.user_state_dir("ranktop", appauthor=False))


def local_directory() -> Path:
    """Return where recordings go when the state directory's disk can't lock files."""
    return Path(f"/var/tmp/ranktop-state-{os.geteuid()}")


def search_directories() -> list[Path]:
    """Return where recordings are looked for."""
    return list(dict.fromkeys([state_directory(), local_directory()]))


def prepare(directory: Path) -> None:
    """Make the directory, closed to others, or check the one that is there; RecordingError."""
    if not os.path.lexists(directory):
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir(0o700, exist_ok=True)
            os.chmod(directory, 0o700)  # a umask may have taken the owner's own bits
        except OSError as error:
            raise RecordingError(f"{directory} cannot be made ({error.strerror}): {_ADVICE}") from None
    check(directory)


def check(directory: Path) -> None:
    """RecordingError unless the directory is this user's and only this user can write there.

    A link is followed: a home directory may be kept small. In a place where everybody can make one, it is refused.
    """
    try:
        found = os.stat(directory)
        parent = os.stat(directory.parent)
    except OSError as error:
        raise RecordingError(f"{directory} cannot be read: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise RecordingError(f"{directory} is not a directory: {_ADVICE}")
    if os.path.islink(directory) and parent.st_mode & stat.S_IWOTH:
        raise RecordingError(f"{directory} is a symbolic link in a directory that others can write: refused; {_ADVICE}")
    if found.st_uid != os.geteuid():
        raise RecordingError(f"{directory} belongs to user {found.st_uid}: refused; {_ADVICE}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RecordingError(f"{directory} can be written by others: chmod 700 {shlex.quote(str(directory))}")


def journal_for(directory: Path) -> str:
    """Return SQLite's journal mode that is safe on the directory's disk."""
    return "TRUNCATE" if on_network(directory) else "WAL"


def on_network(directory: Path) -> bool:
    """Tell whether other machines may have the directory too."""
    kind = filesystem(directory)
    return kind in NETWORK or kind.startswith("fuse.")


def filesystem(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that holds a path; empty where it can't be told.

    ``mounts``: what ``/proc/self/mountinfo`` says (proc(5)).
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            return ""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) < 5:
            continue
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # A later mount on the same point covers the earlier one.
        if inside and len(point) >= len(best):
            best, kind = point, rest[0]
    return kind
