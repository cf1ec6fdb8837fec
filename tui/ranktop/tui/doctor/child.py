"""Processes that ask what may hang: read line by line up to a deadline, killed afterwards, never waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child that runs in another folder: what was relative to this one is not any more."""
    entries = [os.path.abspath(entry) for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    changed = {"PYTHONPATH": os.pathsep.join(entries)} if entries else {}
    return {**environ, **changed, "PYTHONUNBUFFERED": "1"}


class Child:
    """A process in a session of its own, and what it has said so far."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], folder: str = "/") -> None:
        """OSError when it cannot be started. Its input stays open until :meth:`close` or the end of this process."""
        self.started = time.monotonic()
        self.lines: list[str] = []
        self.errors: list[str] = []
        """Last lines of standard error."""
        self._news = threading.Condition()
        self._open = 2
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            cwd=folder,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        for stream, lines in ((self._process.stdout, self.lines), (self._process.stderr, self.errors)):
            threading.Thread(target=self._read, args=(stream, lines), daemon=True).start()

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in stream:
                with self._news:
                    lines.append(line.rstrip("\n"))
                    del lines[:-500]
                    self._news.notify_all()
        with self._news:
            self._open -= 1
            self._news.notify_all()

    def wait_for(self, wanted: Callable[[], bool], until: float) -> bool:
        """Wait until what was said is what is wanted, the process has ended, or the time is over."""
        with self._news:
            while not wanted() and self._open and time.monotonic() < until:
                self._news.wait(min(0.1, max(0.0, until - time.monotonic())))
            return wanted()

    @property
    def ended(self) -> bool:
        """The process has closed its outputs."""
        return self._open == 0

    def code(self, seconds: float = 1.0) -> int | None:
        """Return the exit code of a process that has closed its outputs; None when it is not over after all."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def close(self) -> bool:
        """Kill the process and what it has started in its session; tells whether it is dead."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        # A process in an uninterruptible call of the driver does not even die: it is left to init.
        dead = self.code(0.5) is not None
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        return dead
