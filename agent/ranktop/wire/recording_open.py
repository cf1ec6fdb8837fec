"""Opens a recording's file for reading, so that a crafted one can neither run anything nor cost much."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import stat
from pathlib import Path
from typing import Final

from ranktop.wire.codec import clean
from ranktop.wire.recording_file import RecordingError

_LIMIT_LENGTH: Final = 0
"""``SQLITE_LIMIT_LENGTH``: bytes of a row."""
_LONGEST: Final = 64 * 1024 * 1024

FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The kernel's own (include/linux/proc_ns.h, PROC_PID_INIT_INO); every other belongs to a container."""


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection that only reads; RecordingError."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise RecordingError(f"{clean(str(path))} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise RecordingError(f"{clean(str(path))} is not a file")
    if not os.access(path, os.R_OK):
        raise RecordingError(f"{clean(str(path))} cannot be read: permission denied")
    where = f"{path.absolute().as_uri()}?{_how(path)}"
    try:
        connection = sqlite3.connect(where, uri=True, timeout=2.0, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise RecordingError(f"{clean(str(path))} cannot be read: {error}") from None
    _limit(connection)
    return connection


def _how(path: Path) -> str:
    """Return how SQLite is to open the file: without files beside it where those can't be made."""
    if os.access(path.parent, os.W_OK):
        return "mode=ro"
    beside = {name: path.with_name(path.name + name) for name in ("-wal", "-journal", "-shm")}
    if os.path.exists(beside["-shm"]):
        return "mode=ro"  # of somebody who writes it
    for name in ("-wal", "-journal"):
        with contextlib.suppress(OSError):
            if os.stat(beside[name]).st_size:
                raise RecordingError(
                    f"{clean(path.name)} was cut off and lies where nothing can be written: "
                    f"copy it, with the {name} beside it, elsewhere"
                )
    return "mode=ro&immutable=1"


def _limit(connection: sqlite3.Connection) -> None:
    """Bound what a crafted file can cost."""
    if hasattr(connection, "setlimit"):  # Python 3.11
        connection.setlimit(_LIMIT_LENGTH, _LONGEST)


def boot_id() -> str:
    """Return what names this machine's present start, over which its monotonic clock runs, and its processes' ids.

    Containers of one pod have the host name in common, but not these.
    """
    name, space = socket.gethostname(), FIRST_PID_NAMESPACE
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        name = file.read().strip()
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return name if space == FIRST_PID_NAMESPACE else f"{name} {space}"


def here() -> tuple[str, str]:
    """Return this machine's host name and start: where both are the same, so are processes' ids."""
    return clean(os.uname().nodename)[:200], boot_id()


def runs(pid: int) -> bool:
    """Tell whether a process of this machine runs; one that has ended and waits for its parent does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read(4096).rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False
