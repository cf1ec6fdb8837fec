"""torch's CUDA allocators against the dictionaries that torch returns, and what is not asked of them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import allocator_statistics as recorded
import pytest

from ranktop.probes import free_blocks as free_blocks_module
from ranktop.probes.allocator import CudaAllocator, expandable_segments, open_allocator, parse_statistics
from ranktop.probes.allocator_settings import AllocatorSettings
from ranktop.probes.reading import AllocatorReading

MIB = 1 << 20
COUNTERS = (
    "allocated", "reserved", "peak_allocated", "active", "requested", "segments", "inactive_split", "retries", "ooms",
    "largest_free",
)  # fmt: skip
NATIVE = AllocatorReading(
    allocated=600 * MIB,
    reserved=832 * MIB,
    peak_allocated=900 * MIB,
    active=608 * MIB,
    requested=599 * MIB + 1000,
    segments=3,
    inactive_split=96 * MIB,
    retries=2,
    ooms=1,
    backend="native",
)


def counters(reading: AllocatorReading) -> dict[str, int | None]:
    return {name: getattr(reading, name) for name in COUNTERS}


@pytest.mark.parametrize("version", [recorded.torch_2_4, recorded.torch_2_13], ids=["torch 2.4", "torch 2.13"])
@pytest.mark.parametrize("shape", [dict, recorded.flat], ids=["nested", "flat"])
def test_torchs_statistics(version: Callable[..., dict[str, Any]], shape: Callable[..., dict[str, Any]]) -> None:
    reading = parse_statistics(shape(version(**recorded.native_values())))
    assert counters(reading) == counters(NATIVE)
    assert set(reading.reasons) == {"largest_free"}


def test_zeros_of_torchs_statistics_are_values() -> None:
    reading = parse_statistics(recorded.torch_2_13())
    assert counters(reading) == {**dict.fromkeys(COUNTERS, 0), "largest_free": None}


@pytest.mark.parametrize("shape", [dict, recorded.flat], ids=["nested", "flat"])
def test_what_another_allocator_leaves_at_zero_is_unknown(shape: Callable[..., dict[str, Any]]) -> None:
    reading = parse_statistics(shape(recorded.cuda_malloc_async()), "cudaMallocAsync", expandable=True)
    known = {"allocated": 600 * MIB, "reserved": 832 * MIB, "peak_allocated": 900 * MIB, "active": 600 * MIB}
    assert counters(reading) == {**dict.fromkeys(COUNTERS), **known}
    assert set(reading.reasons) == set(COUNTERS) - set(known)
    assert all("cudaMallocAsync" in reason for reason in reading.reasons.values())
    assert (reading.backend, reading.expandable) == ("cudaMallocAsync", False)


def test_expandable_segments_are_left_out_of_two_counters() -> None:
    reading = parse_statistics(recorded.expandable(), expandable=True)
    assert reading.expandable
    assert (reading.segments, reading.inactive_split) == (None, None)
    assert {"segments", "inactive_split"} < set(reading.reasons)
    assert (reading.reserved, reading.active, reading.retries) == (832 * MIB, 608 * MIB, 2)


def test_statistics_of_an_older_torch_lack_only_what_they_lack() -> None:
    stats = recorded.torch_2_4(**recorded.native_values())
    del stats["num_ooms"], stats["inactive_split_bytes"]
    stats["requested_bytes"] = {"all": None}  # Another shape is as good as none.
    reading = parse_statistics(stats)
    assert (reading.allocated, reading.retries, reading.ooms) == (600 * MIB, 2, None)
    assert set(reading.reasons) == {"ooms", "inactive_split", "requested", "largest_free"}


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("values", "on"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments : True"}, True),
        ({"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,>:2],expandable_segments:True"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, False),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:False"},
            True,
        ),
        ({"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}, False),
        ({}, False),
    ],
)
def test_expandable_segments_in_the_environment(
    no_settings: pytest.MonkeyPatch, values: dict[str, str], on: bool
) -> None:
    no_settings.setitem(sys.modules, "torch", SimpleNamespace())
    for name, value in values.items():
        no_settings.setenv(name, value)
    assert expandable_segments() is on


def test_settings_made_while_the_job_runs_are_followed(no_settings: pytest.MonkeyPatch) -> None:
    """The settings are torch's own: its C++ keeps the text of the last that were made."""
    import torch

    apply, last = torch._C._accelerator_setAllocatorSettings, torch._C._accelerator_getAllocatorSettings()
    try:
        apply("expandable_segments:False")
        settings = AllocatorSettings()
        assert (settings.expandable, settings.ever_expandable) == (False, False)
        apply("expandable_segments:True")
        assert expandable_segments()
        apply("garbage_collection_threshold:0.8")  # Says nothing of segments.
        settings.refresh()
        assert not settings.expandable  # What was set between two looks is not seen ...
        apply("expandable_segments:True")
        settings.refresh()
        apply("garbage_collection_threshold:0.8")
        settings.refresh()
        assert settings.expandable  # ... but what was seen holds until it is taken back.
        apply("expandable_segments:False")
        settings.refresh()
        assert (settings.expandable, settings.ever_expandable) == (False, True)
    finally:
        apply(last or "expandable_segments:False")


