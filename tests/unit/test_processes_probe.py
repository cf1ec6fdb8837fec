"""This process found in a driver's list by elimination, and left unknown wherever that could be wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ranktop.budget.terms import Memory
from ranktop.probes.identity import SHOWN_WITH, compose
from ranktop.probes.processes import is_alive, own
from ranktop.probes.reading import AllocatorReading, DeviceProcess, DeviceReading, Resident

MIB = 1 << 20
ALLOCATOR = AllocatorReading(allocated=800 * MIB, reserved=1000 * MIB, backend="native")
OURS = DeviceProcess(4_100_017, 1500 * MIB)
SMALL = DeviceProcess(4_100_018, 300 * MIB)
ABSENT = "this process is not in the driver's list"


def reading(*listed: DeviceProcess, **changes: object) -> DeviceReading:
    values: dict[str, object] = {
        "total": 80_000 * MIB,
        "free": 70_000 * MIB,
        "used": 10_000 * MIB,
        "processes": listed,
        "reasons": {"process_used": ABSENT},
    }
    return DeviceReading(**{**values, **changes})  # type: ignore[arg-type]


def dead(pid: int) -> bool:
    return False


def test_the_only_one_that_holds_enough_is_this_process_and_that_is_said() -> None:
    found = own(reading(SMALL, OURS), ALLOCATOR, (17,), dead)
    assert (found.process_used, found.process_pid) == (OURS.bytes, OURS.pid)
    assert f"taken to be process {OURS.pid}" in found.reasons["process_used"]
    memory, reasons = compose(ALLOCATOR, Resident(100, 0, 0, 0), found)
    assert memory.runtime == 500 * MIB, "1500 of the process, 1000 of its allocator"
    assert memory.other == 8_500 * MIB
    assert sum(size or 0 for size in memory.by_category().values()) == memory.total
    assert f"process {OURS.pid}" in reasons["runtime"]


def merged(memory: Memory, reasons: dict[str, str]) -> bool:
    return memory.runtime is None and memory.other == 9_000 * MIB and reasons["runtime"].startswith(SHOWN_WITH)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ((OURS, DeviceProcess(4_100_019, 1000 * MIB)), "2 processes"),
        ((OURS, DeviceProcess(4_100_019, None)), "2 processes"),
        ((DeviceProcess(4_100_019, None),), "as 4100019"),
        ((SMALL,), "holds as much"),
        ((), ABSENT),
    ],
    ids=["two that can", "one that may", "no bytes", "too small", "nobody"],
)
def test_what_may_be_another_is_not_claimed(listed: tuple[DeviceProcess, ...], words: str) -> None:
    found = own(reading(*listed), ALLOCATOR, (17,), dead)
    assert (found.process_used, found.process_pid) == (None, None)
    assert words in found.reasons["process_used"]
    assert merged(*compose(ALLOCATOR, Resident(100, 0, 0, 0), found))


def test_an_id_that_another_process_here_has_is_not_claimed() -> None:
    found = own(reading(OURS), ALLOCATOR, (17,), lambda pid: pid == OURS.pid)
    assert found.process_used is None
    assert str(OURS.pid) in found.reasons["process_used"]


@pytest.mark.parametrize(
    "allocator",
    [
        AllocatorReading(allocated=0, reserved=0, backend="native"),
        AllocatorReading(backend="pluggable", reasons={"reserved": "no statistics"}),
        AllocatorReading(allocated=800, reserved=1000, backend="malloc"),
        AllocatorReading(),
    ],
    ids=["nothing reserved", "unknown", "malloc", "no CUDA"],
)
def test_without_a_context_for_certain_no_process_is_ours(allocator: AllocatorReading) -> None:
    asked = reading(OURS)
    assert own(asked, allocator, (17,), dead) is asked


def test_what_the_driver_says_itself_stays() -> None:
    known = reading(OURS, process_used=5, reasons={})
    assert own(known, ALLOCATOR, (17,), dead) is known
    refused = reading(processes=None, reasons={"process_used": "no permission"})
    assert own(refused, ALLOCATOR, (17,), dead) is refused
    # WSL names the process and not its bytes; another one's bytes are not ours then.
    wsl = reading(DeviceProcess(17, None), OURS, reasons={"process_used": "the driver does not tell it"})
    assert own(wsl, ALLOCATOR, (17, 4_000_000), dead) is wsl


def test_a_process_is_alive_until_it_has_been_collected() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(child.pid)
    child.communicate(b"\n")
    assert not is_alive(child.pid)
    assert is_alive(os.getpid())
    assert is_alive(1), "also one that may not be signalled"
    assert not is_alive(2**40)
