"""The memory identity: worked examples by hand, and what holds for any readings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.budget.terms import CATEGORIES, Memory
from ranktop.probes.identity import SHOWN_WITH, at_moment, compose
from ranktop.probes.processes import own
from ranktop.probes.reading import DEVICE_STATES, AllocatorReading, DeviceProcess, DeviceReading, Resident

MIB = 1 << 20
STATES = Resident(parameters=100, gradients=100, optimizer=200, buffers=10)


def device(total: int | None = 10_000, free: int | None = 4_000, process: int | None = 2_000) -> DeviceReading:
    used = None if total is None or free is None else total - free
    reasons = {} if process is not None else {"process_used": "not permitted (NVML 4)"}
    return DeviceReading(total=total, used=used, free=free, process_used=process, reasons=reasons)


def parts(memory: Memory) -> dict[str, int | None]:
    return {name: getattr(memory, name) for name in ("activations", "cache", "runtime", "other", "free")}


def add_up(memory: Memory) -> int:
    return sum(size or 0 for size in memory.by_category().values())


def test_a_cuda_device_by_hand() -> None:
    memory, reasons = compose(AllocatorReading(allocated=1_000, reserved=1_500), STATES, device())
    assert parts(memory) == {
        "activations": 590,  # 1000 - 100 - 100 - 200 - 10
        "cache": 500,  # 1500 - 1000
        "runtime": 500,  # 2000 - 1500
        "other": 4_000,  # (10000 - 4000) - 2000
        "free": 4_000,
    }
    assert add_up(memory) == memory.total == 10_000
    assert reasons == {}


def test_on_a_host_the_baseline_is_runtime() -> None:
    allocator = AllocatorReading(allocated=1_000, reserved=1_500, baseline=300, backend="malloc")
    memory, reasons = compose(allocator, STATES, device())
    assert parts(memory) == {"activations": 290, "cache": 500, "runtime": 800, "other": 4_000, "free": 4_000}
    assert reasons == {}


def test_without_the_process_runtime_is_shown_with_other() -> None:
    memory, reasons = compose(AllocatorReading(allocated=1_000, reserved=1_500), STATES, device(process=None))
    assert parts(memory) == {"activations": 590, "cache": 500, "runtime": None, "other": 4_500, "free": 4_000}
    assert add_up(memory) == 10_000
    assert reasons["runtime"] == f"{SHOWN_WITH} other: not permitted (NVML 4)"
    assert reasons["other"] == f"{SHOWN_WITH} runtime: not permitted (NVML 4)"


def test_without_the_allocator_everything_within_the_process_is_one() -> None:
    allocator = AllocatorReading(reasons={"allocated": "no statistics", "reserved": "no statistics"})
    memory, reasons = compose(allocator, STATES, device())
    assert parts(memory) == {"activations": None, "cache": None, "runtime": 1_590, "other": 4_000, "free": 4_000}
    assert reasons["activations"] == f"{SHOWN_WITH} runtime: no statistics"
    assert reasons["runtime"].startswith(f"{SHOWN_WITH} activations and cache")


def test_sizes_of_states_that_are_unknown_stay_with_activations() -> None:
    resident = Resident(parameters=100, buffers=0, reasons={"gradients": "no model yet", "optimizer": "none seen"})
    memory, reasons = compose(AllocatorReading(allocated=1_000, reserved=1_500), resident, device())
    assert memory.activations == 900
    assert memory.gradients is None
    assert reasons["gradients"] == f"{SHOWN_WITH} activations: no model yet"
    assert reasons["optimizer"] == f"{SHOWN_WITH} activations: none seen"
    assert "gradients, optimizer" in reasons["activations"]
    assert add_up(memory) == 10_000


def test_a_device_that_tells_nothing_leaves_the_allocators_part() -> None:
    unread = DeviceReading(reasons=dict.fromkeys(("total", "free", "process_used"), "the GPU is lost"))
    memory, reasons = compose(AllocatorReading(allocated=1_000, reserved=1_500), STATES, unread)
    assert parts(memory) == {"activations": 590, "cache": 500, "runtime": None, "other": None, "free": None}
    assert memory.total is None
    assert {reasons[name] for name in ("runtime", "other", "free", "total")} == {"the GPU is lost"}


def test_free_that_is_unknown_is_never_called_free() -> None:
    memory, reasons = compose(AllocatorReading(allocated=1_000, reserved=1_500), STATES, device(free=None))
    assert parts(memory) == {"activations": 590, "cache": 500, "runtime": 500, "other": 8_000, "free": None}
    assert reasons["free"].startswith(f"{SHOWN_WITH} other")


def test_a_driver_that_counts_less_than_the_allocator_is_not_believed() -> None:
    memory, reasons = compose(AllocatorReading(allocated=1_000, reserved=1_500), STATES, device(process=900))
    assert parts(memory) == {"activations": 590, "cache": 500, "runtime": None, "other": 4_500, "free": 4_000}
    assert "less for this process than its allocator holds" in reasons["runtime"]


def test_pages_of_a_host_that_were_never_touched_take_no_room() -> None:
    # 1500 reserved beyond the baseline, 1100 of them resident: 400 were never touched.
    allocator = AllocatorReading(allocated=1_100, reserved=1_600, baseline=100, backend="malloc")
    memory, reasons = compose(allocator, STATES, device(process=1_100))
    assert parts(memory) == {"activations": 590, "cache": 100, "runtime": 0, "other": 4_900, "free": 4_000}
    assert "400 bytes" in reasons["cache"]
    # 700 resident: activations give way too, the states do not.
    memory, reasons = compose(allocator, STATES, device(process=700))
    assert parts(memory) == {"activations": 290, "cache": 0, "runtime": 0, "other": 5_300, "free": 4_000}
    assert "never touched" in reasons["activations"]
    # 300 resident: 110 bytes of the tensors themselves have no page yet and will take it from what is free.
    memory, reasons = compose(allocator, STATES, device(process=300))
    assert parts(memory) == {"activations": 0, "cache": 0, "runtime": 0, "other": 5_700, "free": 3_890}
    assert "110 bytes" in reasons["free"]
    assert add_up(memory) == 10_000


def test_tensors_outside_malloc_come_out_of_runtime() -> None:
    # 410 bytes of tensors, 300 in malloc's count beyond the baseline: the other 110 lie in a mapping of the process.
    allocator = AllocatorReading(allocated=400, reserved=700, baseline=100, backend="malloc")
    memory, reasons = compose(allocator, STATES, device(process=2_000))
    assert parts(memory) == {"activations": 0, "cache": 300, "runtime": 1_290, "other": 4_000, "free": 4_000}
    assert "110 bytes" in reasons["activations"]
    assert "110 bytes" in reasons["runtime"]


def test_file_pages_that_count_as_available_are_this_process_s() -> None:
    # The system says 1500 in use by all, this process has 2000 resident: 500 of its pages could be taken back.
    allocator = AllocatorReading(allocated=1_100, reserved=1_600, baseline=100, backend="malloc")
    memory, reasons = compose(allocator, STATES, device(free=8_500))
    assert parts(memory) == {"activations": 590, "cache": 500, "runtime": 500, "other": 0, "free": 8_000}
    assert "500 bytes" in reasons["free"]


def test_tensors_larger_than_the_device_are_not_explained() -> None:
    memory, reasons = compose(AllocatorReading(allocated=1_000, reserved=1_500), STATES, device(total=300, free=10))
    assert parts(memory) == dict.fromkeys(parts(memory))
    assert memory.total == 300
    assert memory.parameters == 100
    assert "exceed" in reasons["activations"]


def test_a_moment_has_its_own_allocator_and_todays_surroundings() -> None:
    now = AllocatorReading(allocated=1_000, reserved=1_500)
    peak = Resident(parameters=100, gradients=0, optimizer=200, buffers=10)
    memory, reasons = at_moment(2_400, 2_500, peak, now, device())
    assert parts(memory) == {
        "activations": 2_090,  # 2400 - 310
        "cache": 100,
        "runtime": 500,  # As now: 2000 - 1500.
        "other": 4_000,  # As now.
        "free": 3_000,  # What remains.
    }
    assert add_up(memory) == 10_000
    assert reasons == {}


def test_a_moment_that_does_not_fit_takes_from_other() -> None:
    now = AllocatorReading(allocated=1_000, reserved=1_500)
    memory, reasons = at_moment(7_000, 7_000, STATES, now, device())
    assert parts(memory) == {"activations": 6_590, "cache": 0, "runtime": 500, "other": 2_500, "free": 0}
    assert "1500 bytes" in reasons["other"]


def test_a_moment_without_the_process_shows_runtime_with_other() -> None:
    now = AllocatorReading(allocated=1_000, reserved=1_500)
    memory, reasons = at_moment(2_400, 2_500, STATES, now, device(process=None))
    assert (memory.runtime, memory.other, memory.free) == (None, 4_500, 3_000)
    assert reasons["runtime"].startswith(SHOWN_WITH)


def test_a_moment_of_a_host_whose_pages_are_not_touched_keeps_its_activations() -> None:
    """ZeRO's bucket, asked for after the moment and never touched, is no reason to find nothing at the moment."""
    now = AllocatorReading(allocated=3_900, reserved=4_100, baseline=100, backend="malloc")
    memory, reasons = at_moment(1_000, 1_100, STATES, now, device(process=2_000))
    assert parts(memory) == {"activations": 490, "cache": 100, "runtime": None, "other": 5_000, "free": 4_000}
    assert "2000 bytes" in reasons["runtime"]
    assert add_up(memory) == 10_000


