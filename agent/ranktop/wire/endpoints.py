"""Where hubs and viewers meet on one node: the run directory, the jobs' directories, and which are live."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import shlex
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from ranktop.wire.codec import WrongVersion, clean
from ranktop.wire.peers import is_trusted, user_behind
from ranktop.wire.schema import SCHEMA_VERSION, Job

AGENTS_SOCKET: Final = "agents.sock"
VIEWERS_SOCKET: Final = "viewers.sock"
LOCK_FILE: Final = "hub.lock"
"""Held (flock) by the hub for as long as it lives."""
JOB_FILE: Final = "job.json"
MARKER_FILE: Final = "hub.id"
"""Written by a hub at its start, removed at its end: a hub that finds one replaces a killed hub."""
LOG_FILE: Final = "hub.log"
LOG_BYTES: Final = 256 * 1024
"""Size above which hub.log starts anew."""
JOB_DIRECTORY_FILES: Final = (AGENTS_SOCKET, VIEWERS_SOCKET, JOB_FILE, MARKER_FILE, LOG_FILE, LOCK_FILE)
"""Every lasting file of a job's directory; the lock last, because it goes last."""
_PASSING_FILE: Final = re.compile(r"job\.json\.[0-9]{1,10}|nvml-[0-9a-f-]{36}\.(?:lock|json|want|[0-9]{1,10})")
"""What a process that is killed leaves there: half of a new ``job.json``, a device's shared reading (probes.nvml)."""

STALE_AFTER: Final = 3600.0
"""Seconds after which the directory of a killed hub may be cleaned away."""

_ADVICE: Final = "set RANKTOP_RUN_DIR to a directory of yours"
_MAX_SOCKET_PATH: Final = 99
_MAX_JOB_FILE: Final = 64 * 1024
_JOB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class RunDirectoryError(Exception):
    """The run directory cannot be used; the text is one line: what is wrong and how to mend it."""


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A live job of this node."""

    id: str
    name: str
    directory: Path
    world_size: int
    started: float
    """Wall clock, seconds since the epoch; only to show."""
    schema: int
    hub_pid: int
    ended: bool = False
    """Its last rank is gone; the hub stays for a while to tell of it."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search for jobs gave."""

    jobs: list[JobEntry] = field(default_factory=list)
    """Those that run before those that have ended, newest first."""
    problems: list[str] = field(default_factory=list)
    """One line each for what had to be left out."""

    def obvious(self) -> JobEntry | None:
        """Return the only job, or the only one that runs; None when there is nothing or a choice."""
        running = [entry for entry in self.jobs if not entry.ended]
        best = running or self.jobs
        return best[0] if len(best) == 1 else None


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of ``job.json``: what a viewer must know before it connects; every version reads it."""

    id: str
    name: str = ""
    world_size: int = 0
    started: float = 0.0
    schema: int = 0
    hub_pid: int = 0
    launcher: str = ""
    run_id: str = ""
    ended: bool = False

    @staticmethod
    def of(job: Job, started: float, hub_pid: int = 0, ended: bool = False) -> JobFile:
        """Describe a job in this version's schema."""
        return JobFile(
            id=job.id, name=job.name, world_size=job.world_size, started=started, schema=SCHEMA_VERSION,
            hub_pid=hub_pid, launcher=job.launcher, run_id=job.run_id, ended=ended,
        )  # fmt: skip

    def job(self) -> Job:
        """Return the job's identity."""
        return Job(id=self.id, name=self.name, world_size=self.world_size, launcher=self.launcher, run_id=self.run_id)


def run_directory(create: bool) -> Path:
    """Return the directory that holds this user's jobs on this node; with ``create``, make it and check it.

    ``RANKTOP_RUN_DIR``, else ``$XDG_RUNTIME_DIR/ranktop`` where that is the user's own, else
    ``<tmp>/ranktop-<uid>``.
    RunDirectoryError when it exists but is not private to this user.
    """
    path = _candidates()[0]
    if create:
        secure_directory(path)
    elif os.path.lexists(path):
        check_directory(path)
    return path


