"""How long a thread was ready to run and had no CPU, as Linux counts it for every thread (``schedstat``)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ranktop.probes.kernel_files import text_of

_TASKS: Final = Path("/proc/self/task")

_SHORTEST: Final = 0.02
"""Seconds; a share of less would say more of the scheduler's ticks than of the thread."""


class StarvationProbe:
    """Tells the share of the time between two readings in which one thread waited for a CPU."""

    def __init__(self, tasks: Path = _TASKS, clock: Callable[[], float] = time.monotonic) -> None:
        """Read below ``tasks``, and the time from ``clock`` in seconds."""
        self._tasks = str(tasks)
        self._clock = clock
        self._last: tuple[int, float, int] | None = None
        self._share: float | None = None

    def read(self, thread: int | None) -> float | None:
        """Return the share, 0 to 1, since the last call, of a thread by its ``threading.get_ident()``.

        None is the main thread. Returns None where the kernel does not tell, and for a thread that was not the same
        the last time. The kernel adds a wait when it ends: one that lasts is told later, but not lost.
        """
        native = native_id(thread)
        waited = self._waited(native) if native is not None else None
        now = self._clock()
        if native is None or waited is None:
            self._last = self._share = None
            return None
        if self._last is None or self._last[0] != native:
            self._last, self._share = (native, now, waited), None
        elif now - self._last[1] >= _SHORTEST:
            self._share = min(1.0, max(0.0, (waited - self._last[2]) / 1e9 / (now - self._last[1])))
            self._last = native, now, waited
        return self._share

    def _waited(self, native: int) -> int | None:
        """Return the nanoseconds that a thread has waited for a CPU since it began."""
        try:
            ran, waited, slices = text_of(f"{self._tasks}/{native}/schedstat").split()[:3]
            # A kernel that does not count shows zeros; a thread that has started has run.
            return int(waited) if int(ran) or int(slices) else None
        except (OSError, ValueError):
            return None


def native_id(thread: int | None) -> int | None:
    """Return the kernel's id of a thread by its ``threading.get_ident()``; None when Python does not know it."""
    try:
        main = threading.main_thread()
        if thread is None or thread == main.ident:
            return main.native_id
        return next((known.native_id for known in threading.enumerate() if known.ident == thread), None)
    except Exception:  # a script has put its own threads in place of Python's
        return None