def test_a_moment_whose_allocator_was_not_read() -> None:
    now = AllocatorReading(allocated=1_000, reserved=1_500)
    memory, reasons = at_moment(None, None, STATES, now, device())
    assert memory.activations is None
    assert memory.total == 10_000
    assert all(name in reasons for name in CATEGORIES if getattr(memory, name) is None)


GIB = 1 << 30
TOTAL = 80 * GIB
LOST = "the GPU is lost (NVML 15)"
NATIVE = AllocatorReading(allocated=20 * GIB, reserved=24 * GIB, backend="native")
HELD = Resident(parameters=4 * GIB, gradients=4 * GIB, optimizer=8 * GIB, buffers=GIB)


def reading(**changes: Any) -> DeviceReading:
    """A GPU of 80 GiB, 30 in use: 26 by this process, 1 by the driver."""
    values = {
        "total": TOTAL, "used": 30 * GIB, "free": 50 * GIB, "reserved": GIB, "process_used": 26 * GIB,
        "processes": (DeviceProcess(7, 26 * GIB), DeviceProcess(8, 3 * GIB)), "process_pid": 7,
    }  # fmt: skip
    return DeviceReading(**{**values, **changes})


def no_process(words: str, **changes: Any) -> DeviceReading:
    return reading(process_used=None, process_pid=None, reasons={"process_used": words}, **changes)


