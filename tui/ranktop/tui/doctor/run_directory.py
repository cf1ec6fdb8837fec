"""The run directory, where agents and viewers of one node meet."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shlex
import socket
import stat
from pathlib import Path
from typing import Final

from ranktop.tui.doctor.check import Check, Result, failed, passed, skipped, warned
from ranktop.tui.doctor.scene import Scene
from ranktop.wire.endpoints import (
    LOCK_FILE,
    VIEWERS_SOCKET,
    RunDirectoryError,
    check_directory,
    find_jobs,
    is_job_file,
    is_listening,
    search_directories,
    socket_path,
)

_USUAL_ID: Final = "0" * 10
_LONGEST_ID: Final = "0" * 32
_ANOTHER: Final = "set RANKTOP_RUN_DIR to a directory of yours on a local disk"


def directory(scene: Scene) -> Path:
    """Return the run directory that an agent started here would use."""
    return search_directories()[0]


def look_at_directory(scene: Scene) -> Result:
    """Tell which directory it is, whose, and whether it may be used."""
    path = directory(scene)
    facts: dict[str, object] = {"path": str(path), "source": _source(scene, path)}
    if not os.path.lexists(path):
        return _missing(path, facts)
    status = os.lstat(path)
    facts.update(owner=status.st_uid, mode=f"{stat.S_IMODE(status.st_mode):04o}")
    try:
        check_directory(path)
    except RunDirectoryError as error:
        # "<path> what is wrong: what to do"
        found, _, advice = str(error).removeprefix(str(path)).partition(": ")
        return failed(f"{path}{found}", advice.removeprefix("refused; ") or _ANOTHER, **facts)
    return passed(f"{path}, mode {facts['mode']} ({facts['source']})", **facts)


def _source(scene: Scene, path: Path) -> str:
    if scene.environ.get("RANKTOP_RUN_DIR"):
        return "RANKTOP_RUN_DIR"
    runtime = scene.environ.get("XDG_RUNTIME_DIR")
    return "XDG_RUNTIME_DIR" if runtime and path.parent == Path(runtime) else "temporary folder"


def _missing(path: Path, facts: dict[str, object]) -> Result:
    """Tell whether an agent could make it: some folder above it must exist and be writable."""
    above = next((folder for folder in path.parents if folder.exists()), Path("/"))
    if os.access(above, os.W_OK | os.X_OK) and above.is_dir():
        return passed(f"{path} is not there yet: the first agent makes it", **facts, owner=None, mode=None)
    return failed(f"{path} is not there and cannot be made in {above}", _ANOTHER, **facts, owner=None, mode=None)


def look_at_sockets(scene: Scene) -> Result:
    """Tell whether a socket and a lock can be made there: paths have a limit, and not every file system serves them."""
    path = directory(scene)
    length = len(os.fsencode(str(path / _USUAL_ID / VIEWERS_SOCKET)))
    facts: dict[str, object] = {"length": length, "bound": None}
    try:
        socket_path(path / _USUAL_ID, VIEWERS_SOCKET)
    except RunDirectoryError:
        return failed(
            f"a socket's path would be {length} bytes long, at most 99 work",
            "set RANKTOP_RUN_DIR to a shorter one",
            **facts,
        )
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        return skipped(
            f"a socket's path is {length} bytes long; none can be tried before the directory is there", **facts
        )
    try:
        _try_socket(path)
    except OSError as error:
        facts["bound"] = False
        return failed(f"no socket or lock can be made there: {error.strerror or error}", _ANOTHER, **facts)
    facts["bound"] = True
    longest = len(os.fsencode(str(path / _LONGEST_ID / VIEWERS_SOCKET)))
    if longest > 99:
        return warned(
            f"a socket's path is {length} bytes long; job ids may have at most {32 - (longest - 99)} letters",
            "set RANKTOP_RUN_DIR to a shorter one, or keep RANKTOP_JOB_ID short",
            **facts,
        )
    return passed(f"sockets and locks work there; a socket's path is {length} of at most 99 bytes", **facts)


def _try_socket(path: Path) -> None:
    """Bind, connect and lock in the directory, and leave nothing there; OSError."""
    name = path / f".{secrets.token_hex(4)}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(str(name))
            server.listen(1)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(2)
                client.connect(str(name))
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
        os.unlink(name)


def look_at_leftovers(scene: Scene) -> Result | list[Result]:
    """Tell of directories whose hub was killed; ranktop removes them by itself after an hour where it can."""
    path = directory(scene)
    find_jobs()  # which cleans away what it may
    try:
        entries = sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError:
        return []
    left = [entry for entry in entries if _is_left(entry)]
    stuck = [entry.name for entry in left if _strangers(entry)]
    facts = {"leftovers": [entry.name for entry in left], "stuck": stuck}
    if stuck:
        found = f"{path / stuck[0]} is of a dead job and holds what ranktop does not remove"
        return warned(found, f"rm -r {shlex.quote(str(path / stuck[0]))}", **facts)
    if left:
        return passed(f"{len(left)} of jobs whose hub was killed; cleaned away an hour later", **facts)
    return passed("nothing is left of dead jobs", **facts)


def _strangers(path: Path) -> list[str]:
    """Return what is in a job's directory and not a file of its hub: ranktop leaves such a directory where it is."""
    with contextlib.suppress(OSError):
        return [entry.name for entry in path.iterdir() if not is_job_file(entry.name)]
    return []


def _is_left(path: Path) -> bool:
    if is_listening(path, VIEWERS_SOCKET):
        return False
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # a hub that is about to start, or to end, holds it
    finally:
        os.close(descriptor)
    return True


CHECKS = (
    Check("run.directory", "directory", look_at_directory),
    Check("run.sockets", "sockets", look_at_sockets),
    Check("run.leftovers", "leftovers", look_at_leftovers),
)
