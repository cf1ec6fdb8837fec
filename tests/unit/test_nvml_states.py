"""What a device's state is made of, that no state outlasts its condition, and how a device is chosen by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from nvml_stub.build import NvmlStub
from nvml_stub.hardware import GIB, device, device_uuid, mig, mig_uuid
from nvml_stub.remote import PROMPT, Client

from ranktop.probes.nvml import NvmlDevice, Target
from ranktop.probes.nvml.describe import pci_bus_id
from ranktop.probes.nvml.fast import reasons_in_words

pytest_plugins = ["nvml_stub.fixtures"]
Start = Callable[..., Client]


def is_ok(reading: dict[str, Any]) -> bool:
    return bool(reading["state"] == "ok")


def test_a_container_that_loses_its_devices_says_so_until_it_has_them_again(
    nvml_stub: NvmlStub, nvml_client: Start
) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **PROMPT)
    client.until(probe, is_ok)
    nvml_stub.update({"d0.*.ret": 999, "init.ret": 999})
    reading = client.until(probe, lambda r: not is_ok(r))
    assert reading["state"] == "unavailable"
    assert "the container lost access to its devices" in reading["reasons"]["device"]
    assert "restart it" in reading["reasons"]["device"]
    # Reaching for it in vain changes neither the words nor the time since its last answer.
    later = client.until(probe, lambda r: r["age"] > reading["age"] + 0.1)
    assert later["reasons"]["device"] == reading["reasons"]["device"]
    detail = client.detail(probe)
    assert detail["energy"] is None
    assert "container" in detail["reasons"]["energy"]
    nvml_stub.update({"d0.*.ret": None, "init.ret": None})
    client.until(probe, is_ok)


def test_a_device_that_the_driver_does_not_list_any_more_is_lost(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **PROMPT)
    client.until(probe, is_ok)
    nvml_stub.update({"d0.*.ret": 15, "nvmlDeviceGetHandleByUUID.ret": 6})
    reading = client.until(probe, lambda r: "does not list" in r["reasons"].get("device", ""))
    assert reading["state"] == "lost"


def test_a_device_that_falls_off_amid_a_round_is_lost_in_that_round(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **PROMPT)
    client.until(probe, is_ok)
    late = ("PowerUsage", "Temperature", "ClockInfo", "CurrentClocksEventReasons", "HandleByUUID")
    nvml_stub.update({f"d0.nvmlDeviceGet{name}.ret": 15 for name in late})
    assert client.until(probe, lambda r: not is_ok(r))["state"] == "lost"


def test_a_driver_that_hangs_after_another_trouble_gives_no_reason_of_that(
    nvml_stub: NvmlStub, nvml_client: Start
) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **{**PROMPT, "settle": 0.02}, deadline=0.1)
    client.until(probe, is_ok)
    nvml_stub.update({"d0.*.ret": 16})
    client.until(probe, lambda r: bool(r["state"] == "reset required"))
    assert "needs a reset" in client.detail(probe)["reasons"]["energy"]
    nvml_stub.update({"d0.*.ret": None, "d0.nvmlDeviceGetTemperature.sleep": "forever"})
    client.until(probe, lambda r: bool(r["state"] == "no answer"))
    told = client.detail(probe)
    assert told["energy"] is None
    assert set(told["reasons"].values()) == {"the driver does not answer"}


def test_what_could_not_be_read_of_the_identity_is_asked_again(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0, pci="00000000:81:00.0"))
    refused = {"d0.nvmlDeviceGetPciInfo_v3": 27, "nvmlSystemGetDriverVersion": 10, "d0.nvmlDeviceGetName": 4}
    nvml_stub.update({f"{name}.ret": code for name, code in refused.items()})
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **PROMPT)
    client.until(probe, is_ok)
    identity = client.identity(probe)
    assert (identity["pci_bus_id"], identity["driver"], identity["name"]) == (None, "", "")
    assert set(identity["reasons"]) == {"pci_bus_id", "driver", "name"}
    assert "not ready" in identity["reasons"]["pci_bus_id"]
    nvml_stub.update({f"{name}.ret": None for name in refused})
    deadline = time.monotonic() + 10
    while identity["reasons"]:
        assert time.monotonic() < deadline, identity
        identity = client.identity(probe)
    assert (identity["pci_bus_id"], identity["name"]) == ("0000:81:00.0", "NVIDIA Test 0")
    assert (identity["driver"], identity["cuda_driver"]) == ("570.86.15", "12.8")


def why(probe: NvmlDevice, state: str, words: str) -> None:
    deadline = time.monotonic() + 10
    reading = probe.read()
    while reading.state != state or reading.reasons["device"] != words:
        assert time.monotonic() < deadline, reading
        reading = probe.read()
    assert words in reading.reasons["used"]
    probe.close()


def test_a_job_on_its_way_to_the_device_is_no_failure() -> None:
    def never() -> Target:
        raise LookupError("no UUID is told")

    why(NvmlDevice(lambda: "CUDA is not initialised yet", gap=0.0), "pending", "CUDA is not initialised yet")
    why(NvmlDevice(never, gap=0.0), "unavailable", "no UUID is told")


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ("nvml:2", device_uuid(2)),
        ("nvml:GPU-00000001", device_uuid(1)),
        ("nvml:gpu-00000001-00", device_uuid(1)),
        ("nvml:MIG-00000005", mig_uuid(5)),
        ("nvml:local_rank", device_uuid(2)),
    ],
)
def test_a_device_is_chosen_by_index_and_by_the_beginning_of_its_name(
    nvml_stub: NvmlStub, nvml_client: Start, choice: str, found: str
) -> None:
    nvml_stub.devices(*(device(n) for n in range(3)), *mig(3, 4))
    client = nvml_client(nvml_stub, RANKTOP_DEVICE=choice, LOCAL_RANK="2")
    client.tell("open_device")
    client.until(0, is_ok)
    identity = client.identity(0)
    assert (identity["uuid"], identity["note"]) == (found, f"RANKTOP_DEVICE={choice}")


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("nvml:GPU-0000", "3 devices have a name that begins with GPU-0000"),
        ("nvml:GPU-9", "not found"),
        ("nvml:7", "no GPU with NVML index 7"),
        ("nvml:local_rank", "LOCAL_RANK=x is no number"),
    ],
)
def test_a_choice_that_names_no_device_is_told(
    nvml_stub: NvmlStub, nvml_client: Start, choice: str, words: str
) -> None:
    nvml_stub.devices(*(device(n) for n in range(3)))
    client = nvml_client(nvml_stub, RANKTOP_DEVICE=choice, LOCAL_RANK="x")
    client.tell("open_device")
    reading = client.until(0, lambda r: r["state"] == "unavailable")
    assert words in reading["reasons"]["device"]


def test_a_client_of_mps_finds_itself_among_its_processes(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    server = 4_000_001
    nvml_stub.devices(device(0, procs=f"{server}:30", mps_procs=f"{client.process.pid}:{2 * GIB}"))
    reading = client.until(client.open(device_uuid(0), **PROMPT), is_ok)
    assert (reading["process_used"], reading["process_pid"]) == (2 * GIB, client.process.pid)
    assert [process["pid"] for process in reading["processes"]] == [client.process.pid, server]


def test_bits_and_bus_ids_in_words() -> None:
    assert reasons_in_words(0) == ()
    assert reasons_in_words(0x1FF)[-1] == "display clocks"
    assert reasons_in_words(1 << 40 | 4) == ("software power cap", "unknown reason 0x10000000000")
    assert pci_bus_id("00000000:81:00.0") == "0000:81:00.0"
    assert pci_bus_id("00010000:0A:1F.0") == "10000:0a:1f.0"
