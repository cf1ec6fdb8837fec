"""The counters of torch's CUDA allocators, and what each of them does not count."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ranktop.probes.allocator_settings import AllocatorSettings
from ranktop.probes.free_blocks import FreeBlockProbe
from ranktop.probes.reading import AllocatorReading

_COUNTERS: Final = (
    "allocated", "reserved", "peak_allocated", "active", "requested", "segments", "inactive_split", "retries", "ooms",
    "largest_free",
)  # fmt: skip
_UNTOUCHED: Final = AllocatorReading(
    allocated=0, reserved=0, peak_allocated=0, active=0, requested=0, segments=0, inactive_split=0, retries=0, ooms=0,
    largest_free=0,
)  # fmt: skip
_ONLY_NATIVE: Final = ("requested", "segments", "inactive_split", "retries", "ooms", "largest_free")
"""cudaMallocAsync leaves them at zero: it passes on the driver's count of its default pool, and has no blocks."""
_NOT_EXPANDABLE: Final = ("segments", "inactive_split")
"""Expandable segments are left out of them (``alloc_block`` and ``free_block`` of CUDACachingAllocator.cpp)."""
_ELSEWHERE_EVERY: Final = 10
"""Readings between two looks at the process's other devices."""
_ERRORS: Final = (RuntimeError, AttributeError, TypeError, ValueError, KeyError)


class CudaAllocator:
    """Reads the allocator of one CUDA device; before CUDA is initialised all is 0, and looking leaves it so.

    ``allocated``, ``active`` and ``reserved`` include private pools (CUDA graphs, ``torch.cuda.MemPool``), also
    those with an allocator of their own, whose memory need not be on the device (managed memory). cudaMallocAsync
    counts the device's default pool, also what other libraries of this process take from it, but in older versions of
    torch no memory of CUDA graphs.
    """

    def __init__(self, index: int) -> None:
        """``index`` is torch's, as in ``cuda:0``."""
        self._index = index
        self._settings = AllocatorSettings()
        self._free = FreeBlockProbe(index)
        self._readings = 0
        self._elsewhere: dict[int, int] = {}
        self._blocks_elsewhere = 0

    def quick(self) -> tuple[int | None, int | None]:
        """Return (allocated, reserved) in bytes, (None, None) where the allocator does not tell."""
        torch = _initialized_torch()
        if torch is None:
            return 0, 0
        try:
            stats = _statistics(torch, self._index)
        except _ERRORS:
            return None, None
        allocated, reserved = _number(stats, "allocated_bytes"), _number(stats, "reserved_bytes")
        return (None, None) if self._settings.uncached and not reserved else (allocated, reserved)

    def look_again(self) -> None:
        """Have the next ``read`` look for the largest free block anew."""
        self._free.look_again()

    def read(self) -> AllocatorReading:
        """Return all counters; for a thread other than the one that trains."""
        torch = _initialized_torch()
        if torch is None:
            return _UNTOUCHED
        backend = "native"
        try:
            backend = str(torch.cuda.get_allocator_backend())
            stats = _statistics(torch, self._index)
        except _ERRORS as error:
            return _nothing(backend, error)
        self._settings.refresh()
        if self._settings.uncached and not _number(stats, "reserved_bytes"):
            reason = f"{self._settings.uncached} is set: torch takes tensors straight from the driver and counts none"
            return AllocatorReading(backend=backend, reasons=dict.fromkeys(_COUNTERS, reason))
        reading = parse_statistics(stats, backend, self._expandable(ever=True))
        largest, why_not = self._largest_free(torch, backend, stats)
        reasons = {name: reason for name, reason in reading.reasons.items() if name != "largest_free"}
        return replace(
            reading,
            expandable=backend == "native" and self._expandable(),
            largest_free=largest,
            elsewhere=self._others(torch),
            reasons=reasons if largest is not None else {**reasons, "largest_free": why_not},
        )

    def _expandable(self, ever: bool = False) -> bool:
        seen = self._free.last is not None and self._free.last.expandable
        return seen or (self._settings.ever_expandable if ever else self._settings.expandable)

    def _largest_free(self, torch: Any, backend: str, stats: Mapping[str, Any]) -> tuple[int | None, str]:
        if backend != "native":
            return None, f"the {backend} allocator does not tell its blocks"
        reserved, active = _number(stats, "reserved_bytes"), _number(stats, "active_bytes")
        blocks = _blocks(stats)
        if reserved is None or active is None or blocks is None:
            return None, "not in the statistics of this torch"
        try:
            return self._free.read(torch, blocks + self._blocks_elsewhere, max(0, reserved - active))
        except _ERRORS as error:
            return None, _words(error)

    def _others(self, torch: Any) -> dict[int, int]:
        """Return the bytes reserved on other devices.

        Asking makes no context: the native allocator only looks at its own counters, and cudaMallocAsync
        answers zero for a device that it has not used.
        """
        if self._readings % _ELSEWHERE_EVERY == 0:
            found, blocks = {}, 0
            try:
                for index in range(torch.cuda.device_count()):
                    stats = _statistics(torch, index) if index != self._index else {}
                    blocks += _blocks(stats) or 0
                    reserved = _number(stats, "reserved_bytes")
                    if reserved:
                        found[index] = reserved
            except _ERRORS:
                found = {}
            self._elsewhere, self._blocks_elsewhere = found, blocks
        self._readings += 1
        return self._elsewhere


