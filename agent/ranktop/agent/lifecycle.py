"""Starts a job's hub: one process of its own, detached from the rank that happens to start it."""

from __future__ import annotations

import contextlib
import os
import site
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from ranktop.wire.endpoints import (
    AGENTS_SOCKET,
    LOG_BYTES,
    LOG_FILE,
    VIEWERS_SOCKET,
    JobFile,
    is_listening,
    read_job_file,
    secure_directory,
    socket_path,
    take_lock,
    write_job_file,
)
from ranktop.wire.schema import Job

_KEPT: Final = (
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONHOME",
    "PYTHONNOUSERSITE",
    "PYTHONUSERBASE",
    "RANKTOP_HUB_BIND",
    "RANKTOP_HUB_LINGER",
    "RANKTOP_HUB_PORT",
    "RANKTOP_RECORD",
    "RANKTOP_RECORD_BYTES",
    "RANKTOP_RECORD_JOBS",
    "RANKTOP_RUN_DIR",
    "RANKTOP_STATE_DIR",
    "TMPDIR",
    "TZ",
    "VIRTUAL_ENV",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
)
"""Variables that a hub gets; a job's environment also holds tokens, and preloads meant for training."""

_IN_BACKGROUND: Final = ("/bin/sh", "-c", '"$@" &', "sh")
"""A child that lives for a millisecond only: a script that waits for any of its own might be told of it."""

_POLL: Final = 0.02

_held: set[int] = set()
"""Locks that this process holds for the moment of starting a hub."""


def _drop_held_locks() -> None:
    """Let go of a lock that a fork copied: a data loader's worker would hold it for its whole life."""
    while _held:
        with contextlib.suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_drop_held_locks)


def ensure_hub(job: Job, directory: Path, *, wait: float = 0.0) -> bool:
    """Start the job's hub unless one runs. ``directory`` is the job's own; it is made when missing.

    Returns whether a hub runs or was started; with ``wait`` seconds, whether it takes connections by then.
    RunDirectoryError when the directory cannot be used, OSError when the process cannot be started.
    """
    secure_directory(directory.parent)
    socket_path(directory, VIEWERS_SOCKET)
    lock = _lock(directory)
    if lock is not None:
        _held.add(lock)
        try:
            _start(job, directory, lock)
        except BaseException:
            _release(lock)
            raise
    deadline = time.monotonic() + wait
    while wait > 0 and not is_listening(directory, AGENTS_SOCKET):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True


def _lock(directory: Path) -> int | None:
    # A hub that ends removes the directory; it may do so between these two lines.
    for attempt in range(100):
        secure_directory(directory)
        try:
            return take_lock(directory)
        except FileNotFoundError:
            if attempt == 99:
                raise
    return None


def _release(lock: int) -> None:
    if lock in _held:
        _held.discard(lock)
        os.close(lock)


def _start(job: Job, directory: Path, lock: int) -> None:
    """Run the hub with the lock inherited: from here on the lock lives exactly as long as the hub does."""
    started = time.time()
    with contextlib.suppress(OSError, ValueError):
        started = read_job_file(directory).started or started
    write_job_file(directory, JobFile.of(job, started))
    log = os.open(directory / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(log).st_size > LOG_BYTES:
            os.ftruncate(log, 0)
        process = subprocess.Popen(
            [*_IN_BACKGROUND, sys.executable, "-m", "ranktop.agent.hub", str(directory), str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            env=_environment(),
            pass_fds=(lock,),
            start_new_session=True,
        )
    finally:
        os.close(log)
    _release(lock)
    # The shell ends at once, so that the hub is nobody's child here.
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")}
    if kept.get("RANKTOP_STATE_DIR"):
        # The hub runs in another directory.
        kept["RANKTOP_STATE_DIR"] = os.path.abspath(os.path.expanduser(kept["RANKTOP_STATE_DIR"]))
    given = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    # A script may have found ranktop through its own sys.path; the hub must find the same one. Site folders are
    # found anyway, and in front of the standard library they might hide parts of it.
    roots = [os.path.dirname(os.path.abspath(root)) for root in sys.modules["ranktop"].__path__]
    roots = [root for root in roots if root not in (*site.getsitepackages(), site.getusersitepackages())]
    kept["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*given, *roots]))
    return kept
