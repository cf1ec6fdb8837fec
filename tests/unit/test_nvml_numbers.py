"""What numbers a device tells: zero is one, absurd ones are dropped with a reason; links, reasons, states in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from nvml_stub.build import NvmlStub
from nvml_stub.hardware import GIB, Settings, device, device_uuid
from nvml_stub.remote import PROMPT, Client, reason_of, value_of

pytest_plugins = ["nvml_stub.fixtures"]
Start = Callable[..., Client]

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
    one = client.whole(device_uuid(0))
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
    before = client.whole(device_uuid(0))
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
    links = client.whole(device_uuid(0))["detail"]["nvlinks"]
    assert [link["link"] for link in links] == list(range(18))
    assert [link["link"] for link in links if not link["up"]] == [2]
    assert [(link["link"], link["recovery"]) for link in links if link["recovery"]] == [(14, 3)]
    assert [(link["link"], link["crc"]) for link in links if link["crc"]] == [(7, 9)]
    newer = client.whole(device_uuid(1))["detail"]["nvlinks"]
    assert (newer[14]["recovery"], newer[14]["replay"], newer[13]["recovery"]) == (4, None, 0)
    for n in (2, 3):
        none = client.whole(device_uuid(n))["detail"]
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
    assert nvml_client(nvml_stub).whole(device_uuid(0))["reading"]["throttle"] == words


def test_what_the_driver_asks_for(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0, recovery=4, remap_pending=1, compute_mode=3, ecc=0))
    detail = nvml_client(nvml_stub).whole(device_uuid(0))["detail"]
    assert (detail["recovery"], detail["remap_pending"], detail["compute_mode"]) == (
        "drain and reset",
        True,
        "exclusive process",
    )
    assert (detail["ecc_enabled"], detail["ecc_corrected"]) == (False, None)
    assert detail["reasons"]["ecc_corrected"] == "ECC is off: errors are not counted"