class FakeCuda:
    """torch with an allocator that counts what it is asked."""

    def __init__(self, stats: dict[int, Any], segments: list[dict[str, Any]] | None = None) -> None:
        self.stats, self.segments, self.backend = stats, segments or [], "native"
        self.asked: list[int] = []
        self.snapshots = 0
        self.recording = False
        self.seconds = 0.0
        self.version = SimpleNamespace(hip=None)
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            get_allocator_backend=lambda: self.backend,
            device_count=lambda: len(self.stats),
            memory_snapshot=self.snapshot,
        )
        self._C = SimpleNamespace(_cuda_memoryStats=self.statistics, _cuda_isHistoryEnabled=lambda: self.recording)

    def statistics(self, index: int) -> dict[str, Any]:
        self.asked.append(index)
        if isinstance(self.stats[index], Exception):
            raise self.stats[index]
        found: dict[str, Any] = self.stats[index]
        return found

    def snapshot(self, mempool_id: object = None, include_traces: bool = True) -> list[dict[str, Any]]:
        assert not include_traces
        self.snapshots += 1
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return self.segments


def on_a_thread(action: Callable[[], AllocatorReading]) -> AllocatorReading:
    """Return what ``action`` returns on a thread like the agent's."""
    found: list[AllocatorReading] = []
    thread = threading.Thread(target=lambda: found.append(action()))
    thread.start()
    thread.join(30)
    return found[0]


def native_job(**changes: Any) -> FakeCuda:
    stats = recorded.torch_2_13(**{**recorded.native_values(), **changes})
    return FakeCuda({0: stats}, recorded.native_segments())


@pytest.fixture
def install(no_settings: pytest.MonkeyPatch) -> Callable[[FakeCuda], FakeCuda]:
    def put(torch: FakeCuda) -> FakeCuda:
        no_settings.setitem(sys.modules, "torch", torch)
        return torch

    return put


def test_all_counters_of_a_job(install: Callable[[FakeCuda], FakeCuda]) -> None:
    torch = install(native_job())
    probe = CudaAllocator(0)
    assert probe.quick() == (600 * MIB, 832 * MIB)
    assert torch.asked == [0]
    reading = on_a_thread(probe.read)
    # The 52 MiB of the default pool; the 128 of a private one serve nobody else.
    assert counters(reading) == {**counters(NATIVE), "largest_free": 52 * MIB}
    assert (reading.backend, reading.expandable, reading.elsewhere, reading.reasons) == ("native", False, {}, {})


def test_the_statistics_of_the_right_device_are_asked(install: Callable[[FakeCuda], FakeCuda]) -> None:
    torch = install(FakeCuda({i: recorded.torch_2_13(**recorded.native_values()) for i in range(4)}))
    torch.segments = [*recorded.native_segments(1), recorded.segment(3, ("inactive", 32 * MIB))]
    probe = CudaAllocator(3)
    assert probe.quick() == (600 * MIB, 832 * MIB)
    assert torch.asked == [3]
    assert on_a_thread(probe.read).largest_free == 32 * MIB