def malloc(allocated: int, reserved: int) -> AllocatorReading:
    return AllocatorReading(allocated=allocated, reserved=reserved, baseline=GIB, backend="malloc")


def silent(backend: str, *names: str) -> AllocatorReading:
    words = dict.fromkeys(names, f"the {backend} allocator does not tell")
    told: dict[str, Any] = {"allocated": 20 * GIB, "reserved": 24 * GIB, **dict.fromkeys(names)}
    return AllocatorReading(**told, backend=backend, reasons=words)


FOREIGN = DeviceProcess(4_100_001, 26 * GIB)
OLD = {"state": "no answer", "age": 400.0}
CONDITIONS: dict[str, tuple[AllocatorReading, DeviceReading, tuple[int | None, ...]]] = {
    # activations, cache, runtime, other, free in GiB
    "memory info v2": (NATIVE, reading(), (3, 4, 2, 4, 50)),
    "memory info v1": (NATIVE, reading(reserved=None, reasons={"reserved": "v1 counts it as used"}), (3, 4, 2, 4, 50)),
    "a MIG instance smaller than what is held": (
        replace(NATIVE, allocated=6 * GIB, reserved=7 * GIB),
        reading(total=10 * GIB, used=8 * GIB, free=2 * GIB, process_used=7 * GIB + GIB // 2),
        (None, None, None, None, None),
    ),
    "unified memory": (
        NATIVE, no_process("the driver has none", total=119 * GIB, used=40 * GIB, free=79 * GIB, reserved=None),
        (3, 4, None, 16, 79),
    ),
    "unified memory, process known": (
        NATIVE, reading(total=119 * GIB, used=40 * GIB, free=79 * GIB, reserved=None), (3, 4, 2, 14, 79)
    ),
    "WSL": (NATIVE, no_process("WSL does not tell", processes=(DeviceProcess(7, None),)), (3, 4, None, 6, 50)),
    "a foreign PID namespace": (NATIVE, no_process("not listed", processes=(FOREIGN,)), (3, 4, 2, 4, 50)),
    "two that may be this one": (
        NATIVE, no_process("not listed", processes=(FOREIGN, replace(FOREIGN, pid=9))), (3, 4, None, 6, 50)
    ),
    "processes refused": (NATIVE, no_process("no permission (NVML 4)", processes=None), (3, 4, None, 6, 50)),
    "a hung driver": (replace(NATIVE, allocated=21 * GIB, reserved=25 * GIB), reading(**OLD), (4, 4, 1, 4, 50)),
    "a hung driver, allocator grown past it": (
        replace(NATIVE, allocated=21 * GIB, reserved=40 * GIB), reading(**OLD), (4, 19, None, 0, 40)
    ),
    "a lost device": (
        NATIVE,
        DeviceReading(state="lost", reasons=dict.fromkeys(("total", "used", "free", "process_used"), LOST)),
        (3, 4, None, None, None),
    ),
    "memory refused, processes not": (
        NATIVE,
        reading(total=None, used=None, free=None, reserved=None, reasons=dict.fromkeys(("total", "free"), "refused")),
        (3, 4, 2, None, None),
    ),
    "cudaMallocAsync": (silent("cudaMallocAsync"), reading(), (3, 4, 2, 4, 50)),
    "cudaMallocAsync, reserved unknown": (silent("cudaMallocAsync", "reserved"), reading(), (3, None, 6, 4, 50)),
    "a pluggable allocator": (silent("pluggable", "allocated", "reserved"), reading(), (None, None, 9, 4, 50)),
    "a pluggable allocator in a foreign PID namespace": (
        silent("pluggable", "allocated", "reserved"), no_process("not listed", processes=(FOREIGN,)),
        (None, None, None, 13, 50),
    ),
    "a CPU job beside a GPU": (malloc(20 * GIB, 22 * GIB), reading(), (2, 2, 5, 4, 50)),
    "a CPU job beside a GPU that it is not on": (
        malloc(20 * GIB, 22 * GIB), no_process("not in the driver's list"), (2, 2, None, 9, 50)
    ),
    "a host": (malloc(20 * GIB, 22 * GIB), reading(reserved=None, processes=None), (2, 2, 5, 4, 50)),
}  # fmt: skip


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_identity_adds_up_under(condition: str) -> None:
    allocator, device_reading, wanted = CONDITIONS[condition]
    memory, reasons = compose(allocator, HELD, own(device_reading, allocator, (7, 70), lambda pid: False))
    assert tuple(None if size is None else size / GIB for size in parts(memory).values()) == wanted
    sizes = memory.by_category()
    assert all(size >= 0 for size in sizes.values() if size is not None)
    unknown = [name for name, size in memory.as_dict().items() if size is None]
    assert all(reasons[name] for name in unknown)
    told_elsewhere = all(SHOWN_WITH in reasons[name] for name in unknown)
    assert memory.total == device_reading.total
    if told_elsewhere and memory.total is not None:
        assert add_up(memory) == memory.total
    else:
        assert not {reasons[name] for name in unknown}.isdisjoint(BEYOND), "only these are not to be added up"


BEYOND = {LOST, "refused", f"the tensors ({17 * GIB} bytes) exceed the device's {10 * GIB}"}


def test_words_of_a_driver_that_hangs_say_how_old_its_number_is() -> None:
    allocator, device_reading, _ = CONDITIONS["a hung driver, allocator grown past it"]
    reasons = compose(allocator, HELD, device_reading)[1]
    assert "(read 400 s ago)" in reasons["runtime"]


def test_a_mig_instance_whose_tensors_fit() -> None:
    allocator = AllocatorReading(allocated=6 * GIB, reserved=7 * GIB, backend="native")
    instance = reading(total=10 * GIB, used=8 * GIB, free=2 * GIB, process_used=7 * GIB + GIB // 2)
    memory, reasons = compose(allocator, Resident(GIB, GIB, 2 * GIB, 0), instance)
    assert tuple(parts(memory).values()) == (2 * GIB, GIB, GIB // 2, GIB // 2, 2 * GIB)
    assert add_up(memory) == memory.total
    assert reasons == {}


sizes = st.integers(min_value=0, max_value=1 << 40)
maybe = st.none() | sizes


@st.composite
def readings(draw: st.DrawFn) -> tuple[AllocatorReading, Resident, DeviceReading]:
    total = draw(maybe)
    free = draw(st.none() | st.integers(0, total)) if total is not None else None
    backend = draw(st.sampled_from(("", "native", "cudaMallocAsync", "pluggable", "malloc")))
    allocator = AllocatorReading(
        allocated=draw(maybe), reserved=draw(maybe), baseline=draw(st.just(0) | sizes), backend=backend
    )
    resident = Resident(draw(maybe), draw(maybe), draw(maybe), draw(maybe))
    reserved = draw(st.none() | st.integers(0, total - (free or 0))) if total is not None else None
    listed = draw(st.none() | st.lists(st.builds(DeviceProcess, st.integers(1, 99), maybe), max_size=4).map(tuple))
    reading = DeviceReading(
        total=total, free=free, reserved=reserved, process_used=draw(maybe), processes=listed,
        age=draw(st.sampled_from((0.0, 400.0))), state=draw(st.sampled_from(DEVICE_STATES)),
    )  # fmt: skip
    return allocator, resident, own(reading, allocator, (1, 2), lambda pid: pid % 2 == 0)


@settings(max_examples=300, deadline=None)
@given(readings(), maybe, maybe)
def test_nothing_is_negative_all_adds_up_and_every_unknown_is_named(
    given_readings: tuple[AllocatorReading, Resident, DeviceReading], allocated: int | None, reserved: int | None
) -> None:
    allocator, resident, reading = given_readings
    held = sum(size or 0 for size in (resident.parameters, resident.gradients, resident.optimizer, resident.buffers))
    for memory, reasons in (
        compose(allocator, resident, reading),
        at_moment(allocated, reserved, resident, allocator, reading),
    ):
        by_category = memory.by_category()
        assert all(size >= 0 for size in by_category.values() if size is not None)
        assert all(reasons.get(name) for name, size in memory.as_dict().items() if size is None)
        for name in ("parameters", "gradients", "optimizer", "buffers"):
            assert by_category[name] == getattr(resident, name)
        assert memory.total == reading.total
        unexplained = [n for n, size in by_category.items() if size is None and SHOWN_WITH not in reasons[n]]
        if memory.total is not None and not unexplained and held <= memory.total:
            assert sum(size or 0 for size in by_category.values()) == memory.total
