"""The host's allocator: malloc against bytes that are really allocated; and which allocator a device has."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ranktop.probes.allocator import (
    CudaAllocator,
    HostAllocator,
    open_allocator,
)
from ranktop.probes.host import HostDevice
from ranktop.probes.identity import compose
from ranktop.probes.reading import Resident

MIB = 1 << 20
COUNTERS = (
    "allocated", "reserved", "peak_allocated", "active", "requested", "segments", "inactive_split", "retries", "ooms",
    "largest_free",
)  # fmt: skip
glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")


@contextmanager
def allocated(*sizes: int) -> Iterator[None]:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    blocks = [library.malloc(size) for size in sizes]
    assert all(blocks)
    try:
        yield
    finally:
        for block in blocks:
            library.free(block)


@glibc
@pytest.mark.parametrize("sizes", [(256 * MIB,), (1000,) * 40_000], ids=["one mapping", "many blocks of an arena"])
def test_malloc_counts_what_is_allocated(sizes: tuple[int, ...]) -> None:
    probe = HostAllocator()
    before, _ = probe.quick()
    with allocated(*sizes):
        inside, reserved = probe.quick()
    after, _ = probe.quick()
    assert before is not None
    assert inside is not None
    assert reserved is not None
    assert after is not None
    # Each block has a header and is rounded up to 16 bytes, a mapping to a page; ctypes' own objects are small.
    assert sum(sizes) <= inside - before <= sum(sizes) + 32 * len(sizes) + MIB
    assert abs(after - before) < MIB
    assert reserved >= inside


@glibc
def test_the_baseline_is_what_was_there_when_it_was_marked() -> None:
    probe = HostAllocator()
    first = probe.read().baseline
    assert first > 0
    with allocated(64 * MIB):
        assert probe.read().baseline == first
        assert probe.mark_baseline() - first >= 64 * MIB
        assert probe.read().baseline > first
        quick, reading = probe.quick(), probe.read()
        assert quick[0] is not None
        assert reading.allocated is not None
        assert abs(quick[0] - reading.allocated) < MIB


@glibc
def test_the_identity_of_this_process_adds_up_whatever_it_has_touched() -> None:
    probe, device = HostAllocator(), HostDevice()
    tensors = 300 * MIB
    with allocated(tensors):  # Never touched: counted by malloc, not resident.
        for resident in (Resident(0, 0, 0, 0), Resident(tensors, 0, 0, 0), Resident(0, 0, 0, 4 * tensors)):
            memory, reasons = compose(probe.read(), resident, device.read())
            sizes = memory.by_category()
            assert min(size for size in sizes.values() if size is not None) >= 0
            assert sum(size or 0 for size in sizes.values()) == memory.total
            assert all(size is not None for size in sizes.values())
            assert memory.parameters == resident.parameters
        # More tensors than malloc has given out: what was moved to make them fit is said.
        assert reasons


@glibc
def test_what_malloc_does_not_count_is_named() -> None:
    reading = HostAllocator().read()
    assert reading.backend == "malloc"
    assert set(reading.reasons) == set(COUNTERS) - {"allocated", "reserved"}
    assert all(getattr(reading, name) is None for name in reading.reasons)


@pytest.mark.parametrize(("seconds", "looks"), [(0.0, 21), (0.02, 2)], ids=["cheap", "dear"])
def test_a_look_that_is_dear_is_not_made_at_every_reading(
    monkeypatch: pytest.MonkeyPatch, seconds: float, looks: int
) -> None:
    seen: list[float] = []

    def mallinfo2() -> SimpleNamespace:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        seen.append(seconds)
        return SimpleNamespace(uordblks=3, hblkhd=5, arena=4)

    monkeypatch.setattr("ranktop.probes.allocator.ctypes.CDLL", lambda _name: SimpleNamespace(mallinfo2=mallinfo2))
    probe = HostAllocator()
    readings = [probe.read() for _ in range(20)]  # Within the 20 seconds that a dear look is good for.
    assert len(seen) == looks  # One for the baseline, the others for the readings.
    assert {(reading.allocated, reading.reserved) for reading in readings} == {(8, 9)}
    assert probe.quick() == (8, 9)
    assert len(seen) == looks + 1
    probe.look_again()
    assert probe.read().allocated == 8
    assert len(seen) == looks + 2


def test_a_c_library_without_counters_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ranktop.probes.allocator.ctypes.CDLL", lambda _name: SimpleNamespace())
    reading = HostAllocator().read()
    assert (reading.allocated, reading.reserved, reading.baseline) == (None, None, 0)
    assert "mallinfo2" in reading.reasons["allocated"]


def test_another_malloc_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ranktop.probes.allocator.ctypes.CDLL", lambda _name: SimpleNamespace(mallctl=1, mallinfo2=1))
    reading = HostAllocator().read()
    assert reading.allocated is None
    assert "jemalloc" in reading.reasons["reserved"]


def test_looking_never_initialises_cuda_nor_imports_torch() -> None:
    program = (
        "import sys; from ranktop.probes.allocator import CudaAllocator; probe = CudaAllocator(0);"
        "assert probe.quick() == (0, 0); assert probe.read().allocated == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_device_decides_which_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda: Any = SimpleNamespace(type="cuda", index=1)
    assert isinstance(open_allocator(cuda), CudaAllocator)
    assert isinstance(open_allocator(None), HostAllocator)
    monkeypatch.setenv("RANKTOP_DEVICE", "host")
    assert isinstance(open_allocator(cuda), HostAllocator)
