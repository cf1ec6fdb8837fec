"""A terminal that reads everything at once, counts it, and answers what a modern terminal answers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

ANSWERS = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[?2026$p": b"\x1b[?2026;2$y", b"\x1b[c": b"\x1b[?62;22c"}
"""Question -> answer: the cursor's position, synchronized output (supported), the kind of terminal."""

QUESTIONS = re.compile(b"|".join(map(re.escape, ANSWERS)))


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process's living threads, by the scheduler's clock: the usual one counts in 10 ms."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


class Terminal:
    """A program in a pseudo-terminal, read by a thread of its own."""

    def __init__(
        self, command: Sequence[str], size: tuple[int, int] = (120, 40), environment: Mapping[str, str] | None = None
    ) -> None:
        env = {**os.environ, **(environment or {}), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        env.update(LC_ALL="C.UTF-8", PYTHONUTF8="1")
        env.pop("NO_COLOR", None)
        self.bytes = 0
        self.last = 0.0
        """When bytes came last."""
        self._first: float | None = None
        """When they came first since keys were pressed."""
        self._marks: dict[bytes, float] = {}
        self._seen = bytearray()
        self._watching: set[bytes] = set()
        self.started = time.monotonic()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
                os.execvpe(command[0], list(command), env)
            os._exit(127)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                ready, _, _ = select.select([self._fd], [], [], 0.5)
                got = os.read(self._fd, 65536) if ready else b""
            except OSError:
                return
            if ready and not got:
                return
            if not got:
                continue
            self.last = time.monotonic()
            self._first = self._first or self.last
            self.bytes += len(got)
            for question in QUESTIONS.findall(got):
                with contextlib.suppress(OSError):
                    os.write(self._fd, ANSWERS[question])
            self._note(got)

    def _note(self, got: bytes) -> None:
        self._seen += got
        for text in list(self._watching):
            if text in self._seen:
                self._marks[text] = time.monotonic()
                self._watching.discard(text)

    def appeared(self, *texts: str, seconds: float = 20.0) -> list[float]:
        """Return for each text the seconds from the start until it was on the way to the screen."""
        wanted = [text.encode() for text in texts]
        self._watching.update(wanted)
        self._note(b"")
        limit = time.monotonic() + seconds
        while not all(text in self._marks for text in wanted):
            if time.monotonic() > limit:
                missing = [text for text in wanted if text not in self._marks]
                raise RuntimeError(f"{missing} did not appear; the end: {bytes(self._seen[-600:])!r}")
            time.sleep(0.002)
        return [self._marks[text] - self.started for text in wanted]

    def press(self, keys: str) -> float:
        """Type keys; returns when that was begun."""
        self._first = None
        now = time.monotonic()
        os.write(self._fd, keys.encode())
        return now

    def first_after(self, pressed: float) -> float:
        """Return when the first byte came since keys were pressed; that very time when none did."""
        return self._first or pressed

    def still(self, seconds: float, most: float = 20.0) -> None:
        """Wait until nothing has come for so many seconds."""
        limit = time.monotonic() + most
        began = time.monotonic()
        while time.monotonic() - max(began, self.last) < seconds and time.monotonic() < limit:
            time.sleep(0.005)

    def output(self) -> bytes:
        """Return everything that was written so far."""
        return bytes(self._seen)

    def processes(self) -> list[psutil.Process]:
        """Return the program and its children."""
        parent = psutil.Process(self.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu(self) -> float:
        """Return the CPU seconds that the program and its children have used."""
        return sum(cpu_seconds(process.pid) for process in self.processes())

    def resident(self) -> int:
        """Return the resident bytes of the program and its children."""
        return sum(process.memory_info().rss for process in self.processes())

    def close(self) -> None:
        """End the program by its quit key, else by force."""
        with contextlib.suppress(OSError):
            os.write(self._fd, b"q")
        limit = time.monotonic() + 2.0
        while time.monotonic() < limit:
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                break
            time.sleep(0.01)
        else:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)
