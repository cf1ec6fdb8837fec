"""The memory allocator of this process: glibc's malloc (host), torch's caching allocator (CUDA device)."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ranktop.probes.allocator_settings import expandable_segments
from ranktop.probes.cuda_allocator import CudaAllocator, parse_statistics
from ranktop.probes.reading import AllocatorProbe, AllocatorReading

if TYPE_CHECKING:
    import torch

__all__ = [
    "CudaAllocator",
    "HostAllocator",
    "cuda_index",
    "expandable_segments",
    "open_allocator",
    "parse_statistics",
]

_MALLINFO_FIELDS: Final = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h (glibc 2.33)."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO_FIELDS]


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo`` of malloc.h; its ints wrap, so they are read unsigned."""

    _fields_ = [(name, ctypes.c_uint) for name in _MALLINFO_FIELDS]


_OTHER_MALLOCS: Final = {"mallctl": "jemalloc", "mi_version": "mimalloc", "tc_version": "tcmalloc"}
"""Symbol that a replacement of malloc brings into the process -> its name."""
_NOT_COUNTED: Final = (
    "peak_allocated", "inactive_split", "retries", "ooms", "active", "requested", "segments", "largest_free",
)  # fmt: skip
_WRAP: Final = 1 << 32
_CHEAP: Final = 0.001
"""CPU seconds; a look at malloc that takes longer is not made at every reading."""
_LOOKING_SHARE: Final = 0.001
"""Part of the time that such looks may take."""


def open_allocator(torch_device: torch.device | None) -> AllocatorProbe:
    """Return the probe of the allocator that serves ``torch_device`` (None or no CUDA device: the host's).

    ``RANKTOP_DEVICE=host`` makes it the host's, as it does for the device.
    """
    if torch_device is not None and torch_device.type == "cuda" and os.environ.get("RANKTOP_DEVICE") != "host":
        return CudaAllocator(cuda_index(torch_device))
    return HostAllocator()


def cuda_index(torch_device: torch.device) -> int:
    """Return the index of a CUDA device; one without an index means the calling thread's current device."""
    if torch_device.index is not None:
        return int(torch_device.index)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    return 0


class HostAllocator:
    """Reads glibc's malloc: allocated = bytes in use, reserved = arenas and mappings (``mallinfo2(3)``).

    Python's small objects and memory mapped by others are not in it; Python's larger objects are. A
    look costs 2 microseconds, and 8 milliseconds in a heap with 150 000 free chunks, which glibc walks under
    its locks: ``read`` then repeats its last numbers for a while, ``quick`` always looks.
    """

    def __init__(self) -> None:
        """Find the C library's counters and take what is in use now as the baseline."""
        self._why_not = ""
        self._call = self._find()
        self._baseline = 0
        self._last: tuple[int | None, int | None] = (None, None)
        self._rest_until = 0.0
        """Monotonic time until which ``read`` repeats itself."""
        self.mark_baseline()

    def mark_baseline(self, tensors: int = 0) -> int:
        """Count what is in use now as runtime from here on, but for ``tensors`` bytes of it.

        Returns the bytes so counted (0 when they are unknown).
        """
        self._baseline = max(0, (self.quick()[0] or 0) - tensors)
        self._rest_until = 0.0  # Numbers from before the mark don't go with it.
        return self._baseline

    def quick(self) -> tuple[int | None, int | None]:
        """Return (allocated, reserved) in bytes, (None, None) where they are unknown."""
        info = None if self._call is None else self._call()
        if info is None:
            return None, None
        return info.uordblks + info.hblkhd, info.arena + info.hblkhd

    def look_again(self) -> None:
        """Have the next ``read`` look for itself, whatever that costs."""
        self._rest_until = 0.0

    def read(self) -> AllocatorReading:
        """Return both counters; malloc keeps no others."""
        if time.monotonic() >= self._rest_until:
            began = time.thread_time()
            self._last = self.quick()
            cost = time.thread_time() - began
            self._rest_until = time.monotonic() + cost / _LOOKING_SHARE if cost > _CHEAP else 0.0
        allocated, reserved = self._last
        reasons = dict.fromkeys(_NOT_COUNTED, "malloc does not count it")
        if allocated is None:
            reasons.update(dict.fromkeys(("allocated", "reserved"), self._why_not))
        return AllocatorReading(
            allocated=allocated,
            reserved=reserved,
            baseline=self._baseline,
            reasons=reasons,
            backend="malloc",
        )

    def _find(self) -> Callable[[], Any] | None:
        try:
            library = ctypes.CDLL(None)
        except (OSError, TypeError) as error:
            self._why_not = f"no C library to ask: {error}"
            return None
        for symbol, name in _OTHER_MALLOCS.items():
            if hasattr(library, symbol):
                self._why_not = f"{name} replaces malloc here, and its counters are not read"
                return None
        if hasattr(library, "mallinfo2"):
            function: Any = library.mallinfo2
            function.restype, function.argtypes = _Mallinfo2, []
            return lambda: function()
        if hasattr(library, "mallinfo") and sys.platform == "linux":
            function = library.mallinfo
            function.restype, function.argtypes = _Mallinfo, []
            self._why_not = "this glibc counts memory in 32 bits only (2.33 and newer in 64)"
            # Its counters can't be told from their wrapped selves once the process may hold more than they
            # count.
            return lambda: function() if _data_bytes() < _WRAP else None
        self._why_not = "this C library has no mallinfo2 (glibc 2.33 or newer has)"
        return None


def _data_bytes() -> int:
    """Return the bytes of data that this process has mapped (``statm`` of proc(5)), 0 if unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
