"""Devices that are not the usual one: MIG, unified memory, WSL, virtual, very large, very many, and absurd numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from nvml_stub.build import NvmlStub, build_library
from nvml_stub.hardware import (
    GIB,
    MIB,
    b300,
    device,
    device_uuid,
    gb10,
    mig,
    mig_uuid,
    not_permitted,
    vgpu,
    wsl,
)
from nvml_stub.remote import PROMPT, Client, reason_of, value_of

pytest_plugins = ["nvml_stub.fixtures"]
Start = Callable[..., Client]


def test_mig_instances_with_gaps_in_their_indexes(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    parent, *instances = mig(0, 1)
    parent |= {"index": 3, "pci": "00000000:81:00.0", "util": 77}
    for n, one in enumerate(instances):
        one["procs"] = f"{client.process.pid}:{(n + 1) * 100 * MIB}"
    nvml_stub.devices(parent, *instances)
    for n, index in enumerate((0, 2, 5)):
        one = client.whole(mig_uuid(1 + n))
        reading, identity = one["reading"], one["identity"]
        assert (reading["total"], reading["used"]) == (10 * GIB, (1 + index) * GIB + 16 * MIB)
        assert reading["process_used"] == (n + 1) * 100 * MIB
        assert (identity["nvml_index"], identity["pci_bus_id"]) == (3, "0000:81:00.0")
        assert identity["mig"] == {
            "parent_uuid": device_uuid(0), "index": index, "gpu_instance": 7 + index, "compute_instance": 0,
            "profile": "1g.10gb",
        }  # fmt: skip
        # What is told only of the whole GPU is the whole GPU's, and said to be.
        assert (reading["power"], reading["temperature"], reading["sm_clock"]) == (300.0, 60, 1980)
        assert {"power", "temperature", "sm_clock", "energy", "ecc_corrected"} <= set(one["detail"]["of_parent"])
        assert not {"total", "used", "processes"} & set(one["detail"]["of_parent"])
        # A percentage of the whole GPU would be nobody's.
        assert reading["utilization"] is None
        assert "not supported" in reading["reasons"]["utilization"]
        assert "RANKTOP_GPM" in reading["reasons"]["utilization"]


def test_gpm_tells_how_busy_a_mig_instance_is(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(*mig(0, 1))
    client = nvml_client(nvml_stub, RANKTOP_GPM="1")
    assert client.whole(mig_uuid(2))["detail"]["gpm_sm"] == 62.5
    assert client.whole(device_uuid(0))["detail"]["gpm_sm"] == 71.5


def test_processes_of_an_instance_that_only_the_whole_gpu_lists(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    parent, *instances = mig(0, 1)
    # Of instances 0 and 2, as a host of virtual GPUs tells them.
    parent["procs"] = f"{client.process.pid}:5:9:0,4000001:6:9:0,4000002:7:7:0"
    nvml_stub.devices(parent, *instances)
    for version in ("", "_v2", "_v3"):
        nvml_stub.update({f"d{n}.nvmlDeviceGetComputeRunningProcesses{version}.ret": 3 for n in (1, 2, 3)})
    reading = client.whole(mig_uuid(2))["reading"]
    assert [(one["pid"], one["bytes"]) for one in reading["processes"]] == [(client.process.pid, 5), (4000001, 6)]
    assert reading["process_used"] == 5


@pytest.mark.parametrize("handle", [0, 4])
def test_a_container_may_not_ask_the_whole_gpu(nvml_stub: NvmlStub, nvml_client: Start, handle: int) -> None:
    parent, *instances = mig(0, 1)
    nvml_stub.devices(not_permitted(parent), *instances)
    refused = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo", "nvmlDeviceGetIndex")
    nvml_stub.update({f"d0.{name}.ret": 4 for name in refused})
    nvml_stub.update({"d1.nvmlDeviceGetDeviceHandleFromMigDeviceHandle.ret": handle})
    one = nvml_client(nvml_stub).whole(mig_uuid(1))
    assert (one["reading"]["state"], one["reading"]["used"]) == ("ok", 1 * GIB + 16 * MIB)
    for name in ("power", "temperature", "sm_clock"):
        assert value_of(one, name) is None
        assert "whole GPU" in reason_of(one, name)
        assert "not permitted" in reason_of(one, name)
    assert one["identity"]["nvml_index"] is None


def test_a_mig_parent_of_which_memory_is_refused(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(*(not_permitted(one) if n == 0 else one for n, one in enumerate(mig(0, 1))))
    one = nvml_client(nvml_stub).whole(device_uuid(0))
    assert one["reading"]["state"] == "ok"
    for name in ("total", "used", "free", "processes", "process_used"):
        assert value_of(one, name) is None
        assert "not permitted" in reason_of(one, name)
    assert one["reading"]["power"] == 300.0


def host_total() -> int:
    first = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()[0].split()
    assert (first[0], first[2]) == ("MemTotal:", "kB")
    return int(first[1]) * 1024


@pytest.mark.parametrize("memory", ["refused", "zero"])
def test_a_device_that_shares_the_hosts_memory(nvml_stub: NvmlStub, nvml_client: Start, memory: str) -> None:
    client = nvml_client(nvml_stub)
    nvml_stub.devices(gb10(memory=memory, procs=f"{client.process.pid}:{GIB}"))
    one = client.whole(device_uuid(0))
    reading = one["reading"]
    assert one["identity"]["unified"] is True
    assert reading["total"] == host_total()
    assert reading["used"] + reading["free"] == reading["total"]
    assert 0 < reading["used"] < reading["total"]
    assert reading["reserved"] is None
    assert "host" in reading["reasons"]["reserved"]
    assert reading["process_used"] == GIB
    assert "not supported" in reason_of(one, "memory_clock")
    assert one["detail"]["nvlinks"] == []


def test_a_board_that_tells_nothing_but_its_name(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    absent = ("util", "memutil", "power", "limit", "sm", "mem", "temp", "mem_temp", "reasons", "energy", "pstate")
    nvml_stub.devices(gb10(name="Orin (nvgpu)") | dict.fromkeys(absent))
    one = nvml_client(nvml_stub).whole(device_uuid(0))
    assert (one["reading"]["state"], one["reading"]["total"]) == ("ok", host_total())
    assert one["identity"]["name"] == "Orin (nvgpu)"
    for name in ("utilization", "power", "temperature", "sm_clock", "throttle", "energy"):
        assert value_of(one, name) is None
        assert "not supported" in reason_of(one, name)


def test_wsl(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    nvml_stub.devices(wsl(pids=(client.process.pid, 4_000_001)))
    one = client.whole(device_uuid(0))
    reading = one["reading"]
    assert (reading["state"], reading["total"]) == ("ok", 80 * GIB)
    assert sorted((p["pid"], p["bytes"]) for p in reading["processes"]) == sorted(
        [(client.process.pid, None), (4_000_001, None)]
    )
    assert (reading["process_pid"], reading["process_used"]) == (client.process.pid, None)
    assert "does not tell the memory of processes" in reading["reasons"]["process_used"]
    assert "not supported" in reading["reasons"]["utilization"]
    assert one["identity"]["pci_bus_id"] is None


def test_a_virtual_gpu(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(vgpu())
    one = nvml_client(nvml_stub).whole(device_uuid(0))
    assert (one["reading"]["state"], one["reading"]["utilization"]) == ("ok", 50)
    for name in ("power", "power_limit", "temperature", "throttle", "energy", "ecc_enabled", "remap_pending"):
        assert value_of(one, name) is None
        assert "not supported" in reason_of(one, name)


def test_1400_watts_and_288_gib(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(b300())
    one = nvml_client(nvml_stub).whole(device_uuid(0))
    assert (one["reading"]["power"], one["reading"]["power_limit"]) == (1387.5, 1400.0)
    assert (one["reading"]["total"], one["detail"]["power_max_limit"]) == (288 * GIB, 1400.0)
    assert one["detail"]["pcie_generation"] == 6


@pytest.mark.parametrize("count", [16, 72])
def test_many_devices(nvml_stub: NvmlStub, nvml_client: Start, count: int) -> None:
    nvml_stub.devices(*(device(n, index=count - 1 - n) for n in range(count)))
    client = nvml_client(nvml_stub)
    for n in range(count):
        client.open(device_uuid(n), **PROMPT)
    for n in range(count):
        reading = client.until(n, lambda r: r["state"] == "ok" and r["power_limit"] is not None)
        assert reading["used"] == (10 + n % 60) * GIB + 600 * MIB
        assert (reading["utilization"], reading["power"]) == ((50 + n) % 101, 300 + n / 1000)
        assert client.identity(n)["nvml_index"] == count - 1 - n


def test_a_name_that_is_not_utf8(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0, name="Board %ff%fe 3"))
    assert nvml_client(nvml_stub).whole(device_uuid(0))["identity"]["name"] == "Board \ufffd\ufffd 3"


@pytest.mark.parametrize("way", ["missing", 13, 25])
def test_memory_of_the_first_version(nvml_stub: NvmlStub, nvml_client: Start, tmp_path: Path, way: str | int) -> None:
    if way == "missing":
        nvml_stub.library = build_library(tmp_path / "old", without=("nvmlDeviceGetMemoryInfo_v2",))
    nvml_stub.devices(device(0))
    if way != "missing":
        nvml_stub.update({"d0.nvmlDeviceGetMemoryInfo_v2.ret": way})
    reading = nvml_client(nvml_stub).whole(device_uuid(0))["reading"]
    assert (reading["used"], reading["free"]) == (10 * GIB + 600 * MIB, 70 * GIB - 600 * MIB)
    assert reading["reserved"] is None
    assert "(v1) counts what it reserves as used" in reading["reasons"]["reserved"]
