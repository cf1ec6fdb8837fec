"""What is asked when a device is found, with every return code; and every code said by a whole device at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from nvml_stub.build import NvmlStub
from nvml_stub.client import difference
from nvml_stub.hardware import device_uuid
from nvml_stub.remote import PROMPT, Client
from nvml_stub.sweep import AT_START, CODES, COUNT, CURES, SICK, WORDS, P, job

pytest_plugins = ["nvml_stub.fixtures"]

STATES: Final = {15: "lost", 16: "reset required"}
IDENTITY: Final = {
    f"{P}Name": "name",
    f"{P}Index": "nvml_index",
    f"{P}PciInfo_v3": "pci_bus_id",
    f"{P}NumaNodeId": "numa_node",
    "nvmlSystemGetDriverVersion": "driver",
    "nvmlSystemGetCudaDriverVersion_v2": "cuda_driver",
    "nvmlSystemGetCudaDriverVersion": "cuda_driver",
}
"""Function -> what it tells of the identity."""
GPM: Final = ("gpm_sm", "gpm_occupancy", "gpm_tensor", "gpm_dram")
CONNECTING: Final = {"nvmlInitWithFlags": "init.ret", f"{P}HandleByUUID": f"d{SICK}.{P}HandleByUUID.ret"}
LINKS: Final = (f"{P}NvLinkState", f"{P}NvLinkErrorCounter")
"""Asked only of drivers without field values: see test_nvml_odd_hardware.py."""

Told = dict[str, dict[str, Any]]
Job = tuple[NvmlStub, Client, Told]
"""The stand-in, the client, and what the sick device said while it was well."""


@pytest.fixture(scope="module")
def running(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Eight devices that one client reads."""
    with job(nvml_library, tmp_path_factory.mktemp("start")) as (stub, client):
        yield stub, client, client.remember()[SICK]


@pytest.fixture
def eight(running: Job) -> Iterator[Job]:
    """The eight, all well, whatever the test before has left."""
    yield running
    stub, client, _ = running
    stub.update({key: None for key in stub.settings if key.endswith((".ret", ".lost_after"))})
    client.reopen(SICK, device_uuid(SICK), **PROMPT)
    for n in range(COUNT):
        assert client.watch(n, same=True, seconds=35.0)["met"]


def test_the_functions_are_all_that_start_a_device() -> None:
    assert {*IDENTITY, *CONNECTING, *LINKS, "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc"} == AT_START


def setting(function: str) -> str:
    return f"{function}.ret" if function.startswith(("nvmlSystem", "nvmlGpmSampleAlloc")) else f"d{SICK}.{function}.ret"


def reached(client: Client, **condition: Any) -> Told:
    """Open the sick device anew, wait for a condition and return what it tells; the others are as they were."""
    client.reopen(SICK, device_uuid(SICK), **PROMPT)
    seen = client.watch(SICK, **condition)
    assert seen["met"], seen["told"]
    assert seen["changed"] == {}
    return dict(seen["told"])


def well_again(client: Client, before: Told) -> None:
    seen = client.watch(SICK, same=True)
    assert seen["met"], difference(before, seen["told"])
    assert seen["changed"] == {}


@pytest.mark.parametrize("function", CONNECTING)
def test_a_device_that_cannot_be_reached(eight: Job, function: str) -> None:
    stub, client, before = eight
    for code in CODES:
        stub.update({CONNECTING[function]: code})
        told = reached(client, says={"device": f"(NVML {code})"})
        reading = told["reading"]
        assert reading["state"] == STATES.get(code, "unavailable"), code
        for words in (WORDS[code], CURES.get(code, "")):
            assert words in reading["reasons"]["device"]
            assert words in reading["reasons"]["used"]
        assert [name for name in ("total", "used", "utilization", "power") if reading[name] is not None] == []
        stub.update({CONNECTING[function]: None})
        well_again(client, before)


