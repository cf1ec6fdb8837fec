"""A slow link with a terminal at its end: bytes leave a buffer at a rate, arrive after a delay, and are shown by pyte.

The link's time is whatever clock drives it: a virtual one in tests, the real one behind a pty (``ThrottledPty``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import pyte

GRAIN = 64
"""Bytes that arrive together."""

Cell = tuple[str, str, str, bool, bool, bool, bool]
"""Character, foreground, background, bold, italics, underscore, reverse; blanks without what nobody sees of them."""


class _Screen(pyte.Screen):
    """pyte's screen, which keeps its answers for the way back."""

    def __init__(self, columns: int, lines: int) -> None:
        self.answers: list[bytes] = []
        super().__init__(columns, lines)

    def write_process_input(self, data: str) -> None:
        self.answers.append(data.encode())

    def erase_in_display(self, how: int = 0, *args: object, **more: object) -> None:
        super().erase_in_display(how, *args, **more)
        if how == 2:  # pyte leaves out the cells that nobody wrote to
            for y in range(self.lines):
                for x in range(self.columns):
                    self.buffer[y][x] = self.cursor.attrs


class Emulator:
    """A terminal that shows what it reads. ``manner``: how it answers a question for the cursor's position.

    "once", "never", "twice", or "same": always with the same position.
    """

    def __init__(self, size: tuple[int, int], manner: str = "once") -> None:
        self.manner = manner
        self.screen = _Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.bytes = 0
        self.questions = 0

    def read(self, data: bytes) -> bytes:
        """Show bytes; returns what the terminal says to them."""
        self.bytes += len(data)
        self._stream.feed(data)
        answers, self.screen.answers = self.screen.answers, []
        self.questions += len(answers)
        if self.manner == "never":
            return b""
        if self.manner == "same":
            answers = [b"\x1b[1;1R"] * len(answers)
        return b"".join(answer * (2 if self.manner == "twice" else 1) for answer in answers)

    def resize(self, width: int, height: int) -> None:
        self.screen.resize(height, width)

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def cells(self) -> list[list[Cell]]:
        """Return what can be seen."""
        rows = []
        for y in range(self.screen.lines):
            row = self.screen.buffer[y]
            rows.append([look(row[x]) for x in range(self.screen.columns)])
        return rows


def look(char: pyte.screens.Char) -> Cell:
    front, back = (char.bg, char.fg) if char.reverse else (char.fg, char.bg)
    if char.data == "█" or (char.data in "▀▄" and front == back):
        return (" ", "", front, False, False, char.underscore, False)  # as it looks, however it was made
    if char.data == " ":
        return (" ", "", back, False, False, char.underscore, False)
    return (char.data, front, back, char.bold, char.italics, char.underscore, False)


class Link:
    """Two ways between a program and a terminal, by any clock. Rates in bytes a second, delays in seconds one way."""

    def __init__(
        self, clock: Callable[[], float], rate: float = 10_000, delay: float = 0.1, buffer: int = 65_536
    ) -> None:
        self.clock, self.rate, self.delay, self.buffer = clock, rate, delay, buffer
        self._waiting = bytearray()
        self._left_at = clock()
        self._flying: deque[tuple[float, bytes]] = deque()
        self._back: deque[tuple[float, bytes]] = deque()
        self.most = 0
        """Most bytes that ever waited in the buffer."""

    def room(self) -> int:
        self._depart()
        return self.buffer - len(self._waiting)

    def send(self, data: bytes) -> None:
        """Put bytes into the buffer towards the terminal."""
        self._depart()
        if not self._waiting:
            self._left_at = self.clock()
        self._waiting += data
        self.most = max(self.most, len(self._waiting))

    def arrived(self) -> bytes:
        """Return what the terminal reads by now."""
        self._depart()
        got = b""
        while self._flying and self._flying[0][0] <= self.clock() + 1e-9:
            got += self._flying.popleft()[1]
        return got

    def send_back(self, data: bytes) -> None:
        """Send keys and answers towards the program; they are few, so they only take their time."""
        if data:
            self._back.append((self.clock() + self.delay, data))

    def arrived_back(self) -> bytes:
        got = b""
        while self._back and self._back[0][0] <= self.clock() + 1e-9:
            got += self._back.popleft()[1]
        return got

    def next_event(self) -> float | None:
        """Return when something arrives next, at either end; None when nothing is on its way."""
        self._depart()
        times = [queue[0][0] for queue in (self._flying, self._back) if queue]
        if self._waiting:
            times.append(self._left_at + min(GRAIN, len(self._waiting)) / self.rate)
        return min(times, default=None)

    def _depart(self) -> None:
        while self._waiting:
            grain = bytes(self._waiting[:GRAIN])
            left = self._left_at + len(grain) / self.rate
            if left > self.clock() + 1e-9:
                return
            del self._waiting[: len(grain)]
            self._left_at = left
            self._flying.append((left + self.delay, grain))