def test_what_the_process_holds_on_other_devices(install: Callable[[FakeCuda], FakeCuda]) -> None:
    used, unused = recorded.torch_2_13(**recorded.native_values()), recorded.torch_2_13()
    torch = install(FakeCuda({0: used, 1: used, 2: unused, 3: used}))
    probe = CudaAllocator(1)
    assert probe.read().elsewhere == {0: 832 * MIB, 3: 832 * MIB}
    torch.stats[3] = unused
    readings = [probe.read() for _ in range(10)]
    # The others are asked at every tenth reading, the own at each.
    assert readings[0].elsewhere == readings[8].elsewhere == {0: 832 * MIB, 3: 832 * MIB}
    assert readings[9].elsewhere == {0: 832 * MIB}
    assert {index: torch.asked.count(index) for index in range(4)} == {0: 2, 1: 11, 2: 2, 3: 2}


def test_a_device_that_cannot_be_asked_takes_nothing_from_the_own(install: Callable[[FakeCuda], FakeCuda]) -> None:
    torch = install(native_job())
    torch.stats[1] = RuntimeError("Invalid device argument.")
    reading = on_a_thread(CudaAllocator(0).read)
    assert (reading.allocated, reading.elsewhere) == (600 * MIB, {})


def test_a_snapshot_is_taken_again_only_after_a_pause(
    install: Callable[[FakeCuda], FakeCuda], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, now = install(native_job()), [1000.0]
    torch.seconds = 0.02
    monkeypatch.setattr(
        free_blocks_module, "time", SimpleNamespace(monotonic=lambda: now[0], thread_time=time.thread_time)
    )
    probe = CudaAllocator(0)
    seen = []
    for seconds in range(0, 45, 5):
        now[0] = 1000.0 + seconds
        seen.append((on_a_thread(probe.read).largest_free, torch.snapshots))
    # 20 ms of CPU time are a thousandth of 20 s.
    assert seen[:4] == [(52 * MIB, 1)] * 4
    assert seen[-1] == (52 * MIB, 2)
    torch.stats[0]["active"] = recorded.pools(10_000)  # More blocks than are looked through while a script runs.
    probe.look_again()
    assert (on_a_thread(probe.read).largest_free, torch.snapshots) == (52 * MIB, 3)


def test_a_cheap_snapshot_is_taken_every_ten_seconds(
    install: Callable[[FakeCuda], FakeCuda], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, now = install(native_job()), [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: now[0])
    monkeypatch.setattr(free_blocks_module, "time", clock)
    probe = CudaAllocator(0)
    for seconds in range(31):
        now[0] = 1000.0 + seconds
        on_a_thread(probe.read)
    assert torch.snapshots == 4


def test_a_block_larger_than_what_is_free_now_is_not_told(install: Callable[[FakeCuda], FakeCuda]) -> None:
    torch = install(native_job())
    probe = CudaAllocator(0)
    assert on_a_thread(probe.read).largest_free == 52 * MIB
    torch.stats[0]["active_bytes"] = recorded.pools(800 * MIB)
    reading = on_a_thread(probe.read)
    assert reading.largest_free is None
    assert "has changed" in reading.reasons["largest_free"]
    torch.stats[0]["active_bytes"] = recorded.pools(832 * MIB)
    assert on_a_thread(probe.read).largest_free == 0  # Nothing is free, which needs no look.
    assert torch.snapshots == 1


@pytest.mark.parametrize(
    "case", ["main thread", "many blocks", "recording", "cannot tell", "cudaMallocAsync", "blocks elsewhere"]
)
def test_no_snapshot_is_taken_where_it_could_hurt(install: Callable[[FakeCuda], FakeCuda], case: str) -> None:
    torch = install(native_job())
    words = {"main thread": "thread that trains", "recording": "history", "cannot tell": "history"}
    if case == "many blocks":
        torch.stats[0]["active"] = recorded.pools(2500)
    elif case == "blocks elsewhere":
        torch.stats[1] = recorded.torch_2_13(active=recorded.pools(2600))
    elif case == "recording":
        torch.recording = True
    elif case == "cannot tell":
        del torch._C._cuda_isHistoryEnabled
    elif case == "cudaMallocAsync":
        torch.backend = case
    probe = CudaAllocator(0)
    if case == "blocks elsewhere":
        probe.read()  # Asks the others.
    reading = probe.read() if case == "main thread" else on_a_thread(probe.read)
    assert (reading.largest_free, torch.snapshots) == (None, 0)
    assert words.get(case, "blocks") in reading.reasons["largest_free"]
    assert reading.allocated == 600 * MIB


def test_an_older_torchs_snapshot_would_carry_a_trace_that_was_recorded_before(
    install: Callable[[FakeCuda], FakeCuda],
) -> None:
    torch = install(native_job())
    taken: list[int] = []

    def whole() -> list[dict[str, Any]]:
        taken.append(1)
        return torch.segments

    torch.cuda.memory_snapshot = whole
    probe = CudaAllocator(0)
    assert on_a_thread(probe.read).largest_free == 52 * MIB
    torch.recording = True
    on_a_thread(probe.read)
    torch.recording = False
    reading = on_a_thread(probe.read)
    assert (reading.largest_free, len(taken)) == (None, 1)
    assert "history" in reading.reasons["largest_free"]


def test_a_snapshot_that_fails_is_named_and_not_tried_at_every_reading(install: Callable[[FakeCuda], FakeCuda]) -> None:
    torch, tried = install(native_job()), []

    def fails(include_traces: bool = True) -> None:
        tried.append(include_traces)
        raise RuntimeError("captures are underway")

    torch.cuda.memory_snapshot = fails
    probe = CudaAllocator(0)
    for _ in range(3):
        reading = on_a_thread(probe.read)
        assert (reading.largest_free, reading.allocated) == (None, 600 * MIB)
        assert "captures are underway" in reading.reasons["largest_free"]
    assert tried == [False]


def test_expandable_segments_that_no_setting_tells_are_seen_in_a_snapshot(
    install: Callable[[FakeCuda], FakeCuda],
) -> None:
    torch = install(FakeCuda({0: recorded.expandable()}))
    torch.segments = [recorded.segment(0, ("active_allocated", 600 * MIB), ("inactive", 70 * MIB), expand=True)]
    probe = CudaAllocator(0)
    first, second = on_a_thread(probe.read), on_a_thread(probe.read)
    assert first.largest_free == second.largest_free == 70 * MIB
    assert second.expandable
    assert (second.segments, second.inactive_split) == (None, None)


def test_a_pluggable_allocator_gives_nothing_and_is_named(install: Callable[[FakeCuda], FakeCuda]) -> None:
    # The text of CUDAPluggableAllocator::getDeviceStats.
    error = RuntimeError(
        "CUDAPluggableAllocator does not yet support getDeviceStats. "
        "If you need it, please file an issue describing your use case."
    )
    torch = install(FakeCuda({0: error}))
    torch.backend = "pluggable"
    probe = CudaAllocator(0)
    assert probe.quick() == (None, None)
    reading = on_a_thread(probe.read)
    assert reading.backend == "pluggable"
    assert counters(reading) == dict.fromkeys(COUNTERS)
    assert reading.reasons == dict.fromkeys(COUNTERS, "the pluggable allocator gives no statistics")


def test_an_allocator_that_is_switched_off_counts_nothing(
    install: Callable[[FakeCuda], FakeCuda], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    torch = install(FakeCuda({0: recorded.torch_2_13()}))
    probe = CudaAllocator(0)
    assert probe.quick() == (None, None)
    reading = probe.read()
    assert counters(reading) == dict.fromkeys(COUNTERS)
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in reading.reasons["allocated"]
    torch.stats[0] = recorded.torch_2_13(**recorded.native_values())  # It counts after all.
    assert probe.quick() == (600 * MIB, 832 * MIB)
    assert probe.read().allocated == 600 * MIB


def test_a_torch_that_has_not_touched_cuda_holds_nothing() -> None:
    import torch

    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")
    probe = open_allocator(torch.device("cuda", 0))
    assert isinstance(probe, CudaAllocator)
    reading = probe.read()
    assert counters(reading) == dict.fromkeys(COUNTERS, 0)
    assert (reading.backend, reading.expandable, reading.elsewhere, reading.reasons) == ("", False, {}, {})
    assert not torch.cuda.is_initialized()