@pytest.mark.parametrize("function", IDENTITY)
def test_a_part_of_the_identity_that_is_not_told(eight: Job, function: str) -> None:
    stub, client, before = eight
    newer = {"nvmlSystemGetCudaDriverVersion_v2.ret": 13} if function == "nvmlSystemGetCudaDriverVersion" else {}
    field = IDENTITY[function]
    for code in CODES:
        stub.update({**newer, setting(function): code})
        older = function.endswith("CudaDriverVersion_v2") and code in (13, 25)
        condition = {"fresh": True} if older else {"identity": {field: f"(NVML {code})"}}
        changed = difference(before, reached(client, **condition))
        if older:
            assert changed.get("identity.cuda_driver") is None
        else:
            assert {name for name in changed if name.startswith("identity.")} == {
                f"identity.{field}",
                "identity.reasons",
            }
            assert changed[f"identity.{field}"][1] in (None, "")
            reason = changed["identity.reasons"][1][field]
            assert WORDS[code] in reason
            assert CURES.get(code, "") in reason
        stub.update({**dict.fromkeys(newer), setting(function): None})
        # Not for good: it is asked again.
        well_again(client, before)


@pytest.mark.parametrize("function", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc"])
def test_gpm_that_does_not_start(eight: Job, function: str) -> None:
    stub, client, before = eight
    for code in CODES:
        stub.update({setting(function): code})
        told = reached(client, says=dict.fromkeys(GPM, f"(NVML {code})"))
        if told["identity"] == before["identity"]:
            assert told["reading"]["state"] == "ok"
        stub.update({setting(function): None})
        well_again(client, before)


@pytest.mark.parametrize("code", CODES)
def test_a_whole_device_that_says_it(eight: Job, code: int) -> None:
    stub, client, before = eight
    stub.update({f"d{SICK}.*.ret": code})
    whole = {} if code == 3 else {"device": f"(NVML {code})"}
    seen = client.watch(SICK, says={**whole, "used": f"(NVML {code})", "power": f"(NVML {code})"})
    assert seen["met"], seen["told"]
    assert seen["changed"] == {}
    reading, detail = seen["told"]["reading"], seen["told"]["detail"]
    # A device that supports nothing of all this is none that is ill.
    assert reading["state"] == ("ok" if code == 3 else STATES.get(code, "unavailable"))
    assert reading["used"] is None
    for words in (WORDS[code] if code != 999 else "lost access", CURES.get(code, "")):
        assert words in reading["reasons"]["used"]
    # Its name is still known, and who it is.
    assert seen["told"]["identity"]["uuid"] == device_uuid(SICK)
    assert seen["told"]["identity"]["name"] == f"NVIDIA Test {SICK}"
    if code != 3:
        assert {detail[name] for name in ("energy", "fan", "nvlinks")} == {None}
    stub.update({f"d{SICK}.*.ret": None})
    well_again(client, before)


def test_a_device_that_is_lost_after_some_calls(eight: Job) -> None:
    stub, client, before = eight
    stub.update({f"d{SICK}.*.lost_after": 40})
    seen = client.watch(SICK, state="lost")
    assert seen["met"]
    assert seen["changed"] == {}
    assert "Xid 79" in seen["told"]["reading"]["reasons"]["device"]
    # For good: it stays lost however often it is asked for.
    place = stub.calls_end()
    client.until(SICK, lambda r: len(stub.call_lines(place)[0]) > 9)
    assert client.read(SICK)["state"] == "lost"
    assert client.told(SICK)["identity"]["name"] == f"NVIDIA Test {SICK}"
    stub.update({f"d{SICK}.*.lost_after": None})
    well_again(client, before)


def test_a_container_that_loses_its_devices(eight: Job) -> None:
    stub, client, before = eight
    stub.update({"*.ret": 999, "init.ret": 999})
    for n in range(COUNT):
        reading = client.until(n, lambda r: r["state"] != "ok")
        assert reading["state"] == "unavailable"
        for words in ("container lost access", "restart it", "daemon-reload"):
            assert words in reading["reasons"]["device"]
    stub.update({"*.ret": None, "init.ret": None})
    for n in range(COUNT):
        assert client.watch(n, same=True)["met"]
    well_again(client, before)
