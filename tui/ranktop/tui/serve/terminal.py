"""A dashboard in a pseudo-terminal: for it a browser is a terminal like any other."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from typing import Final

from ranktop.tui.theme import speaks_unicode

PATIENCE: Final = 1.5
"""Seconds that a dashboard may take to end when its terminal is gone."""

MOST_CELLS: Final = 1000
"""Columns or rows that a browser may ask for."""

_PIECE: Final = 64 * 1024
_DROPPED: Final = ("TMUX", "TMUX_PANE", "STY", "COLUMNS", "LINES", "TERM_PROGRAM", "TEXTUAL_DRIVER", "RANKTOP_LINK")
"""What describes the terminal that the server was started in."""

_PROGRAM: Final = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # keys, sizes and questions of ssh come by the controlling terminal
sys.path[:] = [entry for entry in sys.path if entry]
sys.argv[0] = "ranktop"
from ranktop.tui.cli import main
main()
"""


class Dashboard:
    """One dashboard, from start to end. All of it belongs to one event loop."""

    def __init__(self, words: Sequence[str], columns: int, rows: int) -> None:
        """Start ``ranktop WORDS``; OSError when it cannot be started."""
        self._master, slave = pty.openpty()
        self._open = True
        try:
            self.resize(columns, rows)
            os.set_blocking(self._master, False)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *words],
                stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment(os.environ),
            )  # fmt: skip
        except BaseException:
            os.close(self._master)
            raise
        finally:
            os.close(slave)

    async def read(self) -> bytes:
        """Return what the dashboard has drawn, at least a byte; nothing once it has ended."""
        while self._open:
            with contextlib.suppress(BlockingIOError):
                return self._take()
            await self._readable()
        return b""

    def _take(self) -> bytes:
        try:
            return os.read(self._master, _PIECE)
        except BlockingIOError:
            raise
        except OSError:  # EIO: nobody has the other end any more
            return b""

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._master, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._master)

    def write(self, data: bytes) -> None:
        """Type. A dashboard that reads no keys misses them; Ctrl-Z does nothing: no shell could bring it back."""
        with contextlib.suppress(OSError):
            if self._open:
                os.write(self._master, data.replace(b"\x1a", b""))

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size, while it is there: its descriptor may be anything's later."""
        if not self._open:
            return
        sides = [min(max(1, side), MOST_CELLS) for side in (rows, columns)]
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", *sides, 0, 0))

    async def code(self) -> int:
        """Return the exit code, once ``read`` has nothing more."""
        while (code := self._process.poll()) is None:
            await asyncio.sleep(0.02)
        return code

    async def end(self) -> None:
        """Take the terminal away; what does not end of that within ``PATIENCE`` seconds is killed."""
        if self._open:
            self._open = False
            # The kernel tells every process of the session (SIGHUP).
            os.close(self._master)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.code(), PATIENCE)
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a dashboard that is drawn by the page's terminal, xterm.js."""
    kept = {name: value for name, value in given.items() if name not in _DROPPED}
    kept |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    if not speaks_unicode(kept):
        kept["LC_ALL"] = "C.UTF-8"
    return kept
