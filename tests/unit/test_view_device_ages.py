"""What is old, partial or past of a device says so: ages, lower bounds, ends, and what status prints of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from device_view import LIVE, changed, gauges_of, playing, screen, snapshot, text
from fake_job import fsdp_job

from ranktop.budget.terms import Memory
from ranktop.tui.session.state import Snapshot
from ranktop.tui.status_report import report
from ranktop.tui.status_table import table_row, unknowns
from ranktop.tui.view.device_words import trouble_sentence
from ranktop.tui.view.frame import frame
from ranktop.tui.view.options import Options
from ranktop.wire.schema import End

HUNG = "no answer from the driver for 27 s (nvmlDeviceGetTemperature)"
GAUGES: dict[str, Any] = dict.fromkeys(("used", "free", "total", "utilization", "power", "temperature"))
CLOCKS: dict[str, Any] = dict.fromkeys(("sm_clock", "memory_clock"))


def painted(picture: Snapshot, size: tuple[int, int] = (80, 24), **choices: Any) -> str:
    made = frame(picture, LIVE, Options(selected=0, **choices), size, "", picture.now)
    rows = [text(left) + text(right) for left, right in zip(made.bars, made.numbers, strict=True)]
    return "\n".join([*rows, *(text(line) for line in (*made.facts, *made.side))])


def with_sample(picture: Snapshot, rank: int, **changes: Any) -> Snapshot:
    """Return the picture with other fields in a rank's sample."""
    views = list(picture.ranks)
    sample = views[rank].sample
    assert sample is not None
    views[rank] = replace(views[rank], sample=msgspec.structs.replace(sample, **changes))
    return replace(picture, ranks=tuple(views))


def test_silence_and_the_age_of_values_are_told_apart() -> None:
    # It answered something 27 s ago, in a round that never ended; the last whole one was 59 s ago.
    picture = changed({**GAUGES, **CLOCKS, "state": "no answer", "age": 59.0, "ages": {"throttle": 27.0},
                       "reasons": {"device": HUNG}})  # fmt: skip
    gauges = gauges_of(picture.ranks[0])
    assert gauges.silent_for == 27.0 + (picture.ranks[0].age or 0)
    assert gauges.oldest is None, "nothing that is asked every round is known"
    assert "(for 27 s)" in trouble_sentence(gauges)
    assert "no answer 27s" in painted(picture)
    known = gauges_of(changed({"state": "no answer", "age": 59.0, "reasons": {"device": HUNG}}).ranks[0])
    assert "values are 59 s old" in trouble_sentence(known)


def test_one_age_is_said_of_a_group_whose_values_are_all_old() -> None:
    shown = screen(changed({"state": "no answer", "age": 40.0, "reasons": {"device": HUNG}}))
    clock = next(line for line in shown.splitlines() if " clock " in line)
    assert clock.count("old") == 1
    assert clock.rstrip().endswith("(40 s old)")
    assert "GiB  40 s" in shown, "the memory's heading"


def test_a_mark_that_has_no_room_behind_its_value_has_a_row_of_its_own() -> None:
    shown = screen(changed({"ages": {"temperature": 40.0}}), (76, 60))
    lines = [line.partition("│")[2].strip() for line in shown.splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("temp "))
    assert "(40 s old)" in " ".join(lines[at : at + 2])


def test_a_row_says_how_old_a_slow_gpus_values_are() -> None:
    picture = changed({"ages": dict.fromkeys(("utilization", "power", "temperature"), 4.0)})
    assert "ok, GPU 4s old" in painted(picture).splitlines()[0]
    assert table_row(picture.ranks[0])[-1] == "ok, GPU read 4 s ago"


def test_a_device_whose_use_is_unknown_keeps_its_total_and_a_lower_bound() -> None:
    refused = "not permitted (NVML 4)"
    fields = ("used", "free", "total", "reserved", "process_used")
    picture = changed({**dict.fromkeys(fields), "reasons": dict.fromkeys(fields, refused)})
    view = picture.ranks[0]
    assert view.card is not None
    assert view.sample is not None
    assert view.card.device.total is not None
    gone: dict[str, Any] = {"free": None, "other": None, "total": None}
    now = replace(view.sample.now, **gone)
    table = view.sample.table
    assert table is not None
    moments: dict[str, Memory] = {name: replace(memory, **gone) for name, memory in table.moments.items()}
    picture = with_sample(picture, 0, now=now, table=msgspec.structs.replace(table, moments=moments))
    told = painted(picture, moment="now", zoom="device")
    assert "≥" in told.splitlines()[0]
    assert "of 79.65" in told
    unknown = screen(picture).partition("not known")[2]
    assert "total" not in unknown
    assert f"memory: {refused}" in " ".join(unknown.split())


def test_a_dead_ranks_device_screen_says_how_it_ended_before_what_the_driver_did() -> None:
    job = fsdp_job()
    job.no_answer = {0}
    job.ends = {0: End(rank=0, how="signal", code=9, detail="SIGKILL")}
    shown = screen(snapshot(job)).splitlines()
    assert "SIGKILL" in shown[1]
    assert "no answer" not in shown[1]


def test_status_names_what_slows_a_gpu_down_and_why_a_number_is_missing() -> None:
    job = fsdp_job(3)
    job.reading_changes = {
        0: {"throttle": ("hardware thermal slowdown",), "temperature": 91},
        1: {"utilization": None, "reasons": {"utilization": "not supported by this device (NVML 3)"}},
        2: {"utilization": None, "reasons": {"utilization": "not supported by this device (NVML 3)"}},
    }
    picture = playing(job)[0].snapshot()
    assert table_row(picture.ranks[0])[-1] == "ok, too hot"
    hot = [line for line in report(picture) if "slowed down" in line]
    assert [line.partition(",")[0] for line in hot] == ["! rank 0: this GPU is slowed down: hardware thermal slowdown"]
    assert "check its cooling" in hot[0]
    assert unknowns(picture) == ["ranks 1, 2: util not known: not supported by this device (NVML 3)"]
    assert unknowns(snapshot(fsdp_job())) == []


def test_a_rank_that_has_ended_is_in_no_phase() -> None:
    job = fsdp_job()
    assert "in backward" in painted(snapshot(job), (120, 40))
    job.ends = {0: End(rank=0, how="exit", code=0)}
    told = painted(snapshot(job), (120, 40))
    assert "ended by itself" in told
    assert "in backward" not in told
