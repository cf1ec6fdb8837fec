"""Devices that are not the usual one: MIG, unified memory, WSL, virtual, very large, very many, and absurd numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvml_stub.build import NvmlStub, build_library
from nvml_stub.hardware import (
    GIB,
    MIB,
    Settings,
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
from nvml_stub.remote import PROMPT, Client

pytest_plugins = ["nvml_stub.fixtures"]
Start = Callable[..., Client]
Told = dict[str, dict[str, Any]]


def told(client: Client, uuid: str) -> Told:
    """Open a device and return all that it says once it has been asked everything."""
    probe = client.open(uuid, **PROMPT)
    client.until(probe, lambda r: r["state"] == "ok")
    client.remember()
    seen = client.watch(probe, fresh=True)
    assert seen["met"]
    return dict(seen["told"])


def value_of(one: Told, name: str) -> Any:
    return one["reading"][name] if name in one["reading"] else one["detail"][name]


def reason_of(one: Told, name: str) -> str:
    part = "reading" if name in one["reading"] else "detail"
    return str(one[part]["reasons"].get(name, ""))


def test_mig_instances_with_gaps_in_their_indexes(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    parent, *instances = mig(0, 1)
    parent |= {"index": 3, "pci": "00000000:81:00.0", "util": 77}
    for n, one in enumerate(instances):
        one["procs"] = f"{client.process.pid}:{(n + 1) * 100 * MIB}"
    nvml_stub.devices(parent, *instances)
    for n, index in enumerate((0, 2, 5)):
        one = told(client, mig_uuid(1 + n))
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
    assert told(client, mig_uuid(2))["detail"]["gpm_sm"] == 62.5
    assert told(client, device_uuid(0))["detail"]["gpm_sm"] == 71.5


def test_processes_of_an_instance_that_only_the_whole_gpu_lists(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    parent, *instances = mig(0, 1)
    # Of instances 0 and 2, as a host of virtual GPUs tells them.
    parent["procs"] = f"{client.process.pid}:5:9:0,4000001:6:9:0,4000002:7:7:0"
    nvml_stub.devices(parent, *instances)
    for version in ("", "_v2", "_v3"):
        nvml_stub.update({f"d{n}.nvmlDeviceGetComputeRunningProcesses{version}.ret": 3 for n in (1, 2, 3)})
    reading = told(client, mig_uuid(2))["reading"]
    assert [(one["pid"], one["bytes"]) for one in reading["processes"]] == [(client.process.pid, 5), (4000001, 6)]
    assert reading["process_used"] == 5


@pytest.mark.parametrize("handle", [0, 4])
def test_a_container_may_not_ask_the_whole_gpu(nvml_stub: NvmlStub, nvml_client: Start, handle: int) -> None:
    parent, *instances = mig(0, 1)
    nvml_stub.devices(not_permitted(parent), *instances)
    refused = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo", "nvmlDeviceGetIndex")
    nvml_stub.update({f"d0.{name}.ret": 4 for name in refused})
    nvml_stub.update({"d1.nvmlDeviceGetDeviceHandleFromMigDeviceHandle.ret": handle})
    one = told(nvml_client(nvml_stub), mig_uuid(1))
    assert (one["reading"]["state"], one["reading"]["used"]) == ("ok", 1 * GIB + 16 * MIB)
    for name in ("power", "temperature", "sm_clock"):
        assert value_of(one, name) is None
        assert "whole GPU" in reason_of(one, name)
        assert "not permitted" in reason_of(one, name)
    assert one["identity"]["nvml_index"] is None


def test_a_mig_parent_of_which_memory_is_refused(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(*(not_permitted(one) if n == 0 else one for n, one in enumerate(mig(0, 1))))
    one = told(nvml_client(nvml_stub), device_uuid(0))
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
    one = told(client, device_uuid(0))
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
    one = told(nvml_client(nvml_stub), device_uuid(0))
    assert (one["reading"]["state"], one["reading"]["total"]) == ("ok", host_total())
    assert one["identity"]["name"] == "Orin (nvgpu)"
    for name in ("utilization", "power", "temperature", "sm_clock", "throttle", "energy"):
        assert value_of(one, name) is None
        assert "not supported" in reason_of(one, name)


def test_wsl(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    nvml_stub.devices(wsl(pids=(client.process.pid, 4_000_001)))
    one = told(client, device_uuid(0))
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
    one = told(nvml_client(nvml_stub), device_uuid(0))
    assert (one["reading"]["state"], one["reading"]["utilization"]) == ("ok", 50)
    for name in ("power", "power_limit", "temperature", "throttle", "energy", "ecc_enabled", "remap_pending"):
        assert value_of(one, name) is None
        assert "not supported" in reason_of(one, name)


def test_1400_watts_and_288_gib(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(b300())
    one = told(nvml_client(nvml_stub), device_uuid(0))
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
    assert told(nvml_client(nvml_stub), device_uuid(0))["identity"]["name"] == "Board \ufffd\ufffd 3"


@pytest.mark.parametrize("way", ["missing", 13, 25])
def test_memory_of_the_first_version(nvml_stub: NvmlStub, nvml_client: Start, tmp_path: Path, way: str | int) -> None:
    if way == "missing":
        nvml_stub.library = build_library(tmp_path / "old", without=("nvmlDeviceGetMemoryInfo_v2",))
    nvml_stub.devices(device(0))
    if way != "missing":
        nvml_stub.update({"d0.nvmlDeviceGetMemoryInfo_v2.ret": way})
    reading = told(nvml_client(nvml_stub), device_uuid(0))["reading"]
    assert (reading["used"], reading["free"]) == (10 * GIB + 600 * MIB, 70 * GIB - 600 * MIB)
    assert reading["reserved"] is None
    assert "(v1) counts what it reserves as used" in reading["reasons"]["reserved"]


ZERO: dict[str, str] = {
    "free": "free", "util": "utilization", "memutil": "memory_utilization", "power": "power", "limit": "power_limit",
    "temp": "temperature", "mem_temp": "memory_temperature", "sm": "sm_clock", "mem": "memory_clock", "fan": "fan",
    "energy": "energy", "limit_min": "power_min_limit", "pcie_tx": "pcie_tx", "pcie_rx": "pcie_rx",
    "pcie_replays": "pcie_replays", "ecc_volatile_corrected": "ecc_corrected", "reserved": "reserved",
    "ecc_aggregate_uncorrected": "ecc_aggregate_uncorrected", "remap_corrected": "remapped_corrected",
    "pstate": "performance_state", "gpm2": "gpm_sm",
}  # fmt: skip


def test_zero_is_a_value(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub, RANKTOP_GPM="1")
    nvml_stub.devices(device(0, **dict.fromkeys(ZERO, 0), procs=f"{client.process.pid}:0"))
    one = told(client, device_uuid(0))
    names = (*ZERO.values(), "process_used")
    assert {name: value_of(one, name) for name in names} == dict.fromkeys(names, 0)
    assert one["reading"]["reasons"] == {}
    assert one["detail"]["reasons"] == {}
    assert one["reading"]["processes"] == [{"pid": client.process.pid, "bytes": 0}]


NONE_32 = (1 << 32) - 1
NONE_64 = (1 << 64) - 1
WILD = 9223372036854776000
ABSURD: tuple[tuple[Settings, tuple[str, ...], str], ...] = (
    ({"util": 101}, ("utilization",), "101 %"),
    ({"util": NONE_32}, ("utilization",), "4294967295 %"),
    ({"memutil": 101}, ("memory_utilization",), "101 %"),
    ({"power": NONE_32}, ("power",), "4294967295 mW"),
    ({"limit": NONE_32}, ("power_limit",), "mW"),
    ({"limit_max": NONE_32}, ("power_max_limit",), "mW"),
    ({"temp": NONE_32}, ("temperature",), "°C"),
    ({"mem_temp": NONE_32}, ("memory_temperature",), "°C"),
    ({"t_slowdown": NONE_32}, ("temperature_slowdown",), "°C"),
    ({"sm": NONE_32}, ("sm_clock",), "MHz"),
    ({"max_mem": NONE_32}, ("max_memory_clock",), "MHz"),
    ({"free": NONE_64}, ("total", "used", "free", "reserved"), "bytes free"),
    ({"total": NONE_64}, ("total", "used", "free", "reserved"), "bytes free"),
    ({"reserved": WILD}, ("reserved",), "9223372036854776000"),
    ({"procs": "{pid}:18446744073709551615"}, ("process_used",), "memory of processes"),
    ({"procs": "{pid}:9223372036854776000"}, ("process_used",), "memory of processes"),
    ({"energy": NONE_64}, ("energy",), "18446744073709551615"),
    ({"pstate": 32}, ("performance_state",), "32"),
    ({"compute_mode": 99}, ("compute_mode",), "99"),
    ({"persistence": 7}, ("persistence",), "7"),
    ({"fan": NONE_32}, ("fan",), "4294967295 %"),
    ({"pcie_gen": NONE_32}, ("pcie_generation",), "4294967295"),
    ({"pcie_width": 0}, ("pcie_width",), "0"),
    ({"pcie_tx": NONE_32}, ("pcie_tx",), "KB/s"),
    ({"pcie_replays": NONE_32}, ("pcie_replays",), "4294967295"),
    ({"ecc_volatile_corrected": NONE_64}, ("ecc_corrected",), "18446744073709551615"),
    ({"remap_corrected": NONE_32}, ("remapped_corrected",), "4294967295"),
    ({"gpm2": WILD}, ("gpm_sm",), "%"),
    ({"gpm2": "nan"}, ("gpm_sm",), "nan"),
)


def test_absurd_numbers_are_dropped_with_a_reason(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub, RANKTOP_GPM="1")
    sound = device(0, fan=30, procs=f"{client.process.pid}:{3 * GIB}")
    nvml_stub.devices(sound)
    before = told(client, device_uuid(0))
    client.remember()
    for change, names, words in ABSURD:
        settings = {key: str(value).replace("{pid}", str(client.process.pid)) for key, value in change.items()}
        nvml_stub.devices(sound | settings)
        seen = client.watch(0, says=dict.fromkeys(names, words))
        assert seen["met"], (change, {name: reason_of(seen["told"], name) for name in names})
        one = seen["told"]
        assert {name: value_of(one, name) for name in names} == dict.fromkeys(names)
        assert {*one["reading"]["reasons"], *one["detail"]["reasons"]} == set(names), change
        nvml_stub.devices(sound)
        assert client.watch(0, same=True)["met"], change
    assert before["reading"]["reasons"] == {}


def test_links_that_are_down_and_errors_of_one(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(
        device(0, nvlink14_recovery=3, nvlink2_state=0, nvlink7_crc=9),
        device(1, nvlink14_recovery=4, blackwell=1),
        device(2, nvlinks=0),
        device(3, nvlinks=None),
    )
    client = nvml_client(nvml_stub)
    links = told(client, device_uuid(0))["detail"]["nvlinks"]
    assert [link["link"] for link in links] == list(range(18))
    assert [link["link"] for link in links if not link["up"]] == [2]
    assert [(link["link"], link["recovery"]) for link in links if link["recovery"]] == [(14, 3)]
    assert [(link["link"], link["crc"]) for link in links if link["crc"]] == [(7, 9)]
    newer = told(client, device_uuid(1))["detail"]["nvlinks"]
    assert (newer[14]["recovery"], newer[14]["replay"], newer[13]["recovery"]) == (4, None, 0)
    for n in (2, 3):
        none = told(client, device_uuid(n))["detail"]
        assert none["nvlinks"] == [], none["reasons"].get("nvlinks")


def test_links_of_a_driver_without_field_values(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0, nvlinks=4, nvlink1_replay=5, nvlink3_state=0))
    nvml_stub.update({"d0.nvmlDeviceGetFieldValues.ret": 13})
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **PROMPT)
    wanted = [(0, True, 0), (1, True, 5), (2, True, 0), (3, False, 0)]

    def links(detail: dict[str, Any]) -> list[Any]:
        return [(link["link"], link["up"], link["replay"]) for link in detail.get("nvlinks") or ()]

    client.until(probe, lambda r: r["state"] == "ok" and links(client.detail(probe)) == wanted)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, []),
        (0x1, ["idle"]),
        (0x44, ["software power cap", "hardware thermal slowdown"]),
        (0x80, ["hardware power brake"]),
    ],
)
def test_why_the_clocks_are_not_higher(nvml_stub: NvmlStub, nvml_client: Start, bits: int, words: list[str]) -> None:
    nvml_stub.devices(device(0, reasons=bits))
    assert told(nvml_client(nvml_stub), device_uuid(0))["reading"]["throttle"] == words


def test_what_the_driver_asks_for(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0, recovery=4, remap_pending=1, compute_mode=3, ecc=0))
    detail = told(nvml_client(nvml_stub), device_uuid(0))["detail"]
    assert (detail["recovery"], detail["remap_pending"], detail["compute_mode"]) == (
        "drain and reset",
        True,
        "exclusive process",
    )
    assert (detail["ecc_enabled"], detail["ecc_corrected"]) == (False, None)
    assert "not supported" in detail["reasons"]["ecc_corrected"]
