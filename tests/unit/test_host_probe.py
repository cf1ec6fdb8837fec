"""The host as a device, against what the kernel says."""

from __future__ import annotations

import mmap
import resource
import time
from pathlib import Path

import pytest

from ranktop.probes.host import HostDevice, cpu_name
from ranktop.probes.reading import DeviceReading

MIB = 1 << 20


def meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def test_memory_is_what_the_kernel_says() -> None:
    reading = HostDevice().read()
    assert reading.total == meminfo("MemTotal")
    assert reading.free is not None
    assert reading.used == reading.total - reading.free
    assert abs(reading.free - meminfo("MemAvailable")) < 512 * MIB  # Others use the machine too.
    assert reading.process_used is not None
    assert abs(reading.process_used - resident()) < 4 * MIB
    assert (reading.state, reading.age) == ("ok", 0.0)


def test_pages_count_for_the_process_once_they_are_touched() -> None:
    device = HostDevice()
    size = 64 * MIB
    with mmap.mmap(-1, size) as block:
        before = device.read().process_used
        for offset in range(0, size, mmap.PAGESIZE):
            block[offset] = 1
        after = device.read().process_used
    assert before is not None
    assert after is not None
    assert size - 4 * MIB < after - before < size + 4 * MIB


def test_utilization_is_the_machines_between_two_readings() -> None:
    device = HostDevice()
    assert device.read().utilization is None
    assert device.read().reasons.get("power") == "not read on a host"
    readings: list[DeviceReading] = []
    deadline = time.monotonic() + 10
    while not readings or readings[-1].utilization is None:
        assert time.monotonic() < deadline
        spin = time.monotonic() + 0.1
        while time.monotonic() < spin:
            pass
        readings.append(device.read())
    utilization = readings[-1].utilization
    # One thread was busy all the time, so at least its share of the CPUs was, less the kernel's coarse ticks.
    assert utilization is not None
    assert int(0.5 * 100 / cpu_count()) <= utilization <= 100


def cpu_count() -> int:
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    return sum(line.startswith("cpu") and line[3].isdigit() for line in lines)


def test_each_unknown_has_its_reason_and_only_they() -> None:
    device = HostDevice(note="why not another")
    reading = device.read()
    unknown = {"utilization", "power", "power_limit", "temperature", "sm_clock", "memory_clock"}
    unknown |= {"reserved", "throttle", "processes", "process_pid"}
    assert set(reading.reasons) == unknown | {"device"}
    assert all(getattr(reading, name) is None for name in unknown)
    assert reading.reasons["device"] == "why not another"


def test_a_kernel_that_does_not_answer_costs_those_values_only(monkeypatch: pytest.MonkeyPatch) -> None:
    device = HostDevice()

    def fail() -> None:
        raise OSError("no /proc")

    monkeypatch.setattr("ranktop.probes.host.machine_memory", fail)
    reading = device.read()
    assert (reading.total, reading.used, reading.free) == (None, None, None)
    assert "no /proc" in reading.reasons["free"]
    assert reading.process_used is not None


def test_identity_is_the_cpu_and_the_ram() -> None:
    device = HostDevice()
    identity = device.identity()
    assert (identity.kind, identity.uuid, identity.total) == ("host", None, meminfo("MemTotal"))
    assert identity.name == cpu_name()
    assert identity.name.strip()
    device.close()
