"""How often the driver is asked: what the stand-in library counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from nvml_stub.build import NvmlStub
from nvml_stub.hardware import device, device_uuid
from nvml_stub.remote import Client

pytest_plugins = ["nvml_stub.fixtures"]
Start = Callable[..., Client]

MOST = 12
"""Calls for each rank and second at the default interval of a second."""
INTERVAL = 0.1
"""Seconds that stand for the second: the gap is scaled with it."""
SCALED: dict[str, Any] = {"gap": 0.95 * INTERVAL, "settle": 0.01}
FIRST = "nvmlDeviceGetMemoryInfo_v2"
"""Begins a round."""


def read_for(seconds: float, *readers: tuple[Client, int], pause: float = 0.01) -> None:
    """Read far more often than once in an interval."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for client, probe in readers:
            client.read(probe)
        time.sleep(pause)


def rounds_of(stub: NvmlStub) -> list[float]:
    return [when for when, name in stub.calls() if name == FIRST]


def test_at_most_twelve_calls_a_second(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    nvml_stub.devices(device(0, procs=f"{client.process.pid}:5,4000001:7"))
    probe = client.open(device_uuid(0))
    client.until(probe, lambda r: r["state"] == "ok")
    deadline = time.monotonic() + 20
    while len(rounds_of(nvml_stub)) < 5 and time.monotonic() < deadline:
        read_for(0.1, (client, probe))
    # The first round asks everything once.
    first, last = rounds_of(nvml_stub)[1], rounds_of(nvml_stub)[4]
    inside = [name for when, name in nvml_stub.calls() if first <= when < last]
    assert len(inside) / (last - first) <= MOST
    assert len(inside) >= 3 * 9, "the fast getters are not asked in every round"


def test_every_turn_of_the_slow_getters_keeps_to_it(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub, RANKTOP_GPM="1")
    nvml_stub.devices(device(0, fan=1, procs=f"{client.process.pid}:5", graphics_procs="7:8", mps_procs="9:1"))
    probe = client.open(device_uuid(0), **SCALED)
    client.until(probe, lambda r: r["state"] == "ok")
    deadline = time.monotonic() + 20
    while len(rounds_of(nvml_stub)) < 32 and time.monotonic() < deadline:
        read_for(INTERVAL, (client, probe))
    rounds = rounds_of(nvml_stub)[1:32]
    calls = [(when, name) for when, name in nvml_stub.calls() if rounds[0] <= when < rounds[-1]]
    most = max(sum(start <= when < end for when, _ in calls) for start, end in pairwise(rounds))
    assert most <= MOST, "a round makes more calls"
    assert len(rounds) - 1 <= (rounds[-1] - rounds[0]) / SCALED["gap"] + 1
    asked = {name for _, name in calls}
    # What is asked of a device at all is asked in these rounds.
    start = {name for when, name in nvml_stub.calls() if when < rounds[0]}
    seldom = ("Init", "HandleBy", "Name", "Index", "PciInfo", "Numa", "nvmlSystem", "QueryDevice", "SampleAlloc")
    assert {name for name in start if not any(word in name for word in seldom)} <= asked


def test_several_processes_ask_no_more_than_one(nvml_stub: NvmlStub, nvml_client: Start, tmp_path: Path) -> None:
    clients = [nvml_client(nvml_stub) for _ in range(4)]
    nvml_stub.devices(device(0, procs=",".join(f"{c.process.pid}:{n + 1}" for n, c in enumerate(clients))))
    readers = [(client, client.open(device_uuid(0), share=str(tmp_path), **SCALED)) for client in clients]
    # Each is read, as a rank does: who reads for the others is not known beforehand.
    deadline = time.monotonic() + 10
    while any(client.read(probe)["state"] != "ok" for client, probe in readers):
        assert time.monotonic() < deadline
        read_for(INTERVAL, *readers)
    # Each has its own line of the one list.
    assert [client.read(probe)["process_used"] for client, probe in readers] == [1, 2, 3, 4]
    read_for(1.0, *readers)
    rounds = rounds_of(nvml_stub)[1:]
    assert len(rounds) >= 4
    calls = [when for when, _ in nvml_stub.calls() if rounds[0] <= when < rounds[-1]]
    assert len(calls) / (len(rounds) - 1) <= MOST
    # All of them are the rounds of one.
    assert (len(rounds) - 1) <= (rounds[-1] - rounds[0]) / SCALED["gap"] + 1
    assert nvml_stub.counts()["nvmlInitWithFlags"] == 1


def test_nobody_asks_for_a_device_that_is_not_read(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **SCALED)
    client.until(probe, lambda r: r["state"] == "ok" and bool(client.detail(probe)))
    idle = nvml_stub.calls_end()
    # A round that was under way may end; then there is silence.
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        time.sleep(3 * INTERVAL)
        if nvml_stub.calls_end() == idle:
            return
        idle = nvml_stub.calls_end()
    raise AssertionError("calls go on though nobody reads")
