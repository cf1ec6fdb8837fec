"""Watches the processes of a hub's own node: that one has ended, and how."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
from dataclasses import dataclass
from typing import Final

# linux/pidfd.h (6.13, exit status since 6.15): struct pidfd_info of 64 bytes, its first word the mask of what
# is asked for and given, its last the wait status. It answers only after the parent has collected the
# process, which is exactly when /proc no longer does.
_PIDFD_GET_INFO: Final = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT: Final = 1 << 3


ACTIVITIES: Final = {
    "T": "stopped",
    "t": "stopped",
    "D": "waiting for I/O",
    "S": "sleeping",
    "I": "sleeping",
    "R": "running",
}
"""State of proc_pid_stat(5) -> in a word."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A process that has ended."""

    pid: int
    how: str
    """``exit``, ``signal``, or ``vanished`` when its status could not be read."""
    code: int | None
    detail: str


@dataclass(slots=True)
class _Watched:
    pid: int
    descriptor: int | None
    """pidfd, or None where the kernel has none to give: then /proc is looked at now and then."""
    started: str
    """Start time in clock ticks, which tells a process from a later one with the same number."""
    readable: bool
    """Whether the kernel shows this user the exit status; where it does not, it shows a 0."""


class ProcessWatch:
    """Processes under watch. ``fileno`` becomes readable when one ends; ``gone`` then tells."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def fileno(self) -> int:
        """Return a descriptor for a poller."""
        return self._epoll.fileno()

    @property
    def must_look(self) -> bool:
        """Whether some process is watched without a pidfd, so that ``gone`` must be called on a timer."""
        return any(watched.descriptor is None for watched in self._watched.values())

    def watch(self, pid: int) -> bool:
        """Begin to watch a process; False when there is none of that number that belongs to this user."""
        if pid in self._watched:
            return True
        try:
            descriptor = _open(pid)
        except ProcessLookupError:
            return False
        status = _status(pid)
        if status is None or _owner(pid) != os.geteuid():
            if descriptor is not None:
                os.close(descriptor)
            return False
        if descriptor is not None:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._watched[pid] = _Watched(pid, descriptor, status.started, _may_read(pid))
        return True

    def activity(self, pid: int) -> str:
        """Return what a watched process does (its first thread): a word of :data:`ACTIVITIES`, empty when unknown."""
        watched, status = self._watched.get(pid), _status(pid)
        if watched is None or status is None or status.started != watched.started:
            return ""
        return ACTIVITIES.get(status.state, "")

    def gone(self) -> list[Gone]:
        """Return the processes that have ended since the last call; they are no longer watched."""
        ready = {descriptor for descriptor, _ in self._epoll.poll(0)}
        ended = [watched for watched in self._watched.values() if self._has_ended(watched, ready)]
        return [self._forget(watched) for watched in ended]

    def close(self) -> None:
        """Stop watching."""
        for watched in self._watched.values():
            if watched.descriptor is not None:
                os.close(watched.descriptor)
        self._watched.clear()
        self._epoll.close()

    @staticmethod
    def _has_ended(watched: _Watched, ready: set[int]) -> bool:
        if watched.descriptor is not None:
            return watched.descriptor in ready
        status = _status(watched.pid)
        return status is None or status.started != watched.started or status.state in "ZX"

    def _forget(self, watched: _Watched) -> Gone:
        code = _exit_status(watched)
        del self._watched[watched.pid]
        if watched.descriptor is not None:
            self._epoll.unregister(watched.descriptor)
            os.close(watched.descriptor)
        return _describe(watched.pid, code)


@dataclass(frozen=True, slots=True)
class _Status:
    state: str
    started: str
    exit_code: int


def _open(pid: int) -> int | None:
    if not 0 < pid < 2**31:
        raise ProcessLookupError
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", None) == errno.EINVAL:
            raise ProcessLookupError from None  # the number of a thread
        return None  # an old kernel, or a sandbox that forbids the call


def _status(pid: int) -> _Status | None:
    """Read /proc/PID/stat: fields 3 (state), 22 (start time) and 52 (exit code) of proc_pid_stat(5)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return _Status(fields[0].decode(), fields[19].decode(), int(fields[49]))
    except (OSError, IndexError, ValueError):
        return None


def _owner(pid: int) -> int | None:
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Uid:"):
                return int(line.split()[2])
    return None


def _may_read(pid: int) -> bool:
    """Tell whether the fields of /proc that need ptrace's read permission are shown."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return True


def _exit_status(watched: _Watched) -> int | None:
    status = _status(watched.pid)
    if status is not None and status.started == watched.started and status.state == "Z" and watched.readable:
        return status.exit_code
    if watched.descriptor is None:
        return None
    info = bytearray(64)
    struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(watched.descriptor, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    (mask,) = struct.unpack_from("=Q", info, 0)
    (code,) = struct.unpack_from("=i", info, 60)
    return code if mask & _PIDFD_INFO_EXIT else None


def _describe(pid: int, status: int | None) -> Gone:
    """Put a wait status (wait(2)) into words."""
    if status is None:
        return Gone(pid, "vanished", None, "its exit status could not be read")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return Gone(pid, "signal", number, name)
    code = os.WEXITSTATUS(status)
    return Gone(pid, "exit", code, f"exit code {code}")
