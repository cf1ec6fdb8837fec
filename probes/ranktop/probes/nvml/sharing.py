"""One reading of a device for all processes of a host that want it.

Whoever holds the lock of a device reads the driver and, as long as others want it, writes what came of it to a file
that they read instead. The lock ends with its holder, and another takes over. Where locks or files don't work each
process reads for itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from ranktop.probes.nvml.processes import Entry
from ranktop.probes.reading import DeviceDetail, DeviceIdentity, DeviceReading

_VERSION: Final = 1
_LARGEST: Final = 1 << 20
"""Bytes of a file that is read."""
_PASSED_ON: Final = ("ok", "no answer", "lost", "reset required")
"""States that are the device's; another may be the reader's own trouble."""
_OPEN: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class Shared(msgspec.Struct, frozen=True):
    """What the reader tells the others."""

    version: int
    pid: int
    stamp: float
    """Clock (CLOCK_MONOTONIC, the same for all processes of a host) of the readings."""
    identity: DeviceIdentity
    reading: DeviceReading
    """Its process fields are the reader's own."""
    detail: DeviceDetail | None
    entries: list[Entry] | None
    """The list of processes as the driver gave it."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Shared)


class Sharing:
    """This process's part in the sharing of one device."""

    def __init__(self, folder: Path, key: str, patience: float, clock: Callable[[], float]) -> None:
        """``patience``: seconds after which a reader that tells nothing new is given up."""
        self._lock_path = folder / f"nvml-{key}.lock"
        self._file = folder / f"nvml-{key}.json"
        self._want = folder / f"nvml-{key}.want"
        self._patience, self._clock = patience, clock
        self._lock = _Lock()
        self._heard = clock()
        self._writing = threading.Lock()
        self._told = -patience
        self._closed = False

    def reads(self) -> bool:
        """Return whether it is on this process to read the driver, as far as locks tell."""
        if self._closed:
            return False
        had = self._lock.held
        try:
            reads = self._lock.take(self._lock_path)
        except OSError:
            return True
        if reads and not had:
            # What another reader, or another boot, has left there is not to be taken for this one's.
            with contextlib.suppress(OSError):
                self._file.unlink()
        return reads

    def news(self) -> Shared | None:
        """Say that the reading is wanted and return it; None when there is none of use."""
        try:
            self._touch()
            told = self._load()
        except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors.
            return None
        now = self._clock()
        if told.version != _VERSION or not 0 <= now - told.stamp <= self._patience:
            return None
        if told.reading.state not in _PASSED_ON:
            return None
        self._heard = now
        return told

    def silent(self) -> bool:
        """Return whether there has been no news for so long that this process reads for itself."""
        return self._clock() - self._heard > self._patience

    def wanted(self) -> bool:
        """Return whether another process wants the reading."""
        try:
            return time.time() - os.stat(self._want).st_mtime < 3 * self._patience
        except OSError:
            return False

    def tell(self, told: Shared) -> None:
        """Write the reading for the others; what can't be written is not."""
        temporary = self._file.with_suffix(f".{told.pid}")
        with self._writing, contextlib.suppress(OSError, ValueError):
            if self._closed or not self._lock.held:
                return
            data = _encoder.encode(told)
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OPEN, 0o600)
            try:
                with open(file, "wb") as stream:
                    stream.write(data)
                os.replace(temporary, self._file)
            except OSError:
                # A disk that is full: half a file helps nobody.
                temporary.unlink()
                raise
            self._told = told.stamp

    def told_since(self, seconds: float) -> bool:
        """Return whether something has been told in the last so many seconds."""
        return self._clock() - self._told < seconds

    def close(self) -> None:
        """Let another process take over; the reader takes its files along."""
        with self._writing:
            self._closed = True
            if self._lock.held:
                for path in (self._file, self._want, self._lock_path):
                    with contextlib.suppress(OSError):
                        path.unlink()
            self._lock.release()

    def _touch(self) -> None:
        try:
            os.utime(self._want)
        except FileNotFoundError:
            os.close(os.open(self._want, os.O_WRONLY | os.O_CREAT | _OPEN, 0o600))

    def _load(self) -> Shared:
        file = os.open(self._file, os.O_RDONLY | os.O_NONBLOCK | _OPEN)
        with open(file, "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > _LARGEST:
                raise ValueError("not a file of ours")
            return _decoder.decode(stream.read(_LARGEST))


class _Lock:
    """An exclusive lock of a file (flock(2)) that ends with this process, whatever its children do."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._taken = False
        self._process = os.getpid()

    @property
    def held(self) -> bool:
        """Whether this process has the lock."""
        return self._taken and self._process == os.getpid()

    def take(self, path: Path) -> bool:
        """Return whether the lock is held, trying to get it; raises OSError where locks don't work."""
        if self._process != os.getpid():
            return False
        if self._descriptor is not None and not _is_still(self._descriptor):
            # A script has closed descriptors that it did not open, as daemons do, and may have one of that number now.
            self.release()
        if self._taken and self._is_there(path):
            return True
        if self._descriptor is None:
            self._open(path)
        descriptor = self._descriptor
        assert descriptor is not None
        if not self._is_there(path):
            # Its last holder took the file along, or somebody has removed it: lock the one that is there next time.
            self.release()
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        if not self._is_there(path):
            self.release()
            return False
        self._taken = True
        return True

    def _open(self, path: Path) -> None:
        _require_private(path.parent)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN, 0o600)
        status = os.fstat(self._descriptor)
        _descriptors[self._descriptor] = (status.st_dev, status.st_ino)

    def _is_there(self, path: Path) -> bool:
        assert self._descriptor is not None
        try:
            there = os.lstat(path)
        except OSError:
            return False
        return _descriptors.get(self._descriptor) == (there.st_dev, there.st_ino)

    def release(self) -> None:
        """Let go of the lock."""
        descriptor, self._descriptor, self._taken = self._descriptor, None, False
        if descriptor is not None and self._process == os.getpid():
            _close(descriptor)


_descriptors: Final[dict[int, tuple[int, int]]] = {}
"""Of this process's locks -> device and inode of their file."""


def _require_private(folder: Path) -> None:
    """Raise OSError for a folder in which others could put what this process would open."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(errno.EACCES, "not this user's own folder", str(folder))


def _is_still(descriptor: int) -> bool:
    """Whether a descriptor is the one that was opened here."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return _descriptors.get(descriptor) == (status.st_dev, status.st_ino)


def _close(descriptor: int) -> None:
    """Close a lock's descriptor, and never what a script has opened under its number since."""
    mine = _is_still(descriptor)
    _descriptors.pop(descriptor, None)
    if mine:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _after_fork() -> None:
    """Close the child's copies: a lock lasts as long as any copy of its descriptor (data loaders outlive a rank)."""
    for descriptor in tuple(_descriptors):
        _close(descriptor)


os.register_at_fork(after_in_child=_after_fork)
