"""Numbers that are none, where a plain reading of them would be a wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from nvml_stub.build import NvmlStub
from nvml_stub.hardware import GIB, MIB, device, device_uuid
from nvml_stub.remote import PROMPT, Client

pytest_plugins = ["nvml_stub.fixtures"]

NO_NUMBER = (1 << 32) - 1
Start = Callable[..., Client]


@pytest.mark.parametrize(("state", "up"), [(0, False), (1, True), (2, True), (3, None), (NO_NUMBER, None)])
def test_a_link_whose_state_is_no_state_is_not_down(
    nvml_stub: NvmlStub, nvml_client: Start, state: int, up: bool | None
) -> None:
    nvml_stub.devices(device(0, nvlink7_state=state))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **PROMPT)
    client.until(probe, lambda reading: reading["state"] == "ok" and bool(client.detail(probe).get("nvlinks")))
    links = {link["link"]: link["up"] for link in client.detail(probe)["nvlinks"]}
    assert (links.pop(7), set(links.values())) == (up, {True})


@pytest.mark.parametrize(("count", "words"), [(1, "it lists 1 other"), (3, "it lists 3 others")])
def test_how_many_others_are_listed(nvml_stub: NvmlStub, nvml_client: Start, count: int, words: str) -> None:
    nvml_stub.devices(device(0, procs=",".join(f"{4_000_000 + n}:{GIB}" for n in range(count))))
    client = nvml_client(nvml_stub)
    reading = client.until(client.open(device_uuid(0), **PROMPT), lambda told: told["state"] == "ok")
    assert reading["reasons"]["process_used"].endswith(words)


def test_a_process_with_several_contexts_has_the_bytes_of_all(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    pid = client.process.pid
    nvml_stub.devices(device(0, procs=f"{pid}:{2 * GIB},{pid}:{300 * MIB}"))
    reading = client.until(client.open(device_uuid(0), **PROMPT), lambda told: told["state"] == "ok")
    assert (reading["process_used"], reading["process_pid"]) == (2 * GIB + 300 * MIB, pid)
