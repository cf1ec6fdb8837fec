"""The memory allocator of this process: glibc's malloc (host), torch's caching allocator (CUDA device)."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ranktop.probes.reading import AllocatorProbe, AllocatorReading

if TYPE_CHECKING:
    import torch

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

    def read(self) -> AllocatorReading:
        """Return both counters; malloc keeps no others."""
        if time.monotonic() >= self._rest_until:
            began = time.thread_time()
            self._last = self.quick()
            cost = time.thread_time() - began
            self._rest_until = time.monotonic() + cost / _LOOKING_SHARE if cost > _CHEAP else 0.0
        allocated, reserved = self._last
        reasons = dict.fromkeys(("peak_allocated", "inactive_split", "retries", "ooms"), "malloc does not count it")
        if allocated is None:
            reasons.update(dict.fromkeys(("allocated", "reserved"), self._why_not))
        return AllocatorReading(
            allocated=allocated,
            reserved=reserved,
            baseline=self._baseline,
            reasons=reasons,
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


class CudaAllocator:
    """Reads the allocator of one CUDA device; before CUDA is initialised all is 0, and it stays so."""

    def __init__(self, index: int) -> None:
        """``index`` is torch's, as in ``cuda:0``."""
        self._index = index

    def quick(self) -> tuple[int | None, int | None]:
        """Return (allocated, reserved) in bytes, (None, None) where the allocator does not tell."""
        torch = _initialized_torch()
        if torch is None:
            return 0, 0
        try:
            stats = _statistics(torch, self._index)
        except (RuntimeError, AttributeError, TypeError, ValueError):
            return None, None
        return _number(stats, "allocated_bytes"), _number(stats, "reserved_bytes")

    def read(self) -> AllocatorReading:
        """Return all counters."""
        torch = _initialized_torch()
        if torch is None:
            return AllocatorReading(0, 0, 0, 0, 0, 0)
        backend = "native"
        try:
            backend = str(torch.cuda.get_allocator_backend())
            return parse_statistics(_statistics(torch, self._index), backend, expandable_segments())
        except (RuntimeError, AttributeError, TypeError, ValueError) as error:
            return _nothing(backend, error)


def parse_statistics(stats: Mapping[str, Any], backend: str = "native", expandable: bool = False) -> AllocatorReading:
    """Return the counters in torch's statistics of one device, nested or flat (``torch.cuda.memory_stats``).

    ``backend`` is ``torch.cuda.get_allocator_backend()``: an allocator other than the native one leaves at
    zero what it does not count (c10/cuda/CUDAMallocAsyncAllocator.cpp); such zeros are None here.
    ``expandable`` says that expandable segments are on.
    """
    native = backend == "native"
    values = {
        "allocated": _number(stats, "allocated_bytes"),
        "reserved": _number(stats, "reserved_bytes"),
        "peak_allocated": _number(stats, "allocated_bytes", "peak"),
        "inactive_split": _number(stats, "inactive_split_bytes") if native and not expandable else None,
        "retries": _counter(stats, "num_alloc_retries") if native else None,
        "ooms": _counter(stats, "num_ooms") if native else None,
    }
    reasons = {}
    for name, value in values.items():
        if value is not None:
            continue
        if not native and name in ("inactive_split", "retries", "ooms"):
            reasons[name] = f"the {backend} allocator does not count it"
        elif name == "inactive_split" and expandable:
            reasons[name] = "not counted with expandable segments"
        else:
            reasons[name] = "not in the statistics of this torch"
    return AllocatorReading(
        allocated=values["allocated"],
        reserved=values["reserved"],
        peak_allocated=values["peak_allocated"],
        inactive_split=values["inactive_split"],
        retries=values["retries"],
        ooms=values["ooms"],
        reasons=reasons,
    )


def expandable_segments() -> bool:
    """Whether ``PYTORCH_CUDA_ALLOC_CONF`` or ``PYTORCH_ALLOC_CONF`` turns on expandable segments."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        options = os.environ.get(name, "").replace(" ", "").lower().split(",")
        if "expandable_segments:true" in options:
            return True
    return False


def _initialized_torch() -> Any:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    # A torch that is still being imported has no cuda yet.
    return torch if cuda is not None and cuda.is_initialized() else None


def _statistics(torch: Any, index: int) -> Mapping[str, Any]:
    read = getattr(torch._C, "_cuda_memoryStats", None)
    if read is not None:
        stats: Mapping[str, Any] = read(index)
        return stats
    flat: Mapping[str, Any] = torch.cuda.memory_stats(index)
    return flat


def _number(stats: Mapping[str, Any], name: str, which: str = "current") -> int | None:
    nested = stats.get(name)
    value = nested.get("all", {}).get(which) if isinstance(nested, Mapping) else stats.get(f"{name}.all.{which}")
    return value if isinstance(value, int) else None


def _counter(stats: Mapping[str, Any], name: str) -> int | None:
    value = stats.get(name)
    return value if isinstance(value, int) else None


def _nothing(backend: str, error: Exception) -> AllocatorReading:
    words = str(error).strip().splitlines()
    first = words[0] if words else type(error).__name__
    reason = f"the {backend} allocator gives no statistics" if backend == "pluggable" else f"not readable: {first}"
    names = ("allocated", "reserved", "peak_allocated", "inactive_split", "retries", "ooms")
    return AllocatorReading(reasons=dict.fromkeys(names, reason))