class ThrottledPty:
    """A program in a pty whose terminal is at the far end of a link, in real time, on a thread of its own."""

    def __init__(
        self,
        command: Sequence[str],
        size: tuple[int, int] = (80, 24),
        environment: Mapping[str, str] | None = None,
        *,
        rate: float = 10_000,
        delay: float = 0.1,
        buffer: int = 65_536,
        manner: str = "once",
    ) -> None:
        env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
        env.pop("NO_COLOR", None)
        env.update(environment or {})
        self.emulator = Emulator(size, manner)
        self.link = Link(time.monotonic, rate, delay, buffer)
        self.raw = bytearray()
        """All that was written."""
        self.lock = threading.Lock()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
                os.execvpe(command[0], list(command), env)
            os._exit(127)
        self.status: int | None = None
        self._ends = False
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether the program has let go of the terminal."""
        return not self._thread.is_alive()

    def press(self, keys: str) -> None:
        """Type at the far end."""
        with self.lock:
            self.link.send_back(keys.encode())

    def resize(self, width: int, height: int) -> None:
        with self.lock:
            self.emulator.resize(width, height)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def text(self) -> str:
        with self.lock:
            return self.emulator.text()

    def cells(self) -> list[list[Cell]]:
        with self.lock:
            return self.emulator.cells()

    def until(self, wanted: Callable[[], bool], seconds: float = 20.0) -> float:
        """Wait for a condition and return the seconds it took."""
        began = time.monotonic()
        while not wanted():
            assert time.monotonic() - began < seconds, f"not within {seconds} s; the screen:\n{self.text()}"
            time.sleep(0.02)
        return time.monotonic() - began

    def _carry(self) -> None:
        while not self._ends:
            with self.lock:
                room, due = self.link.room(), self.link.next_event()
            wait = 0.02 if due is None else min(0.02, max(0.0, due - time.monotonic()))
            try:
                ready = select.select([self.fd] if room > 0 else [], [], [], wait)[0]
                got = os.read(self.fd, min(room, 4096)) if ready else b""
            except OSError:
                return
            with self.lock:
                if got:
                    self.raw += got
                    self.link.send(got)
                if seen := self.link.arrived():
                    self.link.send_back(self.emulator.read(seen))
                back = self.link.arrived_back()
            if back:
                with contextlib.suppress(OSError):
                    os.write(self.fd, back)

    def settings(self) -> list[object]:
        """Return the modes of the terminal line."""
        return list(termios.tcgetattr(self.fd))

    def ended(self, seconds: float = 10.0) -> int:
        """Wait for the end and return the exit code."""
        limit = time.monotonic() + seconds
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            else:
                assert time.monotonic() < limit, f"it goes on; the screen:\n{self.text()}"
                time.sleep(0.01)
        self._thread.join(5.0)  # it reads to the end
        return self.status

    def close(self) -> None:
        """End the program by force, and the terminal with it."""
        self._ends = True
        self._thread.join()
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
