"""The real program in a real terminal: keys, pacing, and leaving whatever hangs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("pty_dashboard.py")
QUESTION = b"\x1b[6n"
ANSWER = b"\x1b[5;7R"


class Terminal:
    """A pty with the dashboard in it; reads only when asked to."""

    def __init__(self, trace: Path, mode: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8", PYTHONUTF8="1")
            os.environ.pop("NO_COLOR", None)
            os.execv(sys.executable, [sys.executable, str(SCRIPT), str(trace), mode])
        self.seen = b""
        self.status: int | None = None
        self.resize(80, 24)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def waiting(self) -> int:
        """Return the bytes that were written and not read."""
        number = struct.pack("i", 0)
        return int(struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, number))[0])

    def press(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def read(self, seconds: float) -> bytes:
        got = b""
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0:
            if select.select([self.fd], [], [], left)[0]:
                with contextlib.suppress(OSError):
                    got += os.read(self.fd, 65536)
                    continue
                break
        self.seen += got
        return got

    def until(self, text: str, seconds: float = 15.0, *, answer: bool = True) -> None:
        """Read until a text appears in what is new, answering the terminal's questions on the way."""
        new = b""
        limit = time.monotonic() + seconds
        while text.encode() not in new:
            assert time.monotonic() < limit, f"{text!r} did not appear; the end: {new[-400:]!r}"
            got = self.read(0.05)
            if answer:
                self.press(ANSWER * got.count(QUESTION))
            new += got

    def ended(self, seconds: float, *, read: bool = True) -> int | None:
        """Return the exit code, None when the program is still there after these seconds."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and self.status is None:
            if read:
                self.read(0.02)
            else:
                time.sleep(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "drained"


@contextlib.contextmanager
def terminal(trace: Path, mode: str = "normal") -> Iterator[Terminal]:
    opened = Terminal(trace, mode)
    try:
        yield opened
    finally:
        opened.close()


def test_keys_sizes_and_leaving(trace: Path) -> None:
    with terminal(trace) as tty:
        tty.until("live")
        tty.press(b"?")
        tty.until("Order and filter")
        tty.press(b"?j")
        for size in ((1, 1), (3, 2), (200, 60)):
            tty.resize(*size)
            tty.press(ANSWER * tty.read(0.05).count(QUESTION))
        # A size that has not been painted yet is painted whole; else only the cells that changed are sent.
        tty.resize(100, 30)
        tty.until("rank 1 ")
        tty.press(b"/cuda:3\r")
        tty.until("1 of 4 ranks")
        tty.press(b"q")
        assert tty.ended(3.0) == 0
        # The alternate screen is left and the cursor is back.
        assert b"\x1b[?1049l" in tty.seen
        assert b"\x1b[?25h" in tty.seen
        assert b"Traceback" not in tty.seen


def test_frames_wait_for_a_terminal_that_answers(trace: Path) -> None:
    with terminal(trace) as tty:
        tty.until("live")
        tty.read(0.7)
        tty.press(ANSWER)
        tty.read(1.0)
        before = tty.seen.count(QUESTION)
        # Unanswered from here on: the job goes on, no further frame does.
        quiet = tty.read(2.5)
        assert tty.seen.count(QUESTION) - before <= 1
        assert len(quiet) < 20_000
        tty.press(ANSWER * 2)
        tty.until("\x1b[6n", 5.0)
        tty.press(b"\x03")
        assert tty.ended(3.0) == 0


@pytest.mark.parametrize("mode", ["hang", "unread"])
def test_leaves_within_a_second_although_something_hangs(trace: Path, mode: str) -> None:
    with terminal(trace, mode) as tty:
        reading = mode == "hang"
        if reading:
            tty.until("live")
        else:
            # Nobody reads: the first frame fills the pty, and whoever writes on is stuck.
            limit = time.monotonic() + 15
            while not (trace.exists() and tty.waiting() > 2000):
                assert time.monotonic() < limit
                time.sleep(0.02)
        pressed = time.monotonic()
        tty.press(b"q")
        assert tty.ended(6.0, read=reading) == 0
        # A second of its own, the rest for a busy machine.
        assert time.monotonic() - pressed < 3.0


def test_a_signal_puts_the_terminal_back(trace: Path) -> None:
    with terminal(trace) as tty:
        tty.until("live")
        os.kill(tty.pid, signal.SIGTERM)
        assert tty.ended(3.0) == 128 + signal.SIGTERM
        assert b"\x1b[?1049l" in tty.seen
