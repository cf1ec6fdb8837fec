"""What a script learns of a device that is not well, of a host chosen by hand, and of processes by their ids."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_job import FakeClock, FakeJob, FakeSource, fsdp_job, host_job

from ranktop.probes.reading import DeviceProcess
from ranktop.tui.session.state import Session
from ranktop.tui.status_json import job_json


def ranks_of(job: FakeJob) -> list[dict[str, Any]]:
    clock = FakeClock()
    source = FakeSource(job, clock)
    session = Session(clock)
    session.feed(source.drain())
    clock.advance(3.0)
    session.feed(source.drain())
    found: list[dict[str, Any]] = json.loads(json.dumps(job_json(session.snapshot())))["ranks"]
    return found


HUNG = "no answer from the driver for 9 s (nvmlDeviceGetPowerUsage)"


def test_a_driver_that_does_not_answer_is_named_though_no_value_is_missing() -> None:
    job = fsdp_job(2)
    job.reading_changes[0] = {"state": "no answer", "age": 9.0, "reasons": {"device": HUNG}}
    sick, well = (rank["device"] for rank in ranks_of(job))
    assert (sick["state"], sick["state_reason"]) == ("no answer", HUNG)
    assert sick["power"] is not None
    assert sick["ages"]["power"] >= 9.0
    assert (well["state"], well["state_reason"]) == ("ok", "")


@pytest.mark.parametrize("state", ["pending", "lost", "reset required", "unavailable"])
def test_every_state_but_ok_has_its_words(state: str) -> None:
    job = fsdp_job(1)
    job.reading_changes[0] = {"state": state, "reasons": {"device": f"why it is {state}"}}
    assert ranks_of(job)[0]["device"]["state_reason"] == f"why it is {state}"


def test_a_host_has_no_gpus_values_whoever_chose_it() -> None:
    job = host_job()
    job.reading_changes[0] = {"reasons": {"device": "RANKTOP_DEVICE=host"}}
    reasons = ranks_of(job)[0]["device"]["reasons"]
    assert {reasons[name] for name in ("pcie.tx", "nvlink", "ecc.enabled", "gpm")} == {"a host has none"}


def test_the_ids_of_a_rank_in_all_namespaces_stand_beside_its_own() -> None:
    rank = ranks_of(fsdp_job(1))[0]
    assert rank["pid"] in rank["pids"]


def test_a_process_that_a_list_has_twice_has_the_bytes_of_both_lines() -> None:
    job = fsdp_job(1)
    job.processes[0] = (DeviceProcess(50, 10), DeviceProcess(50, 30), DeviceProcess(51, 5), DeviceProcess(51, None))
    job.detail_changes[0] = {"graphics_processes": (DeviceProcess(50, 40),)}
    listed = {one["pid"]: (one["bytes"], one["kind"]) for one in ranks_of(job)[0]["device"]["processes"]}
    assert listed[50] == (40, "compute"), "the graphics list has the same bytes once more"
    assert listed[51] == (None, "compute"), "a sum with an unknown part is unknown"