def search_directories() -> list[Path]:
    """Return where a viewer looks: a job may have been started in another kind of session than its own."""
    candidates = _candidates()
    if not os.environ.get("RANKTOP_RUN_DIR"):
        candidates.append(Path(f"/run/user/{os.geteuid()}/ranktop"))
    return list(dict.fromkeys(candidates))


def _candidates() -> list[Path]:
    named = os.environ.get("RANKTOP_RUN_DIR")
    if named:
        return [Path(os.path.abspath(os.path.expanduser(named)))]
    found = []
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    # `su` and `sudo -E` keep the variable of another user, and containers keep one that does not exist.
    if runtime and os.path.isabs(runtime) and _is_own_directory(runtime):
        found.append(Path(runtime) / "ranktop")
    # Schedulers give each job a TMPDIR of its own, where no viewer would look: /tmp comes first.
    temporary = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()
    found.append(Path(temporary) / f"ranktop-{os.geteuid()}")
    return found


def _is_own_directory(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and os.access(path, os.W_OK | os.X_OK)


def secure_directory(path: Path) -> None:
    """Make a directory that only this user can enter, or check the one that is there; RunDirectoryError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # a umask may have taken the owner's own bits
    except FileExistsError:
        pass
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be made ({error.strerror}): {_ADVICE}") from None
    check_directory(path)


def check_directory(path: Path) -> None:
    """Raise RunDirectoryError unless the path is a directory, no link, of this user and closed to others."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_ISLNK(status.st_mode):
        raise RunDirectoryError(f"{path} is a symbolic link: refused; set RANKTOP_RUN_DIR to a directory")
    if not stat.S_ISDIR(status.st_mode):
        raise RunDirectoryError(f"{path} is not a directory: remove it or set RANKTOP_RUN_DIR")
    if status.st_uid != os.geteuid():
        owner = _user_name(status.st_uid)
        # A volume of a container's: within it there can be a directory of this user's.
        volume = status.st_uid == 0 and os.access(path, os.W_OK)
        within = f"{_ADVICE}, {path / 'ranktop'} for one" if volume else _ADVICE
        raise RunDirectoryError(f"{path} belongs to user {owner}: refused; {within}")
    if stat.S_IMODE(status.st_mode) & 0o777 != 0o700:
        mode = stat.S_IMODE(status.st_mode)
        raise RunDirectoryError(f"{path} has mode {mode:04o}, not 0700: chmod 700 {shlex.quote(str(path))}")


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def job_directory(job_id: str) -> Path:
    """Return the directory of a job, made or not; RunDirectoryError for an impossible id."""
    if not _JOB_ID.fullmatch(job_id):
        raise RunDirectoryError(f"{clean(job_id)[:40]!r} is no job's id (at most 32 letters, digits, '-', '_')")
    directory = run_directory(create=False) / job_id
    socket_path(directory, VIEWERS_SOCKET)
    return directory


def socket_path(directory: Path, name: str) -> str:
    """Return the path of a socket; RunDirectoryError when it is too long for a Unix socket's address."""
    path = str(directory / name)
    length = len(os.fsencode(path))
    if length > _MAX_SOCKET_PATH:
        raise RunDirectoryError(
            f"{path} is {length} bytes long, a socket's path at most {_MAX_SOCKET_PATH}: "
            "set RANKTOP_RUN_DIR to a shorter one"
        )
    return path


def write_job_file(directory: Path, entry: JobFile) -> None:
    """Replace ``job.json`` in one step, so that no reader sees half of it."""
    temporary = directory / f"{JOB_FILE}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(entry))
        os.replace(temporary, directory / JOB_FILE)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_job_file(directory: Path) -> JobFile:
    """Read ``job.json``; OSError when there is none, ValueError when it cannot be understood."""
    descriptor = os.open(directory / JOB_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(_MAX_JOB_FILE + 1)
    if len(data) > _MAX_JOB_FILE:
        raise ValueError(f"larger than {_MAX_JOB_FILE} bytes")
    try:
        return msgspec.json.decode(data, type=JobFile)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_listening(directory: Path, name: str) -> bool:
    """Tell whether a process of this user serves a socket of a job's directory. Takes no lock and sends nothing."""
    try:
        path = socket_path(directory, name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(path)
            return is_trusted(user_behind(probe))
    except BlockingIOError:
        return True  # its queue of connections is full: somebody owns it
    except (OSError, RunDirectoryError):
        return False


def take_lock(directory: Path) -> int | None:
    """Return a descriptor that holds the hub's lock, or None when another process holds it; OSError.

    The file's identity is compared after locking: a hub that ends removes the file under its own lock.
    """
    path = directory / LOCK_FILE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def is_job_file(name: str) -> bool:
    """Tell whether ranktop makes files of that name in a job's directory, and may remove them."""
    return name in JOB_DIRECTORY_FILES or _PASSING_FILE.fullmatch(name) is not None


def remove_job_directory(directory: Path) -> None:
    """Remove the files of a job's directory and the directory; for whoever holds its lock.

    What ranktop does not make there stays, and the directory with it. Links are removed, never followed.
    """
    for name in (*_passing_files(directory), *JOB_DIRECTORY_FILES):
        with contextlib.suppress(OSError):
            os.unlink(directory / name)
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def _passing_files(directory: Path) -> list[str]:
    # The directory itself may have been replaced by a link to another place.
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(directory).st_mode):
            return [name for name in os.listdir(directory) if _PASSING_FILE.fullmatch(name)]
    return []


def find_jobs() -> Found:
    """Return the live jobs of this user on this node, and one line for each thing that could not be used."""
    found = Found()
    for directory in search_directories():
        if not os.path.lexists(directory):
            continue
        try:
            check_directory(directory)
            paths = sorted(directory.iterdir())
        except RunDirectoryError as error:
            found.problems.append(str(error))
            continue
        except OSError as error:
            found.problems.append(f"{directory} cannot be read: {error.strerror}")
            continue
        for path in paths:
            if _JOB_ID.fullmatch(path.name):
                _look_at(path, found)
    found.jobs.sort(key=lambda entry: (entry.ended, -entry.started))
    return found


def _look_at(path: Path, found: Found) -> None:
    try:
        check_directory(path)
        if not is_listening(path, VIEWERS_SOCKET):
            _clean_stale(path)
            return
        entry = read_job_file(path)
    except RunDirectoryError as error:
        found.problems.append(str(error))
        return
    except (OSError, ValueError) as error:
        found.problems.append(f"{path / JOB_FILE} cannot be read: {clean(str(error))[:120]}")
        return
    if entry.schema != SCHEMA_VERSION:
        found.problems.append(f"job {clean(entry.name)[:60]} ({path.name}): {WrongVersion(entry.schema)}")
        return
    found.jobs.append(
        JobEntry(
            # A directory keeps the name that its node gave the job, which has the first node's elsewhere.
            id=entry.id if _JOB_ID.fullmatch(entry.id) else path.name,
            name=clean(entry.name), directory=path, world_size=entry.world_size,
            started=entry.started, schema=entry.schema, hub_pid=entry.hub_pid, ended=entry.ended,
        )
    )  # fmt: skip


def _clean_stale(path: Path) -> None:
    """Remove what a killed hub left, when nobody holds its lock and nothing touched it for long."""
    with contextlib.suppress(OSError):
        if time.time() - max(_mtimes(path), default=time.time()) < STALE_AFTER:
            return
        lock = take_lock(path)
        if lock is not None:
            remove_job_directory(path)
            os.close(lock)


def _mtimes(path: Path) -> Iterator[float]:
    yield os.lstat(path).st_mtime
    for name in (*JOB_DIRECTORY_FILES, *_passing_files(path)):
        with contextlib.suppress(OSError):
            yield os.lstat(path / name).st_mtime
