"""What ssh writes to standard error: shown while a person is asked for things, kept for the one line that explains."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import tty
from collections.abc import Callable
from typing import Final

from ranktop.tui.remote.explain import reworded
from ranktop.wire.codec import clean

KEPT: Final = 32 * 1024
"""Bytes of standard error that are kept."""

LONGEST: Final = 4096
"""Bytes of a line that are shown."""


def show(line: bytes) -> None:
    """Write a line of the far side to our own standard error, as harmless text."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(clean(line[:LONGEST].decode(errors="replace")) + "\n")
        sys.stderr.flush()


class Talk:
    """The standard error of one ssh, read on a thread of its own."""

    def __init__(self, *, person: bool, token: bytes | None = None) -> None:
        """``person``: somebody sits at a terminal and is to see what ssh says; some of it, as that a security key is to
        be touched, ssh tells a terminal only. After a line with ``token`` all is shown: the far program's own words.
        """
        self._person = person and sys.stderr.isatty()
        self._token = token
        self._passing = False
        self._kept = bytearray()
        self._lock = threading.Condition()
        if self._person:
            self._read_end, self.write_end = os.openpty()
            tty.setraw(self.write_end)
        else:
            self._read_end, self.write_end = os.pipe()
        self._thread = threading.Thread(target=self._read, daemon=True, name="ranktop-ssh-stderr")

    def start(self) -> None:
        """Begin to read, once ssh has its end."""
        os.close(self.write_end)
        self._thread.start()

    def quiet(self) -> None:
        """Show nothing from now on: ssh asks nothing more."""
        self._person = False

    @property
    def passing(self) -> bool:
        """Whether the far program has begun to speak."""
        return self._passing

    def said(self) -> str:
        """Return the last that was said."""
        with self._lock:
            return self._kept.decode(errors="replace")

    def until(self, mark: str, seconds: float = 1.0) -> str:
        """Wait for a line with this mark, and return what was said before it: the two outputs of a program on the far
        side come by different ways."""
        with self._lock:
            self._lock.wait_for(lambda: mark.encode() in self._kept, seconds)
            return self._kept.decode(errors="replace").partition(mark)[0]

    def finish(self, seconds: float = 1.0) -> str:
        """Wait for the end of what is said, and return the last of it. A process that ssh left may hold it open."""
        self._thread.join(seconds)
        return self.said()

    def forget(self) -> None:
        """Drop what was said so far."""
        with self._lock:
            self._kept.clear()

    def _read(self) -> None:
        rest = b""
        while data := self._some():
            with self._lock:
                self._kept += data
                del self._kept[:-KEPT]
                self._lock.notify_all()
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-LONGEST:]
            for line in lines:
                self._tell(line)
        if rest:
            self._tell(rest)
        os.close(self._read_end)

    def _some(self) -> bytes:
        # A pty whose other end is closed gives an error instead of an end.
        with contextlib.suppress(OSError):
            return os.read(self._read_end, 65536)
        return b""

    def _tell(self, line: bytes) -> None:
        if self._token is not None and self._token in line:
            self._passing = True
            self.forget()
            return
        if self._passing:
            show(line)
            return
        text = line.decode(errors="replace").strip("\r")
        if self._person and text.strip() and not reworded(text):
            show(line)


def pump(descriptor: int, take: Callable[[bytes], None]) -> None:
    """Give everything that can be read from a descriptor to ``take`` until its end."""
    while data := os.read(descriptor, 65536):
        take(data)
