"""The memory identity: worked examples by hand, and what holds for any readings."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.budget.terms import CATEGORIES, Memory
from ranktop.probes.identity import SHOWN_WITH, at_moment, compose
from ranktop.probes.reading import AllocatorReading, DeviceReading, Resident

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
    allocator = AllocatorReading(allocated=1_000, reserved=1_500, baseline=300)
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
    allocator = AllocatorReading(allocated=1_100, reserved=1_600, baseline=100)
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
    allocator = AllocatorReading(allocated=400, reserved=700, baseline=100)
    memory, reasons = compose(allocator, STATES, device(process=2_000))
    assert parts(memory) == {"activations": 0, "cache": 300, "runtime": 1_290, "other": 4_000, "free": 4_000}
    assert "110 bytes" in reasons["activations"]
    assert "110 bytes" in reasons["runtime"]


def test_file_pages_that_count_as_available_are_this_process_s() -> None:
    # The system says 1500 in use by all, this process has 2000 resident: 500 of its pages could be taken back.
    allocator = AllocatorReading(allocated=1_100, reserved=1_600, baseline=100)
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


def test_a_moment_whose_allocator_was_not_read() -> None:
    now = AllocatorReading(allocated=1_000, reserved=1_500)
    memory, reasons = at_moment(None, None, STATES, now, device())
    assert memory.activations is None
    assert memory.total == 10_000
    assert all(name in reasons for name in CATEGORIES if getattr(memory, name) is None)


sizes = st.integers(min_value=0, max_value=1 << 40)
maybe = st.none() | sizes


@st.composite
def readings(draw: st.DrawFn) -> tuple[AllocatorReading, Resident, DeviceReading]:
    total = draw(maybe)
    free = draw(st.none() | st.integers(0, total)) if total is not None else None
    allocator = AllocatorReading(allocated=draw(maybe), reserved=draw(maybe), baseline=draw(st.just(0) | sizes))
    resident = Resident(draw(maybe), draw(maybe), draw(maybe), draw(maybe))
    reading = DeviceReading(total=total, free=free, process_used=draw(maybe))
    return allocator, resident, reading


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
