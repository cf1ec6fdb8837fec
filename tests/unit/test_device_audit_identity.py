"""The identity adds up for every condition of a device and every allocator: readings over the stand-in library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from nvml_stub.build import NvmlStub
from nvml_stub.hardware import GIB, MIB, NO_NUMBER_64, b300, device, device_uuid, gb10, mig, mig_uuid, vgpu, wsl
from nvml_stub.remote import PROMPT, Client

from ranktop.probes.identity import SHOWN_WITH, compose
from ranktop.probes.processes import own
from ranktop.probes.reading import AllocatorReading, DeviceReading, Resident

pytest_plugins = ["nvml_stub.fixtures"]

PARTS = ("parameters", "gradients", "optimizer", "activations", "buffers", "cache", "runtime", "other", "free")
MEMORY = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")
LISTS = tuple(f"nvmlDeviceGetComputeRunningProcesses{version}" for version in ("_v3", "_v2", ""))
RESIDENT = Resident(parameters=GIB, gradients=GIB, optimizer=2 * GIB, buffers=128 * MIB)
ALLOCATORS = {
    "native": AllocatorReading(allocated=5 * GIB, reserved=6 * GIB, backend="native"),
    "cudaMallocAsync": AllocatorReading(allocated=5 * GIB, reserved=6 * GIB, backend="cudaMallocAsync"),
    "pluggable": AllocatorReading(
        backend="pluggable", reasons=dict.fromkeys(("allocated", "reserved"), "gives no statistics")
    ),
}


def codes(names: tuple[str, ...], code: int) -> dict[str, object]:
    return {f"{name}.ret": code for name in names}


CONDITIONS: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "well": lambda pid: [device(0, procs=f"{pid}:{8 * GIB},4000000:{GIB}")],
    "v1 by 13": lambda pid: [device(0, procs=f"{pid}:{8 * GIB}", **codes(MEMORY[:1], 13))],
    "v1 by 25": lambda pid: [device(0, procs=f"{pid}:{8 * GIB}", **codes(MEMORY[:1], 25))],
    "memory refused": lambda pid: [device(0, procs=f"{pid}:{8 * GIB}", **codes(MEMORY, 4))],
    "memory times out": lambda pid: [device(0, procs=f"{pid}:{8 * GIB}", **codes(MEMORY, 10))],
    "list refused": lambda pid: [device(0, **codes(LISTS, 4))],
    "both refused": lambda pid: [device(0, **codes((*MEMORY, *LISTS), 4))],
    "not listed": lambda pid: [device(0)],
    "only a foreign id": lambda pid: [device(0, procs=f"4000001:{8 * GIB}")],
    "foreign ids": lambda pid: [device(0, procs=f"4000001:{8 * GIB},4000002:{7 * GIB}")],
    "less than reserved": lambda pid: [device(0, procs=f"{pid}:{4 * GIB}")],
    "more than used": lambda pid: [device(0, procs=f"{pid}:{30 * GIB}")],
    "no process bytes": lambda pid: [device(0, procs=f"{pid}:{NO_NUMBER_64}")],
    "absurd free": lambda pid: [device(0, procs=f"{pid}:{8 * GIB}", free=NO_NUMBER_64)],
    "wsl": lambda pid: [wsl(0, (pid,))],
    "vgpu": lambda pid: [vgpu(0, procs=f"{pid}:{8 * GIB}")],
    "unified": lambda pid: [gb10(0, procs=f"{pid}:{8 * GIB}")],
    "unified, total 0": lambda pid: [gb10(0, memory="zero", procs=f"{pid}:{8 * GIB}")],
    "288 GiB": lambda pid: [b300(0, procs=f"{pid}:{199 * GIB}")],
    "lost": lambda pid: [device(0, **{"*.ret": 15})],
}


@pytest.fixture
def asked(nvml_stub: NvmlStub, nvml_client: Callable[..., Client]) -> Callable[[str], DeviceReading]:
    client = nvml_client(nvml_stub)

    def read(condition: str) -> DeviceReading:
        nvml_stub.devices(*CONDITIONS[condition](client.process.pid))
        probe = client.open(device_uuid(0), **PROMPT)
        told = client.until(probe, lambda reading: reading["state"] != "pending")
        return msgspec.convert(told, DeviceReading)

    return read


def shortcomings(allocator: AllocatorReading, reading: DeviceReading) -> list[str]:
    """What is wrong with the memory that is made of these: nothing."""
    memory, reasons = compose(allocator, RESIDENT, reading)
    sizes = {part: getattr(memory, part) for part in PARTS}
    known = {part: size for part, size in sizes.items() if size is not None}
    wrong = [f"{part} is {size}" for part, size in known.items() if size < 0]
    wrong += [f"{part} without a reason" for part in PARTS if sizes[part] is None and not reasons.get(part)]
    if memory.total is None:
        return wrong if reasons.get("total") else [*wrong, "total without a reason"]
    if sum(known.values()) != memory.total:
        wrong.append(f"{known} is not {memory.total}")
    wrong += [f"{part}: {reasons[part]}" for part in PARTS if sizes[part] is None and SHOWN_WITH not in reasons[part]]
    return wrong


def test_it_adds_up_whatever_is_missing(asked: Callable[[str], DeviceReading]) -> None:
    found = {}
    for condition in CONDITIONS:
        reading = asked(condition)
        for backend, allocator in ALLOCATORS.items():
            mine = own(reading, allocator, (), lambda pid: False)
            found[f"{condition}, {backend}"] = shortcomings(allocator, mine)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    assert len(found) == 60


def test_the_conditions_are_what_they_are_called(asked: Callable[[str], DeviceReading]) -> None:
    """Else a sum over healthy readings would pass for all of them."""
    assert asked("well").process_used == 8 * GIB
    assert asked("v1 by 25").reserved is None
    assert asked("memory refused").total is None
    assert asked("list refused").processes is None
    assert asked("no process bytes").process_used is None
    assert asked("absurd free").free is None
    assert asked("lost").state == "lost"


def test_a_mig_instance_has_its_own_sum(nvml_stub: NvmlStub, nvml_client: Callable[..., Client]) -> None:
    client = nvml_client(nvml_stub)
    parent, first, second = mig(0, 1, (2, 5))
    second["procs"] = f"{client.process.pid}:{3 * GIB}"
    nvml_stub.devices(parent, first, second)
    probe = client.open(mig_uuid(2), **PROMPT)
    reading = msgspec.convert(client.until(probe, lambda told: told["total"] is not None), DeviceReading)
    small = AllocatorReading(allocated=2 * GIB, reserved=2 * GIB + MIB, backend="native")
    memory, _ = compose(small, Resident(GIB, 0, 0, 0), reading)
    assert (memory.total, memory.cache, memory.runtime) == (10 * GIB, MIB, GIB - MIB)
    assert memory.other == 3 * GIB + 16 * MIB, "6 GiB are used there, and 16 MiB the driver's"