def parse_statistics(stats: Mapping[str, Any], backend: str = "native", expandable: bool = False) -> AllocatorReading:
    """Return the counters in torch's statistics of one device, nested or flat (``torch.cuda.memory_stats``).

    ``backend`` is ``torch.cuda.get_allocator_backend()``: an allocator other than the native one leaves at
    zero what it does not count (c10/cuda/CUDAMallocAsyncAllocator.cpp); such zeros are None here.
    ``expandable`` says that there are expandable segments. The largest free block is not in the statistics.
    """
    values: dict[str, int | None] = {
        "allocated": _number(stats, "allocated_bytes"),
        "reserved": _number(stats, "reserved_bytes"),
        "peak_allocated": _number(stats, "allocated_bytes", "peak"),
        "active": _number(stats, "active_bytes"),
        "requested": _number(stats, "requested_bytes"),
        "segments": _number(stats, "segment"),
        "inactive_split": _number(stats, "inactive_split_bytes"),
        "retries": _counter(stats, "num_alloc_retries"),
        "ooms": _counter(stats, "num_ooms"),
    }
    reasons = {name: "not in the statistics of this torch" for name, value in values.items() if value is None}
    if backend != "native":
        reasons.update(dict.fromkeys(_ONLY_NATIVE, f"the {backend} allocator does not count it"))
    elif expandable:
        reasons.update(dict.fromkeys(_NOT_EXPANDABLE, "not counted with expandable segments"))
    reasons.setdefault("largest_free", "not in the statistics")
    known = {name: value for name, value in values.items() if name not in reasons}
    return AllocatorReading(
        allocated=known.get("allocated"),
        reserved=known.get("reserved"),
        peak_allocated=known.get("peak_allocated"),
        inactive_split=known.get("inactive_split"),
        retries=known.get("retries"),
        ooms=known.get("ooms"),
        reasons=reasons,
        backend=backend,
        expandable=expandable and backend == "native",
        active=known.get("active"),
        requested=known.get("requested"),
        segments=known.get("segments"),
    )


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
    of_all = nested.get("all") if isinstance(nested, Mapping) else None
    value = of_all.get(which) if isinstance(of_all, Mapping) else stats.get(f"{name}.all.{which}")
    return value if isinstance(value, int) else None


def _counter(stats: Mapping[str, Any], name: str) -> int | None:
    value = stats.get(name)
    return value if isinstance(value, int) else None


def _blocks(stats: Mapping[str, Any]) -> int | None:
    """Return how many blocks there are at most: free neighbours are merged, so at most one follows each in use."""
    active, segments = _number(stats, "active"), _number(stats, "segment")
    return None if active is None or segments is None else 2 * active + segments


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"not readable: {lines[0] if lines else type(error).__name__}"


def _nothing(backend: str, error: Exception) -> AllocatorReading:
    reason = f"the {backend} allocator gives no statistics" if backend == "pluggable" else _words(error)
    return AllocatorReading(reasons=dict.fromkeys(_COUNTERS, reason), backend=backend)
