"""The contract for scripts about a device: its whole shape, each unit, each null's reason, each value's age."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from device_view import playing
from fake_device import CONTEXT
from fake_gpu_jobs import mig_job, stray_job
from fake_job import GIB, H100, FakeJob, fsdp_job, host_job
from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.probes.reading import AllocatorReading, DeviceDetail, DeviceIdentity, DeviceProcess, DeviceReading, NvLink
from ranktop.tui.session.state import Session
from ranktop.tui.status_device import COUNTERS, DETAIL, GPM, READING
from ranktop.tui.status_json import job_json
from ranktop.tui.status_report import report
from ranktop.tui.status_table import print_table, unknowns

KEYS = {
    *("kind", "uuid", "name", "torch_index", "nvml_index", "pci_bus_id", "mig", "numa_node", "unified", "driver"),
    *("cuda_driver", "total", "state", "utilization", "memory_used", "memory_reserved", "memory_free", "power"),
    *("state_reason", "power_limit", "temperature", "clocks", "throttle", "pcie", "nvlink", "ecc", "performance_state"),
    *("memory_utilization", "memory_temperature", "thresholds", "power_limits", "energy", "fan", "persistence"),
    *("compute_mode", "recovery", "gpm", "processes", "of_parent", "reasons", "ages"),
}
GROUPS = {
    "clocks": {"sm", "memory", "max_sm", "max_memory"},
    "pcie": {"generation", "max_generation", "width", "max_width", "tx", "rx", "replays"},
    "ecc": {
        *("enabled", "volatile_corrected", "volatile_uncorrected", "aggregate_corrected", "aggregate_uncorrected"),
        *("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed"),
    },
    "thresholds": {"slowdown", "shutdown", "max", "memory_max"},
    "power_limits": {"min", "max", "default"},
}


def session_of(job: FakeJob) -> Session:
    return playing(job, 3.0)[0]


def ranks_of(job: FakeJob) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(json.dumps(job_json(session_of(job).snapshot())))["ranks"]
    return found


def nulls(value: object, name: str = "") -> Iterator[str]:
    """The dotted names of what is null, without the numbers of list items."""
    if value is None:
        yield name
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("reasons", "ages"):
                yield from nulls(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for inner in value:
            yield from nulls(inner, name)


def bare() -> FakeJob:
    """A GPU that has told nothing yet: neither identity nor detail."""
    job = fsdp_job(1)
    job.device = lambda rank: DeviceIdentity(kind="cuda")
    job.details = lambda rank: None
    job.reading_changes[0] = {field.name: field.default for field in fields(DeviceReading) if field.name != "reasons"}
    job.reading_changes[0] |= {"state": "pending", "age": 0.0, "reasons": {"device": "the driver is asked"}, "ages": {}}
    return job


def lost() -> FakeJob:
    job = bare()
    job.reading_changes[0] |= {"state": "lost", "reasons": {"device": "the GPU is lost (NVML 15)"}}
    return job


def odd() -> FakeJob:
    """Whatever may be half known is."""
    job = mig_job()
    own = job.device
    job.device = lambda rank: replace(own(rank), mig=replace(own(rank).mig, index=None, profile=""))  # type: ignore[type-var]
    job.reading_changes[0] |= {"reserved": None, "processes": (DeviceProcess(3, None),)}
    job.detail_changes[0] |= {
        "nvlinks": (NvLink(0, up=True), NvLink(1, up=None, crc=5)), "gpm_sm": 40.0, "ecc_enabled": None,
    }  # fmt: skip
    job.allocator_changes[0] = {"backend": "", "allocated": None}
    return job


def absent() -> FakeJob:
    job = fsdp_job(2)
    job.absent = {1}
    return job


JOBS: dict[str, Callable[[], FakeJob]] = {
    **{"H100": fsdp_job, "MIG": mig_job, "host": host_job, "strays": stray_job, "pending": bare, "lost": lost},
    **{"half known": odd, "missing rank": absent},
}


@pytest.mark.parametrize("job", JOBS)
def test_the_shape_is_always_whole_and_every_null_has_its_reason(job: str) -> None:
    for rank in ranks_of(JOBS[job]()):
        device, allocator = rank["device"], rank["allocator"]
        assert set(device) == KEYS
        for name, keys in GROUPS.items():
            assert set(device[name]) == keys, name
        assert device["gpm"] is None or set(device["gpm"]) == set(GPM)
        assert set(allocator) == {"backend", "expandable", *COUNTERS, "elsewhere", "reasons", "age"}
        for told, missing in ((device, set(nulls(device))), (allocator, set(nulls(allocator)) - {"age"})):
            assert missing == set(told["reasons"]), "no null without a reason, no reason for what is known"
            assert all(told["reasons"].values())
        assert not set(device["ages"]) & set(device["reasons"]) - {"nvlink", "processes"}
        assert all(age >= 0 for age in device["ages"].values())


def blanks(kind: type) -> st.SearchStrategy[dict[str, Any]]:
    """Any of the fields that may be unknown, without a word about why."""
    optional = [field.name for field in fields(kind) if field.default is None]
    return st.sets(st.sampled_from(optional)).map(dict.fromkeys)


@settings(max_examples=40, deadline=None)
@given(blanks(DeviceReading), blanks(DeviceDetail), blanks(AllocatorReading), blanks(DeviceIdentity))
def test_whatever_is_missing_without_a_word_gets_one(
    reading: dict[str, Any], detail: dict[str, Any], allocator: dict[str, Any], identity: dict[str, Any]
) -> None:
    job = fsdp_job(1)
    own = job.device
    job.device = lambda rank: replace(own(rank), **identity)
    job.reading_changes, job.detail_changes, job.allocator_changes = {0: reading}, {0: detail}, {0: allocator}
    rank = ranks_of(job)[0]
    assert set(nulls(rank["device"])) == set(rank["device"]["reasons"])
    assert set(nulls(rank["allocator"])) == set(rank["allocator"]["reasons"])
    assert all([*rank["device"]["reasons"].values(), *rank["allocator"]["reasons"].values()])


def test_every_name_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "status.md").read_text(encoding="utf-8")

    def names(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key
                if key not in ("reasons", "ages", "elsewhere", "rules", "tolerance", "notes", "precision"):
                    yield from names(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from names(inner)

    told = {name for job in (stray_job, mig_job) for name in names(job_json(session_of(job()).snapshot()))}
    assert {name for name in told if f'"{name}"' not in text} == set()


def test_every_field_of_reading_and_detail_has_its_place() -> None:
    inner = {"process_used", "process_pid", "total", "age", "state", "reasons", "ages"}
    assert {field.name for field in fields(DeviceReading)} - inner == set(READING.values())
    others = {"graphics_processes", "mps_processes", "of_parent", "reasons", "ages"}
    assert {field.name for field in fields(DeviceDetail)} - others == {*DETAIL.values(), *GPM.values()}
    assert {field.name for field in fields(AllocatorReading)} == {
        *COUNTERS, "backend", "expandable", "elsewhere", "baseline", "reasons",
    }  # fmt: skip


def test_an_h100_in_its_units() -> None:
    device = ranks_of(fsdp_job())[1]["device"]
    assert (device["kind"], device["uuid"], device["nvml_index"], device["pci_bus_id"]) == (
        "cuda", "GPU-00000001", 3, "0000:29:00.0",
    )  # fmt: skip
    assert (device["numa_node"], device["driver"], device["cuda_driver"], device["unified"]) == (
        0, "570.86.15", "12.8", False,
    )  # fmt: skip
    assert device["memory_used"] + device["memory_reserved"] + device["memory_free"] == device["total"] == H100
    assert (device["state"], device["power_limit"], device["throttle"]) == ("ok", 700.0, [])
    assert device["clocks"] == {"sm": device["clocks"]["sm"], "memory": 2619, "max_sm": 1980, "max_memory": 2619}
    assert device["pcie"] == {
        "generation": 5, "max_generation": 5, "width": 16, "max_width": 16, "tx": 1_240_000_000, "rx": 310_000_000,
        "replays": 0,
    }  # fmt: skip
    assert len(device["nvlink"]) == 18
    assert device["nvlink"][17] == {"link": 17, "up": True, "replay": 0, "recovery": 0, "crc": 0}
    assert device["ecc"]["aggregate_corrected"] == 2
    assert device["thresholds"] == {"slowdown": 87, "shutdown": 92, "max": 85, "memory_max": 95}
    assert (device["performance_state"], device["compute_mode"], device["recovery"]) == (0, "default", "none")
    assert device["persistence"] is True
    assert device["energy"] == pytest.approx(1.621e9)
    assert (device["fan"], device["reasons"]["fan"]) == (None, "not supported by this device")
    assert (device["gpm"], device["reasons"]["gpm"]) == (None, "off; RANKTOP_GPM=1 turns it on")
    assert device["reasons"]["mig"] == "the device is no MIG instance"
    own = {"pid": 48_110, "rank": 1, "kind": "compute"}
    assert [{key: one[key] for key in own} for one in device["processes"]] == [own]


def test_what_the_driver_reserves_is_apart_from_what_is_used() -> None:
    job = fsdp_job(2)
    job.reading_changes = {0: {"total": 100, "used": 70, "free": 30, "reserved": 10, "processes": ()}}
    job.reading_changes[1] = {
        "total": 100, "used": 70, "free": 30, "reserved": None, "reasons": {"reserved": "v1 counts it as used"},
    }  # fmt: skip
    two, one = (rank["device"] for rank in ranks_of(job))
    assert (two["memory_used"], two["memory_reserved"], two["memory_free"], two["processes"]) == (60, 10, 30, [])
    assert (one["memory_used"], one["memory_reserved"], one["memory_free"]) == (70, None, 30)
    assert one["reasons"]["memory_reserved"] == "v1 counts it as used"


def test_ages_run_on_from_when_a_value_was_heard() -> None:
    job = fsdp_job(1)
    job.reading_changes[0] = {"age": 0.25, "ages": {"power_limit": 7.0}}
    session = session_of(job)
    session.clock.advance(2.0)  # type: ignore[attr-defined]
    device = job_json(session.snapshot())["ranks"][0]["device"]
    assert device["ages"]["utilization"] == pytest.approx(2.25), "heard at 3 s, read 0.25 s before"
    assert device["ages"]["power_limit"] == pytest.approx(9.0)
    assert device["ages"]["energy"] == pytest.approx(6.5), "heard at the start, read 1.5 s before"
    assert device["ages"]["pcie.tx"] == pytest.approx(5.5)
    assert "fan" not in device["ages"]


def test_gpm_is_an_object_when_it_is_on() -> None:
    job = fsdp_job(1)
    job.detail_changes[0] = {
        "gpm_sm": 71.5, "gpm_tensor": 12.0, "gpm_dram": 33.0, "reasons": {"gpm_occupancy": "not supported"},
    }  # fmt: skip
    device = ranks_of(job)[0]["device"]
    assert device["gpm"] == {"sm": 71.5, "occupancy": None, "tensor": 12.0, "dram": 33.0}
    assert device["reasons"]["gpm.occupancy"] == "not supported"


def test_a_mig_instance_names_its_parent_and_what_is_the_parents() -> None:
    device = ranks_of(mig_job())[1]["device"]
    assert device["mig"] == {
        "parent_uuid": "GPU-000000ff", "index": 2, "gpu_instance": 9, "compute_instance": 0, "profile": "1g.10gb",
    }  # fmt: skip
    assert device["total"] == 10 * GIB
    assert device["of_parent"] == ["power", "power_limit", "temperature", "clocks.sm", "clocks.memory", "energy"]
    assert (device["utilization"], device["reasons"]["utilization"]) == (None, "not told for a MIG instance")


def test_a_lost_device_says_so_for_each_value_and_a_host_has_none() -> None:
    device = ranks_of(lost())[0]["device"]
    assert device["state"] == "lost"
    assert {device["reasons"][name] for name in READING} == {"the GPU is lost (NVML 15)"}
    host = ranks_of(host_job())[0]["device"]
    assert (host["kind"], host["state"], host["total"]) == ("host", "ok", 24 * GIB)
    assert {host["reasons"][name] for name in ("uuid", "mig", "driver", "ecc.enabled", "energy")} == {"a host has none"}


def test_strays_are_named_from_both_sides() -> None:
    ranks = ranks_of(stray_job())
    assert ranks[0]["strays"] == {"here": {"ranks": [1, 2, 3, 4, 5, 6, 7], "bytes": 7 * CONTEXT}, "on": []}
    assert ranks[7]["strays"] == {"here": {"ranks": [], "bytes": 0}, "on": [{"rank": 0, "bytes": CONTEXT}]}
    assert [one["rank"] for one in ranks[0]["device"]["processes"]] == list(range(8))


def test_the_allocator_tells_all_its_counters() -> None:
    allocator = ranks_of(fsdp_job(2))[0]["allocator"]
    assert (allocator["backend"], allocator["expandable"], allocator["elsewhere"]) == ("native", False, {})
    assert allocator["reserved"] > allocator["active"] > allocator["allocated"] > allocator["requested"]
    assert (allocator["segments"], allocator["retries"], allocator["ooms"], allocator["age"]) == (412, 0, 0, 3.0)
    job = fsdp_job(1)
    job.allocator_changes[0] = {"backend": "cudaMallocAsync", "segments": None, "elsewhere": {2: 5 * GIB}}
    allocator = ranks_of(job)[0]["allocator"]
    assert allocator["reasons"] == {"segments": "the cudaMallocAsync allocator does not count it"}
    assert allocator["elsewhere"] == {"2": 5 * GIB}
    host = ranks_of(host_job())[0]["allocator"]
    assert (host["backend"], host["reasons"]["ooms"]) == ("malloc", "malloc does not count it")


def test_the_lines_below_the_table_name_what_is_wrong_with_devices_once(capsys: pytest.CaptureFixture[str]) -> None:
    job = stray_job()
    words = "the GPU needs a reset (NVML 16)\x1b[31m"
    job.reading_changes = {2: {"state": "reset required", "reasons": {"device": words}}}
    job.no_answer = {5}
    print_table([session_of(job)])
    lines = capsys.readouterr().out.splitlines()
    assert not any("\x1b" in line for line in lines)
    for mark, sentence in (
        ("✖", "rank 2: the GPU needs a reset"),
        ("!", "ranks 1-7 hold 3.6 GiB on the GPU of rank 0: set_device missing, or torch.load without map_location"),
        ("!", "rank 5: the driver does not answer"),
    ):
        (line,) = [line for line in lines if sentence in line]
        assert line.startswith(f"{mark} {sentence}")
    assert unknowns(session_of(job).snapshot()) == []


def test_sound_devices_leave_no_line() -> None:
    snapshot = session_of(fsdp_job()).snapshot()
    assert unknowns(snapshot) == []
    assert not [line for line in report(snapshot) if "GPU" in line]
