"""A driver that is slow or hangs: it costs the age of one device's values, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from nvml_stub.build import NvmlStub
from nvml_stub.hardware import GIB, device, device_uuid
from nvml_stub.remote import PROMPT, Client

pytest_plugins = ["nvml_stub.fixtures"]
Start = Callable[..., Client]

IMPATIENT: dict[str, Any] = {"deadline": 0.3, "gap": 0.0, "settle": 0.002, "retry": 0.02}
HANGING = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetTotalEccErrors",
)
"""Getters asked in every round and getters that take turns; one device hangs in each of them, one in none."""
WELL = len(HANGING)


def job(stub: NvmlStub, start: Start) -> Client:
    """Return a client that reads one device for every getter to hang in, and one more."""
    client = start(stub)
    stub.devices(*(device(n, procs=f"{client.process.pid}:{GIB}") for n in range(WELL + 1)))
    for n in range(WELL + 1):
        client.open(device_uuid(n), **IMPATIENT)
    for n in range(WELL + 1):
        client.until(n, lambda r: r["state"] == "ok")
    return client


def hang(stub: NvmlStub, seconds: object) -> None:
    stub.update({f"d{n}.{getter}.sleep": seconds for n, getter in enumerate(HANGING)})


def test_a_call_of_20_ms_is_nothing(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = job(nvml_stub, nvml_client)
    hang(nvml_stub, 0.02)
    nvml_stub.update({f"d{n}.power": 123_000 for n in range(WELL + 1)})
    for n in range(WELL + 1):
        reading = client.until(n, lambda r: r["power"] == 123.0)
        assert (reading["state"], reading["reasons"]) == ("ok", {})
        assert reading["age"] < 1


def test_a_late_answer_is_used_and_the_state_ends(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = job(nvml_stub, nvml_client)
    hang(nvml_stub, 2)
    for n, getter in enumerate(HANGING):
        reading = client.until(n, lambda r: r["state"] == "no answer")
        assert getter.removesuffix("_v2").removesuffix("_v3") in reading["reasons"]["device"]
        assert reading["utilization"] == 50 + n
    # The call in flight takes its two seconds still; what it brings is of its end.
    nvml_stub.update({f"d{n}.util": 7 for n in range(WELL)})
    hang(nvml_stub, None)
    for n in range(WELL):
        reading = client.until(n, lambda r: r["state"] == "ok")
        assert "device" not in reading["reasons"]
        assert client.until(n, lambda r: r["utilization"] == 7)["age"] < 1


@pytest.mark.parametrize("seconds", [400, "forever"])
def test_a_call_that_hangs_costs_its_devices_age(nvml_stub: NvmlStub, nvml_client: Start, seconds: object) -> None:
    client = job(nvml_stub, nvml_client)
    threads = client.threads()
    hang(nvml_stub, seconds)
    ages = [client.until(n, lambda r: r["state"] == "no answer")["age"] for n in range(WELL)]
    client.until(WELL, lambda r: r["age"] < 0.2)
    # Of each device the call that hangs was the last.
    place = nvml_stub.calls_end()
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        for n in range(WELL):
            assert client.tell("read", probe=n)["seconds"] < 0.5
        well = client.read(WELL)
        assert (well["state"], well["reasons"]) == ("ok", {})
        assert well["age"] < 1
    for n, getter in enumerate(HANGING):
        reading = client.read(n)
        assert reading["age"] > ages[n] + 0.5
        assert reading["state"] == "no answer"
        assert reading["utilization"] == 50 + n
        assert getter.removesuffix("_v2").removesuffix("_v3") in reading["reasons"]["device"]
    later = nvml_stub.call_lines(place)[0]
    assert later, "the device that is well is no longer asked"
    assert {number for _, _, number in later} == {WELL}, "calls pile up behind the one that hangs"
    assert client.threads() == threads, "threads pile up"
    code, took, errors = client.end()
    assert (code, errors) == (0, "")
    assert took < 1
    assert nvml_stub.counts()["nvmlShutdown"] == 0


@pytest.mark.parametrize(
    "step", ["init", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetName", "nvmlSystemGetDriverVersion"]
)
def test_a_driver_that_hangs_at_the_start_holds_up_nobody(nvml_stub: NvmlStub, nvml_client: Start, step: str) -> None:
    nvml_stub.devices(device(0))
    nvml_stub.update({f"{step}.sleep" if step != "nvmlDeviceGetName" else f"d0.{step}.sleep": "forever"})
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **IMPATIENT)
    reading = client.until(probe, lambda r: r["state"] == "no answer")
    assert ("nvmlInit" if step == "init" else step) in reading["reasons"]["device"]
    assert reading["used"] is None
    assert reading["reasons"]["used"]
    threads = client.threads()
    for _ in range(20):
        client.read(probe)
    assert client.threads() == threads
    assert client.tell("close", probe=probe)["seconds"] < 0.5
    code, took, errors = client.end()
    assert (code, errors) == (0, "")
    assert took < 1


def test_a_driver_that_takes_long_to_start_is_waited_for(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    # As without persistence mode, when the devices are brought up first.
    nvml_stub.update({"init.sleep": 0.6})
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **IMPATIENT)
    client.until(probe, lambda r: r["state"] == "no answer")
    reading = client.until(probe, lambda r: r["state"] == "ok")
    assert (reading["utilization"], reading["reasons"].get("device")) == (50, None)
    assert nvml_stub.counts()["nvmlInitWithFlags"] == 1


def test_the_process_ends_amid_calls_that_succeed(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = job(nvml_stub, nvml_client)
    for n in range(WELL + 1):
        nvml_stub.update({f"d{n}.*.sleep": 0.01})
    client.read(0)
    code, took, errors = client.end()
    assert (code, errors) == (0, "")
    assert took < 1
    assert nvml_stub.counts()["nvmlShutdown"] == 0


def test_a_closed_probe_ends_its_thread_after_the_call_in_flight(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **PROMPT)
    client.until(probe, lambda r: r["state"] == "ok")
    threads = client.threads()
    client.tell("close", probe=probe)
    deadline = time.monotonic() + 5
    while client.threads() == threads and time.monotonic() < deadline:
        time.sleep(0.005)
    assert client.threads() == threads - 1
    place = nvml_stub.calls_end()
    client.read(probe)
    assert nvml_stub.call_lines(place)[0] == []
