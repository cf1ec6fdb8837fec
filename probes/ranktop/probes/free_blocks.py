"""The largest free block in torch's CUDA cache, looked up in a snapshot only while that costs next to nothing."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

MOST_BLOCKS: Final = 5_000
"""A snapshot makes a dictionary of each block, at 1 to 2 microseconds and with the interpreter's lock held."""
MOST_BLOCKS_AT_THE_END: Final = 50_000
"""A tenth of a second, when the script has ended anyway."""
_PAUSE: Final = 10.0
"""Seconds between two snapshots, however cheap."""
_SHARE: Final = 0.001
"""Part of the time that snapshots may take."""


@dataclass(frozen=True, slots=True)
class FreeBlocks:
    """What a snapshot tells of one device."""

    largest: int
    """Bytes; 0 if nothing in the cache is free."""
    expandable: bool
    """Some of the segments are expandable."""


class FreeBlockProbe:
    """Looks for the largest block that the caching allocator could give out without asking the driver.

    Blocks of private pools (CUDA graphs, ``torch.cuda.MemPool``) serve nobody else and don't count; those of
    other streams do, as in torch's own count.
    """

    def __init__(self, index: int) -> None:
        """``index`` is torch's, as in ``cuda:0``."""
        self._index = index
        self._last: FreeBlocks | None = None
        self._error = ""
        self._rest_until = 0.0
        self._recorded = False
        self._most = MOST_BLOCKS
        self._lean: bool | None = None
        """Whether a snapshot can be had without the trace of allocations."""

    def look_again(self) -> None:
        """Have the next ``read`` take a snapshot, also of a cache that is large: the process is at its end."""
        self._rest_until = 0.0
        self._most = MOST_BLOCKS_AT_THE_END

    @property
    def last(self) -> FreeBlocks | None:
        """What the last snapshot told."""
        return self._last

    def read(self, torch: Any, blocks: int, free: int) -> tuple[int | None, str]:
        """Return the bytes, or None and why; never from the main thread, where a script trains.

        ``blocks``: how many a snapshot would list, at most. ``free``: bytes that are free in the cache now.
        """
        if free == 0:
            return 0, ""
        why_not = self._why_not(torch, blocks)
        if why_not:
            return None, why_not
        if time.monotonic() >= self._rest_until:
            self._look(torch)
        if self._last is None:
            return None, self._error
        if self._last.largest > free:
            return None, "the cache has changed since it was looked at, which is not done at every reading"
        return self._last.largest, ""

    def _look(self, torch: Any) -> None:
        self._last, self._error = None, ""
        began = time.thread_time()
        try:
            self._last = free_blocks(self._segments(torch), self._index)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            self._error = f"no snapshot of the cache: {error}"
        cost = time.thread_time() - began
        self._rest_until = time.monotonic() + max(_PAUSE, cost / _SHARE)

    def _why_not(self, torch: Any, blocks: int) -> str:
        recording = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        self._recorded = self._recorded or (recording is not None and bool(recording()))
        if self._lean is None:
            self._lean = "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters
        if recording is None:
            return "this torch does not tell whether it records memory history, which makes looking costly"
        if recording() or (self._recorded and not self._lean):
            return "memory history is recorded, which makes looking costly"
        if blocks > self._most:
            return f"the cache has up to {blocks} blocks, and looking through more than {self._most} is costly"
        if threading.current_thread() is threading.main_thread():
            return "not looked for from the thread that trains"
        return ""

    def _segments(self, torch: Any) -> Iterable[Mapping[str, Any]]:
        snapshot = torch.cuda.memory_snapshot
        segments: Iterable[Mapping[str, Any]] = snapshot(include_traces=False) if self._lean else snapshot()
        return segments


def free_blocks(segments: Iterable[Mapping[str, Any]], index: int) -> FreeBlocks:
    """Return the largest free block of device ``index`` in ``torch.cuda.memory_snapshot()``."""
    largest, expandable = 0, False
    for segment in segments:
        if segment.get("device") != index:
            continue
        expandable = expandable or bool(segment.get("is_expandable"))
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
            continue
        sizes = (block["size"] for block in segment["blocks"] if block["state"] == "inactive")
        largest = max(largest, max(sizes, default=0))
    return FreeBlocks(largest, expandable)
