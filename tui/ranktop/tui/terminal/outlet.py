"""Writes to the terminal on a thread of its own: whoever draws never waits for it, and its end is noticed."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

AT_ONCE: Final = 4096
"""Bytes of one call: what a terminal's own queue takes without waiting."""


class Outlet(threading.Thread):
    """A queue of bytes in front of a descriptor. The pacing keeps it short; nothing else does."""

    def __init__(self, descriptor: int, lost: Callable[[], None]) -> None:
        """``lost`` is called once, on the thread, when the terminal is gone."""
        super().__init__(daemon=True, name="ranktop-output")
        self._descriptor, self._lost = descriptor, lost
        self._waiting: deque[bytes] = deque()
        self._ready = threading.Condition()
        self._ends = False
        self.gone = False

    def write(self, data: bytes) -> None:
        """Add bytes to the queue; those for a terminal that is gone are dropped."""
        with self._ready:
            if data and not self.gone:
                self._waiting.append(data)
                self._ready.notify()

    def stop(self, seconds: float) -> bool:
        """Write what waits, for so long at most; False when some of it is left."""
        with self._ready:
            self._ends = True
            self._ready.notify()
        if self.is_alive():
            self.join(seconds)
        return not self.is_alive()

    def run(self) -> None:
        """Write until told to stop and nothing waits, or until the terminal is gone."""
        while True:
            with self._ready:
                while not self._waiting:
                    if self._ends:
                        return
                    self._ready.wait()
                data = b"".join(self._waiting)
                self._waiting.clear()
            try:
                self._put(data)
            except OSError:
                self.gone = True
                self._lost()
                return

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._some(view[:AT_ONCE]) :]

    def _some(self, view: memoryview) -> int:
        try:
            return os.write(self._descriptor, view)
        except BlockingIOError:  # another program may have left the terminal in this mode
            select.select([], [self._descriptor], [], 1.0)
            return 0
