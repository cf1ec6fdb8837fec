"""The NVML probe over the stand-in library, through the real pynvml, in a process of its own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from nvml_stub.build import NvmlStub, build_library
from nvml_stub.hardware import GIB, MIB, device, device_uuid
from nvml_stub.remote import PROMPT, Client

from ranktop.probes.device import locate, uuid_names

pytest_plugins = ["nvml_stub.fixtures"]
Start = Callable[..., Client]


def test_devices_are_found_by_uuid_whatever_their_order(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    count = 4
    nvml_stub.devices(*(device(n, index=count - 1 - n) for n in range(count)))
    client = nvml_client(nvml_stub)
    for n in range(count):
        bare = device_uuid(n).removeprefix("GPU-")
        probe = client.open(*uuid_names(bare, 0, ""), **PROMPT)
        reading = client.until(probe, lambda r: r["state"] == "ok")
        identity = client.identity(probe)
        assert identity["uuid"] == device_uuid(n)
        assert identity["nvml_index"] == count - 1 - n
        assert identity["name"] == f"NVIDIA Test {n}"
        assert identity["total"] == 80 * GIB
        assert reading["utilization"] == 50 + n


def test_the_beginning_of_a_uuid_is_enough_where_it_is_one_devices(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(1, index=0), device(2, index=1), device(16, index=2))
    # The middle one's handle can't be had by index: that hides no other.
    nvml_stub.update({"d1.nvmlDeviceGetHandleByIndex_v2.ret": 999})
    client = nvml_client(nvml_stub)
    probe = client.open("GPU-00000010", **PROMPT)
    assert client.until(probe, lambda r: r["state"] == "ok")["utilization"] == 66
    assert client.identity(probe)["uuid"] == device_uuid(16)
    several = client.open("GPU-000000", **PROMPT)
    reading = client.until(several, lambda r: "begins with" in r["reasons"].get("device", ""))
    assert reading["state"] == "unavailable"
    assert device_uuid(1) in reading["reasons"]["device"]
    assert device_uuid(16) in reading["reasons"]["device"]


def test_every_value_is_the_devices_own(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub, RANKTOP_GPM="1")
    pid = client.process.pid
    nvml_stub.devices(
        device(0),
        device(
            1, index=1, pci="7e57:81:1f.0", numa=3, fan=33, reasons=0x4, mem_temp=71, pcie_replays=2, nvlinks=2,
            procs=f"4000001:{5 * GIB},{pid}:{3 * GIB}", graphics_procs=f"88:{MIB}", mps_procs="99:7",
            nvlink1_replay=1, nvlink1_recovery=2, nvlink1_crc=3, nvlink1_state=0,
            remap_corrected=4, remap_uncorrected=5, remap_pending=1, remap_failed=0,
            ecc_volatile_uncorrected=6, ecc_aggregate_uncorrected=7, limit=650_000, limit_default=600_000,
        ),
    )  # fmt: skip
    told = client.whole(device_uuid(1))
    reading, detail, identity = told["reading"], told["detail"], told["identity"]
    for part in (reading, detail):
        assert part.pop("reasons") == {}
        assert all(age < 5 for age in part.pop("ages").values())
    assert reading.pop("age") < 5
    assert reading == {
        "state": "ok",
        "total": 80 * GIB,
        "used": 11 * GIB + 600 * MIB,  # The driver's own bytes included.
        "free": 69 * GIB - 600 * MIB,
        "reserved": 600 * MIB,
        "process_used": 3 * GIB,
        "process_pid": pid,
        # This process's own first.
        "processes": [{"pid": pid, "bytes": 3 * GIB}, {"pid": 4000001, "bytes": 5 * GIB}],
        "utilization": 51,
        "power": 300.001,
        "power_limit": 650.0,
        "temperature": 61,
        "sm_clock": 1979,
        "memory_clock": 2619,
        "throttle": ["software power cap"],
    }
    assert detail == {
        "memory_utilization": 21, "performance_state": 0, "memory_temperature": 71, "temperature_slowdown": 89,
        "temperature_shutdown": 92, "temperature_max": 87, "temperature_memory_max": 95, "power_min_limit": 200.0,
        "power_max_limit": 700.0, "power_default_limit": 600.0, "max_sm_clock": 1980, "max_memory_clock": 2619,
        "energy": 5_000_000.001, "fan": 33, "persistence": True, "compute_mode": "default", "pcie_generation": 5,
        "pcie_max_generation": 5, "pcie_width": 16, "pcie_max_width": 16, "pcie_tx": 120_001_000,
        "pcie_rx": 80_001_000, "pcie_replays": 2,
        "nvlinks": [
            {"link": 0, "up": True, "replay": 0, "recovery": 0, "crc": 0},
            {"link": 1, "up": False, "replay": 1, "recovery": 2, "crc": 3},
        ],
        "ecc_enabled": True, "ecc_corrected": 1, "ecc_uncorrected": 6, "ecc_aggregate_corrected": 11,
        "ecc_aggregate_uncorrected": 7, "remapped_corrected": 4, "remapped_uncorrected": 5, "remap_pending": True,
        "remap_failed": False, "recovery": "none", "graphics_processes": [{"pid": 88, "bytes": MIB}],
        "mps_processes": [{"pid": 99, "bytes": 7}], "gpm_sm": 71.5, "gpm_occupancy": 33.25, "gpm_tensor": 41.0,
        "gpm_dram": 52.75, "of_parent": [],
    }  # fmt: skip
    assert (identity["pci_bus_id"], identity["numa_node"]) == ("7e57:81:1f.0", 3)
    assert (identity["driver"], identity["cuda_driver"]) == ("570.86.15", "12.8")
    assert (identity["kind"], identity["mig"], identity["unified"]) == ("cuda", None, False)


def test_gpm_is_off_unless_it_is_asked_for(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    detail = client.whole(device_uuid(0))["detail"]
    assert "RANKTOP_GPM=1" in detail["reasons"]["gpm_sm"]
    assert [name for name in nvml_stub.counts() if "Gpm" in name] == []


def test_processes_of_which_none_is_this_one(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    nvml_stub.devices(device(0, procs="4000001:5,4000002:6"), device(1, procs=""))
    reading = client.until(client.open(device_uuid(0), **PROMPT), lambda r: r["state"] == "ok")
    assert reading["process_used"] is None
    assert "lists 2 others" in reading["reasons"]["process_used"]
    assert [process["pid"] for process in reading["processes"]] == [4000002, 4000001]
    reading = client.until(client.open(device_uuid(1), **PROMPT), lambda r: r["state"] == "ok")
    assert reading["processes"] == []
    assert "no CUDA context yet" in reading["reasons"]["process_used"]


def test_a_long_list_of_processes_keeps_this_one(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    others = ",".join(f"{4_000_000 + n}:{n + 10}" for n in range(300))
    nvml_stub.devices(device(0, procs=f"{others},{client.process.pid}:1"))
    reading = client.until(client.open(device_uuid(0), **PROMPT), lambda r: r["state"] == "ok")
    assert reading["process_used"] == 1
    assert len(reading["processes"]) == 64
    assert reading["processes"][0] == {"pid": client.process.pid, "bytes": 1}
    assert reading["processes"][1] == {"pid": 4_000_299, "bytes": 309}


def test_an_nvml_that_does_not_start_may_start_later(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    for code, words in ((18, "reboot"), (9, "kernel module"), (999, "container"), (4, "permitted")):
        nvml_stub.update({"init.ret": code})
        probe = client.open(device_uuid(0), **PROMPT)
        reading = client.until(probe, lambda r, code=code: f"NVML {code})" in r["reasons"].get("device", ""))  # type: ignore[misc]
        assert reading["state"] == "unavailable"
        assert words in reading["reasons"]["device"]
        nvml_stub.update({"init.ret": None})
        client.until(probe, lambda r: r["state"] == "ok")


@pytest.mark.parametrize("empty", [False, True], ids=["no file", "file of 0 bytes"])
def test_without_a_library_the_reading_says_so(tmp_path: Path, nvml_client: Start, empty: bool) -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has a driver")
    if empty:
        (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    client = nvml_client(NvmlStub(tmp_path, tmp_path))
    probe = client.open(device_uuid(0), **PROMPT)
    reading = client.until(probe, lambda r: "libnvidia-ml" in r["reasons"].get("device", ""))
    assert reading["state"] == "unavailable"
    for name in ("total", "used", "free", "process_used", "utilization", "power", "temperature", "sm_clock"):
        assert "libnvidia-ml" in reading["reasons"][name]


def test_a_device_that_is_not_there(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(*uuid_names("ffff", 0, ""), **PROMPT)
    reading = client.until(probe, lambda r: "not found" in r["reasons"].get("device", ""))
    assert reading["state"] == "unavailable"


def test_an_old_library_lacks_the_newer_functions(nvml_stub: NvmlStub, nvml_client: Start, tmp_path: Path) -> None:
    lists = [f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics", "MPSCompute")]
    newer = (
        "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlSystemGetCudaDriverVersion_v2", *(f"{name}_v{version}" for name in lists for version in (2, 3)),
    )  # fmt: skip
    without = ("nvmlDeviceGetNumaNodeId", "nvmlDeviceGetFieldValues", "nvmlGpmQueryDeviceSupport")
    nvml_stub.library = build_library(tmp_path / "old", without=(*newer, *without))
    client = nvml_client(nvml_stub, RANKTOP_GPM="1")
    nvml_stub.devices(
        device(0, fan=1, procs=f"{client.process.pid}:{3 * GIB}", mps_procs="9:8", graphics_procs="7:6", reasons=1)
    )
    told = client.whole(device_uuid(0))
    reading, detail = told["reading"], told["detail"]
    assert (reading["used"], reading["reserved"]) == (10 * GIB + 600 * MIB, None)
    assert (reading["process_used"], reading["temperature"], reading["throttle"]) == (3 * GIB, 60, ["idle"])
    assert (detail["mps_processes"], detail["graphics_processes"]) == (
        [{"pid": 9, "bytes": 8}],
        [{"pid": 7, "bytes": 6}],
    )
    assert [link["up"] for link in detail["nvlinks"]] == [True] * 18
    assert told["identity"]["cuda_driver"] == "12.8"
    assert set(reading["reasons"]) == {"reserved"}
    gpm = {"gpm_sm", "gpm_occupancy", "gpm_tensor", "gpm_dram"}
    assert set(detail["reasons"]) == {"memory_temperature", "recovery", *gpm}
    assert all("too old" in reason for reason in detail["reasons"].values())
    assert "too old" in told["identity"]["reasons"]["numa_node"]


def test_the_environment_chooses_the_device(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0), device(1), device(2))
    for choice in ("nvml:local_rank", f"nvml:{device_uuid(2)}", "nvml:2", "nvml:GPU-00000002"):
        client = nvml_client(nvml_stub, RANKTOP_DEVICE=choice, LOCAL_RANK="2")
        client.tell("open_device")
        assert client.until(0, lambda r: r["state"] == "ok")["utilization"] == 52
        identity = client.identity(0)
        assert (identity["uuid"], identity["kind"]) == (device_uuid(2), "cuda")
        assert choice in identity["note"]
    client = nvml_client(nvml_stub, RANKTOP_DEVICE="nonsense")
    client.tell("open_device")
    identity = client.identity(0)
    assert identity["kind"] == "host"
    assert "nonsense" in identity["note"]


def test_a_process_that_has_forked_leaves_the_device_to_its_parent(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), gap=0.0, settle=0.01)
    client.until(probe, lambda r: r["state"] == "ok")
    code = client.tell("fork", probe=probe)["result"]["code"]
    assert os.waitstatus_to_exitcode(code) == 0
    client.until(probe, lambda r: r["state"] == "ok" and r["age"] < 1)


def test_looking_for_the_device_does_not_initialise_cuda() -> None:
    assert locate(0) == "CUDA is not initialised in this process yet"


def test_names_of_a_uuid() -> None:
    assert uuid_names("ab-cd", 0, "") == ("GPU-ab-cd", "MIG-ab-cd")
    assert uuid_names("ab-cd", 1, "GPU-x,MIG-GPU-ef/1/0") == ("GPU-ab-cd", "MIG-ab-cd", "MIG-GPU-ef/1/0")
