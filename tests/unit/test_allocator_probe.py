"""The allocators: malloc against bytes that are really allocated, torch's against the dictionaries that it returns."""

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
    expandable_segments,
    open_allocator,
    parse_statistics,
)
from ranktop.probes.host import HostDevice
from ranktop.probes.identity import compose
from ranktop.probes.reading import AllocatorReading, Resident

MIB = 1 << 20
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
    assert set(reading.reasons) == {"peak_allocated", "inactive_split", "retries", "ooms"}
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


def stat(current: int, peak: int) -> dict[str, int]:
    return {"current": current, "peak": peak, "allocated": peak * 3, "freed": peak * 3 - current}


def pools(current: int, peak: int) -> dict[str, dict[str, int]]:
    return {"all": stat(current, peak), "small_pool": stat(0, 0), "large_pool": stat(current, peak)}


def nested(**changes: Any) -> dict[str, Any]:
    """What ``torch._C._cuda_memoryStats`` returns (torch/csrc/cuda/Module.cpp, ``memoryStats``)."""
    names = ("allocation", "segment", "active", "inactive_split", "active_bytes", "requested_bytes")
    return {
        "num_alloc_retries": 2,
        "num_ooms": 1,
        "max_split_size": -1,
        "num_sync_all_streams": 0,
        "num_device_alloc": 12,
        "num_device_free": 3,
        **{name: pools(7, 9) for name in names},
        "allocated_bytes": pools(600 * MIB, 900 * MIB),
        "reserved_bytes": pools(1024 * MIB, 2048 * MIB),
        "inactive_split_bytes": pools(30 * MIB, 40 * MIB),
        "oversize_allocations": stat(0, 0),
        "oversize_segments": stat(0, 0),
        **changes,
    }


def flat(stats: dict[str, Any], prefix: str = "") -> dict[str, int]:
    """What ``torch.cuda.memory_stats`` makes of it."""
    found: dict[str, int] = {}
    for key, value in stats.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return found


@pytest.mark.parametrize("shape", [nested(), flat(nested())], ids=["nested", "flat"])
def test_torchs_statistics(shape: dict[str, Any]) -> None:
    assert parse_statistics(shape) == AllocatorReading(
        allocated=600 * MIB,
        reserved=1024 * MIB,
        peak_allocated=900 * MIB,
        inactive_split=30 * MIB,
        retries=2,
        ooms=1,
    )


def test_zeros_of_torchs_statistics_are_values() -> None:
    nothing = nested(
        num_alloc_retries=0,
        num_ooms=0,
        allocated_bytes=pools(0, 0),
        reserved_bytes=pools(0, 0),
        inactive_split_bytes=pools(0, 0),
    )
    assert parse_statistics(nothing) == AllocatorReading(0, 0, 0, 0, 0, 0)


def test_what_another_allocator_leaves_at_zero_is_unknown() -> None:
    reading = parse_statistics(nested(num_alloc_retries=0, num_ooms=0), "cudaMallocAsync")
    assert (reading.allocated, reading.reserved, reading.peak_allocated) == (600 * MIB, 1024 * MIB, 900 * MIB)
    assert (reading.inactive_split, reading.retries, reading.ooms) == (None, None, None)
    assert set(reading.reasons) == {"inactive_split", "retries", "ooms"}
    assert "cudaMallocAsync" in reading.reasons["ooms"]


def test_expandable_segments_leave_the_split_unknown() -> None:
    reading = parse_statistics(nested(), expandable=True)
    assert reading.inactive_split is None
    assert reading.reasons == {"inactive_split": "not counted with expandable segments"}


def test_statistics_of_an_older_torch_lack_only_what_they_lack() -> None:
    stats = nested()
    del stats["num_ooms"], stats["inactive_split_bytes"]
    reading = parse_statistics(stats)
    assert (reading.allocated, reading.retries) == (600 * MIB, 2)
    assert set(reading.reasons) == {"ooms", "inactive_split"}


@pytest.mark.parametrize(
    ("name", "value", "on"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", True),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64, expandable_segments : true", True),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "", False),
    ],
)
def test_expandable_segments_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, on: bool
) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setenv(name, value)
    assert expandable_segments() is on


def torch_with(statistics: Any, backend: str = "native") -> SimpleNamespace:
    cuda = SimpleNamespace(is_initialized=lambda: True, get_allocator_backend=lambda: backend)
    return SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_memoryStats=statistics))


def test_the_statistics_of_the_right_device_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def statistics(index: int) -> dict[str, Any]:
        asked.append(index)
        return nested()

    monkeypatch.setitem(sys.modules, "torch", torch_with(statistics))
    probe = CudaAllocator(3)
    assert probe.quick() == (600 * MIB, 1024 * MIB)
    assert probe.read().retries == 2
    assert asked == [3, 3]


def test_a_pluggable_allocator_gives_nothing_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def statistics(_index: int) -> dict[str, Any]:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats. If you need it ...")

    monkeypatch.setitem(sys.modules, "torch", torch_with(statistics, "pluggable"))
    probe = CudaAllocator(0)
    assert probe.quick() == (None, None)
    reading = probe.read()
    assert reading.allocated is None
    assert reading.reasons["reserved"] == "the pluggable allocator gives no statistics"


def test_looking_never_initialises_cuda_nor_imports_torch() -> None:
    program = (
        "import sys; from ranktop.probes.allocator import CudaAllocator; probe = CudaAllocator(0);"
        "assert probe.quick() == (0, 0); assert probe.read().allocated == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_torch_that_has_not_touched_cuda_holds_nothing() -> None:
    import torch

    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")
    probe = open_allocator(torch.device("cuda", 0))
    assert isinstance(probe, CudaAllocator)
    assert probe.read() == AllocatorReading(0, 0, 0, 0, 0, 0)
    assert not torch.cuda.is_initialized()


def test_the_device_decides_which_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda: Any = SimpleNamespace(type="cuda", index=1)
    assert isinstance(open_allocator(cuda), CudaAllocator)
    assert isinstance(open_allocator(None), HostAllocator)
    monkeypatch.setenv("RANKTOP_DEVICE", "host")
    assert isinstance(open_allocator(cuda), HostAllocator)
