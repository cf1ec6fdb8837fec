"""The device screen at any size, of devices that say much, little or nothing."""

from __future__ import annotations

import re

import pytest
from device_view import LIVE, changed, screen, side, snapshot, text
from fake_gpu_jobs import mig_job, stray_job
from fake_job import GIB, FakeJob, fsdp_job, host_job

from ranktop.probes.reading import (
    AllocatorReading,
    DeviceDetail,
    DeviceIdentity,
    DeviceReading,
)
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.device_screen import Look, device_lines
from ranktop.tui.view.device_words import device_sentences, unknown_sentences
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import ASCII, UNICODE


def nothing_known() -> FakeJob:
    """A job on a GPU that says nothing at all and gives no reason."""
    job = fsdp_job(1)
    kept = {"reasons", "ages", "age", "state"}
    job.reading_changes[0] = {**dict.fromkeys(set(DeviceReading.__dataclass_fields__) - kept), "reasons": {}}
    kept = {"reasons", "ages", "of_parent"}
    job.detail_changes[0] = {**dict.fromkeys(set(DeviceDetail.__dataclass_fields__) - kept), "reasons": {}}
    kept = {"reasons", "baseline", "backend", "expandable", "elsewhere"}
    job.allocator_changes[0] = dict.fromkeys(set(AllocatorReading.__dataclass_fields__) - kept)
    job.device = lambda rank: DeviceIdentity(kind="cuda")
    return job


def test_a_gpu_that_says_nothing_shows_no_number() -> None:
    for size in ((1, 1), (40, 10), (80, 24), (120, 40), (300, 80)):
        shown = screen(snapshot(nothing_known()), size)
    measured = [line for line in shown.splitlines() if re.match(r"   (this rank|free|total) ", line)]
    assert len(measured) == 3
    assert all("–" in line and "0.00" not in line for line in measured)
    for word in ("None", "util", "power", "NVLink", "PCIe"):
        assert word not in shown
    assert side(snapshot(nothing_known()), 28) == ["nothing is read of it"]


def test_what_no_host_has_is_not_missed_on_one() -> None:
    job = host_job()
    reasons = dict.fromkeys(("power", "reserved"), "not read on a host") | {"utilization": "takes two readings"}
    job.reading_changes[0] = {"utilization": None, "reasons": reasons}
    shown = screen(snapshot(job))
    assert "not read on a host" not in shown
    assert "utilization: takes two readings" in shown
    assert "CPU       – takes two readings" in shown


def test_the_allocator_says_what_is_unusual() -> None:
    job = fsdp_job()
    job.allocator_changes[0] = {
        "backend": "cudaMallocAsync", "expandable": True, "ooms": 2, "retries": 5, "elsewhere": {1: 3 * GIB},
        "inactive_split": None, "reasons": {"inactive_split": "this backend does not count it"},
    }  # fmt: skip
    lines = device_lines(snapshot(job), LIVE, Look(), Options(selected=0), (120, 60), "")
    styles = {text(line)[:20].strip(): [style for _, style in line] for line in lines}
    assert "bad bold" in styles["out of memory"]
    assert "bad bold" in styles["retries"]
    assert "warn" in styles["on cuda:1"]
    shown = "\n".join(text(line) for line in lines)
    assert " cudaMallocAsync, expandable " in shown
    assert "inactive split: this backend does not count" in shown


def test_a_rank_on_its_way_to_its_device_is_in_no_trouble() -> None:
    why = "CUDA is not initialised yet"
    unknown = dict.fromkeys(("total", "used", "free", "process_used", "utilization", "power", "temperature"))
    picture = changed({**unknown, "state": "pending", "reasons": {"device": why}})
    assert why in screen(picture).splitlines()[1]
    assert side(picture)[0] == why
    assert device_sentences(picture.ranks[0], picture, UNICODE) == []
    assert unknown_sentences(picture.ranks[0]) == []


@pytest.mark.parametrize("ranks", [1, 2, 72])
def test_any_size_takes_the_screen(ranks: int) -> None:
    for job in (fsdp_job(ranks), host_job(), mig_job(), stray_job()):
        picture = snapshot(job)
        for width, height in ((1, 1), (2, 3), (20, 5), (48, 12), (75, 24), (76, 24), (80, 24), (200, 60), (400, 3)):
            for glyphs in (UNICODE, ASCII):
                shown = screen(picture, (width, height), rank=min(ranks, len(picture.ranks)) - 1, glyphs=glyphs)
                assert shown.isascii() or glyphs is UNICODE


def test_no_rank_and_no_sample_are_said() -> None:
    nothing = Snapshot(now=0.0, job=None, state="starting", ranks=())
    assert "waiting for the first rank" in screen(nothing)
    missing = Snapshot(now=0.0, job=None, state="starting", ranks=(RankView(rank=0, state="missing", age=None),))
    assert "no sample of this rank yet" in screen(missing)
