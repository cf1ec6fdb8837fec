"""The NVML probe over the stand-in library, through the real pynvml, in a process of its own."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvml_stub.build import NvmlStub, build_library
from nvml_stub.hardware import GIB, device, device_uuid
from nvml_stub.remote import PROMPT, Client

from ranktop.probes.device import locate, uuid_names

pytest_plugins = ["nvml_stub.fixtures"]
Start = Callable[..., Client]

FIELDS_OF = {
    "nvmlDeviceGetMemoryInfo*": ("total", "used", "free", "reserved"),
    "nvmlDeviceGetUtilizationRates": ("utilization",),
    "nvmlDeviceGetPowerUsage": ("power",),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit",),
    "nvmlDeviceGetTemperature": ("temperature",),
    "nvmlDeviceGetClockInfo": ("sm_clock", "memory_clock"),
    "nvmlDeviceGetComputeRunningProcesses_v3": ("processes", "process_used", "process_pid"),
}
WORDS = {
    2: "invalid argument",
    3: "not supported",
    4: "not permitted",
    6: "not found",
    7: "did not fit",
    10: "timed out",
    15: "lost",
    16: "needs a reset",
    27: "not ready",
    999: "container",
    4242: "not known",
}
"""Code -> a word of what the reading has to say."""


def with_process(number: int, client: Client, size: int = 3 * GIB) -> dict[str, object]:
    return device(number, procs=f"4000001:{5 * GIB},{client.process.pid}:{size}")


def says(words: str, fields: tuple[str, ...]) -> Callable[[dict[str, Any]], bool]:
    return lambda reading: all(words in reading["reasons"].get(name, "") for name in fields)


def values(reading: dict[str, Any]) -> dict[str, Any]:
    return {name: reading[name] for names in FIELDS_OF.values() for name in names}


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


def test_every_value_is_the_devices_own(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    nvml_stub.devices(with_process(0, client))
    reading = client.until(client.open(device_uuid(0), **PROMPT), lambda r: r["state"] == "ok")
    assert values(reading) == {
        "total": 80 * GIB,
        "reserved": 600 << 20,
        "processes": [{"pid": client.process.pid, "bytes": 3 * GIB}, {"pid": 4000001, "bytes": 5 * GIB}],
        "process_pid": client.process.pid,
        "used": 10 * GIB + (600 << 20),  # The driver's own bytes included.
        "free": 70 * GIB - (600 << 20),
        "process_used": 3 * GIB,
        "utilization": 50,
        "power": 300.0,
        "power_limit": 700.0,
        "temperature": 60,
        "sm_clock": 1980,
        "memory_clock": 2619,
    }
    assert reading["reasons"] == {}
    assert reading["age"] < 5


def test_zero_is_a_value(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    nvml_stub.devices(device(0, util=0, power=0, limit=0, temp=0, sm=0, mem=0, free=0, procs=f"{client.process.pid}:0"))
    reading = client.until(client.open(device_uuid(0), **PROMPT), lambda r: r["state"] == "ok")
    zero = ("free", "process_used", "utilization", "power", "power_limit", "temperature", "sm_clock")
    assert {name: reading[name] for name in zero} == dict.fromkeys(zero, 0)
    assert reading["reasons"] == {}


def test_each_code_on_each_getter_costs_that_value_alone(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    nvml_stub.devices(with_process(0, client), with_process(1, client))
    sick, well = (client.open(device_uuid(n), **PROMPT) for n in (0, 1))
    before = client.until(sick, lambda r: r["state"] == "ok")
    healthy = values(client.until(well, lambda r: r["state"] == "ok"))
    pairs = 0
    for getter, fields in FIELDS_OF.items():
        for code, word in WORDS.items():
            # Where the newer request for memory fails the older one is made.
            forms = (getter.replace("*", "_v2"), getter.replace("*", ""))
            nvml_stub.update({f"d0.{form}.ret": code for form in forms})
            reading = client.until(sick, says(f"NVML {code})", fields))
            assert reading["state"] == "ok"
            assert set(reading["reasons"]) == set(fields)
            for name in fields:
                assert word in reading["reasons"][name]
            assert values(reading) == values(before) | dict.fromkeys(fields)
            pairs += 1
        assert values(client.read(well)) == healthy
        nvml_stub.update({f"d0.{form}.ret": None for form in forms})
        client.until(sick, lambda r: values(r) == values(before) and not r["reasons"])
    assert pairs == len(FIELDS_OF) * len(WORDS)


def test_a_device_that_answers_nothing_is_named_and_comes_back(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0), device(1))
    client = nvml_client(nvml_stub)
    sick, well = (client.open(device_uuid(n), **PROMPT) for n in (0, 1))
    for code, state, words in (
        (15, "lost", "Xid 79"),
        (16, "reset required", "reset"),
        (999, "unavailable", "container"),
        (4, "unavailable", "permitted"),
    ):
        client.until(sick, lambda r: r["state"] == "ok")
        nvml_stub.update({"d0.*.ret": code})
        reading = client.until(sick, says(f"NVML {code})", ("device",)))
        assert reading["state"] == state
        assert words in reading["reasons"]["device"]
        assert reading["used"] is None
        assert words in reading["reasons"]["used"]
        assert client.read(well)["utilization"] == 51
        age = reading["age"]
        later = client.until(sick, lambda r, age=age: r["age"] > age)  # type: ignore[misc]
        assert later["state"] == state
        calls = len(nvml_stub.calls())
        nvml_stub.update({"d0.*.ret": None})
        assert client.until(sick, lambda r: r["state"] == "ok")["utilization"] == 50
        # A handle of before may be of no use any more, and so may NVML's state.
        again = [name for _, name in nvml_stub.calls()[calls:]]
        assert again.index("nvmlInitWithFlags") < again.index("nvmlDeviceGetHandleByUUID")


def test_an_nvml_that_does_not_start_is_named_and_may_start_later(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    for code, words in ((18, "reboot"), (9, "kernel module"), (999, "container"), (4, "permitted")):
        nvml_stub.update({"init.ret": code})
        probe = client.open(device_uuid(0), **PROMPT)
        reading = client.until(probe, says(f"NVML {code})", ("device",)))
        assert reading["state"] == "unavailable"
        assert words in reading["reasons"]["device"]
        nvml_stub.update({"init.ret": None})
        client.until(probe, lambda r: r["state"] == "ok")


def test_a_hung_call_costs_only_age(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    nvml_stub.devices(with_process(0, client), device(1))
    hung = client.open(device_uuid(0), deadline=0.2, gap=0.0, settle=0.005)
    well = client.open(device_uuid(1), **PROMPT)
    before = client.until(hung, lambda r: r["state"] == "ok" and not r["reasons"])
    nvml_stub.update({"d0.nvmlDeviceGetTemperature.sleep": 400, "d0.util": 77})
    reading = client.until(hung, lambda r: r["state"] == "no answer")
    assert "nvmlDeviceGetTemperature" in reading["reasons"]["device"]
    # What was asked before the call that hangs is new, what comes after it is old.
    assert reading["utilization"] == 77
    assert {**values(reading), "utilization": 50} == values(before)
    answer = client.tell("read", probe=hung)
    assert answer["seconds"] < 1
    calls = len(nvml_stub.calls())
    later = client.until(hung, lambda r: r["age"] > reading["age"] + 0.2)
    assert later["state"] == "no answer"
    assert len(nvml_stub.calls()) == calls, "calls pile up behind the one that hangs"
    assert client.read(well)["state"] == "ok"
    code, seconds, errors = client.end()
    assert (code, errors) == (0, "")
    assert seconds < 5


def test_a_driver_that_hangs_at_the_start_holds_up_nobody(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    nvml_stub.update({"init.sleep": 400})
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), deadline=0.1)
    reading = client.until(probe, lambda r: r["state"] == "no answer")
    assert "nvmlInit" in reading["reasons"]["used"]
    assert client.tell("close", probe=probe)["seconds"] < 1
    assert client.end()[1] < 5


def test_a_slow_call_ends_and_the_values_are_fresh_again(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), deadline=0.1, gap=0.0, settle=0.005)
    client.until(probe, lambda r: r["state"] == "ok")
    nvml_stub.update({"d0.nvmlDeviceGetPowerUsage.sleep": 0.6, "d0.power": 1_200_000})
    client.until(probe, lambda r: r["state"] == "no answer")
    nvml_stub.update({"d0.nvmlDeviceGetPowerUsage.sleep": None})
    client.until(probe, lambda r: r["state"] == "ok" and r["power"] == 1200.0 and r["age"] < 0.6)


def test_at_most_twelve_calls_a_second(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    nvml_stub.devices(with_process(0, client))
    probe = client.open(device_uuid(0))
    client.until(probe, lambda r: r["state"] == "ok")
    rounds = [when for when, name in nvml_stub.calls() if name == "nvmlDeviceGetMemoryInfo_v2"]
    deadline = time.monotonic() + 20
    while len(rounds) < 5 and time.monotonic() < deadline:
        client.read(probe)  # Far more often than once a second.
        time.sleep(0.02)
        rounds = [when for when, name in nvml_stub.calls() if name == "nvmlDeviceGetMemoryInfo_v2"]
    # The first round asks for everything at once, so that nothing is missing long.
    first, last = rounds[1], rounds[4]
    inside = [name for when, name in nvml_stub.calls() if first <= when < last]
    assert len(inside) <= 3 * 12
    # A reader is never quite on time: a round may come a twentieth early.
    assert last - first > 3 * 0.95


def test_closing_ends_the_calls_at_once(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **PROMPT)
    client.until(probe, lambda r: r["state"] == "ok")
    assert client.tell("close", probe=probe)["seconds"] < 1
    calls = len(nvml_stub.calls())
    client.read(probe)
    assert len(nvml_stub.calls()) == calls


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
    assert all("libnvidia-ml" in reading["reasons"][name] for names in FIELDS_OF.values() for name in names)


NO_VALUES: tuple[tuple[dict[str, object], tuple[str, ...], str], ...] = (
    ({"util": (1 << 32) - 1}, ("utilization",), "4294967295 %"),
    ({"util": 101}, ("utilization",), "101 %"),
    ({"power": (1 << 32) - 1}, ("power",), "mW"),
    ({"temp": (1 << 32) - 1}, ("temperature",), "°C"),
    ({"sm": (1 << 32) - 1}, ("sm_clock",), "MHz"),
    ({"free": (1 << 64) - 1}, ("total", "used", "free", "reserved"), "bytes free"),
    ({"total": 0}, ("total", "used", "free", "reserved"), "no memory"),
    ({"procs": "{pid}:18446744073709551615"}, ("process_used",), "memory of processes"),
    ({"procs": "4000001:5"}, ("process_used", "process_pid"), "lists 1 others"),
    ({"procs": ""}, ("process_used", "process_pid"), "no CUDA context yet"),
)


def test_what_is_no_value_is_dropped_with_a_reason(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    client = nvml_client(nvml_stub)
    nvml_stub.devices(with_process(0, client))
    probe = client.open(device_uuid(0), **PROMPT)
    for change, fields, words in NO_VALUES:
        settings = {key: str(value).replace("{pid}", str(client.process.pid)) for key, value in change.items()}
        nvml_stub.devices(with_process(0, client) | settings)
        reading = client.until(probe, says(words, fields))
        assert reading["state"] == "ok"
        assert set(reading["reasons"]) == set(fields)
        assert {name: reading[name] for name in fields} == dict.fromkeys(fields)


def test_a_name_that_is_not_utf8(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0, name="Board %ff%fe 3"))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **PROMPT)
    client.until(probe, lambda r: r["state"] == "ok")
    assert client.identity(probe)["name"] == "Board \ufffd\ufffd 3"


def test_a_mig_instance_is_read_by_its_own_uuid(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    bare = "0a0b0c0d-1111-2222-3333-444444444444"
    instance = device(1, uuid=f"MIG-{bare}", parent=0, total=20 * GIB, free=15 * GIB, name="NVIDIA Test MIG 2g.20gb")
    nvml_stub.devices(device(0, index=3), instance)
    nvml_stub.update({f"d1.{name}.ret": 3 for name in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetClockInfo")})
    client = nvml_client(nvml_stub)
    probe = client.open(*uuid_names(bare, 0, ""), **PROMPT)
    reading = client.until(probe, lambda r: r["state"] == "ok")
    assert (reading["total"], reading["used"]) == (20 * GIB, 5 * GIB)
    assert "not supported" in reading["reasons"]["utilization"]
    identity = client.identity(probe)
    assert (identity["uuid"], identity["nvml_index"]) == (f"MIG-{bare}", 3)


def test_a_device_that_is_not_there(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(*uuid_names("ffff", 0, ""), **PROMPT)
    reading = client.until(probe, lambda r: "not found" in r["reasons"].get("device", ""))
    assert reading["state"] == "unavailable"


@pytest.mark.parametrize("way", ["missing symbol", "return code"])
def test_older_drivers_are_asked_in_their_own_way(
    nvml_stub: NvmlStub, nvml_client: Start, tmp_path: Path, way: str
) -> None:
    newer = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetTemperature")
    if way == "missing symbol":
        nvml_stub.library = build_library(tmp_path / "old", without=newer)
    client = nvml_client(nvml_stub)
    nvml_stub.devices(with_process(0, client))
    if way == "return code":
        nvml_stub.update({f"d0.{name}.ret": 25 for name in newer})
    reading = client.until(client.open(device_uuid(0), **PROMPT), lambda r: r["state"] == "ok")
    assert list(reading["reasons"]) == ["reserved"]
    assert "counts what it reserves as used" in reading["reasons"]["reserved"]
    assert reading["used"] == 10 * GIB + (600 << 20)
    assert reading["process_used"] == 3 * GIB
    assert reading["temperature"] == 60


def test_the_environment_chooses_the_device(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    nvml_stub.devices(device(0), device(1), device(2))
    for choice in ("nvml:local_rank", f"nvml:{device_uuid(2)}"):
        client = nvml_client(nvml_stub, RANKTOP_DEVICE=choice, LOCAL_RANK="2")
        client.tell("open_device")
        assert client.until(0, lambda r: r["state"] == "ok")["utilization"] == 52
        assert client.identity(0)["uuid"] == device_uuid(2)
        assert client.identity(0)["kind"] == "cuda"
    client = nvml_client(nvml_stub, RANKTOP_DEVICE="nonsense")
    client.tell("open_device")
    assert "nonsense" in client.read(0)["reasons"]["device"]
    assert client.identity(0)["kind"] == "host"


def test_looking_for_the_device_does_not_initialise_cuda() -> None:
    assert locate(0) == "CUDA is not initialised in this process yet"


def test_names_of_a_uuid() -> None:
    assert uuid_names("ab-cd", 0, "") == ("GPU-ab-cd", "MIG-ab-cd")
    assert uuid_names("ab-cd", 1, "GPU-x,MIG-GPU-ef/1/0") == ("MIG-GPU-ef/1/0", "GPU-ab-cd", "MIG-ab-cd")
    assert uuid_names(None, 1, "GPU-12, GPU-34") == ("GPU-34",)
    assert uuid_names(None, 0, "3,2") == ()
    assert uuid_names(None, 5, "") == ()
