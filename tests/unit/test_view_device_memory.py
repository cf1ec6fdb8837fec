"""The memory of a device on screen adds up, and what is not known of it is said."""

from __future__ import annotations

from dataclasses import replace

from device_view import NOT_PERMITTED, changed, gauges_of, screen, snapshot, text
from fake_gpu_jobs import mig_job
from fake_job import GIB, fsdp_job
from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.probes.reading import DeviceProcess
from ranktop.tui.view.device_memory import division, memory_bar
from ranktop.tui.view.device_words import device_sentences, parts_of_other
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import ASCII, UNICODE


@settings(max_examples=80, deadline=None)
@given(
    own=st.integers(0, 60 * GIB),
    reserved=st.one_of(st.none(), st.integers(0, GIB)),
    others=st.lists(st.one_of(st.none(), st.integers(0, 2 * GIB)), max_size=4),
    unlisted=st.integers(0, GIB),
    told=st.booleans(),
)
def test_the_memory_of_a_device_adds_up_to_the_byte(
    own: int, reserved: int | None, others: list[int | None], unlisted: int, told: bool
) -> None:
    total = 80 * GIB
    used = own + (reserved or 0) + sum(size or 0 for size in others) + unlisted
    processes = (DeviceProcess(48_109, own), *(DeviceProcess(9000 + at, size) for at, size in enumerate(others)))
    picture = changed(
        {"total": total, "used": used, "free": total - used, "process_used": own, "reserved": reserved,
         "processes": processes if told else None, "reasons": {"processes": NOT_PERMITTED, "reserved": "v1"}}
    )  # fmt: skip
    found = division(gauges_of(picture.ranks[0]), picture)
    assert sum(holder.bytes or 0 for holder in found.holders) == total
    named = {holder.name: holder.bytes for holder in found.holders}
    assert named["this rank"] == own
    assert named["free"] == total - used
    assert all(holder.bytes is None or holder.bytes >= 0 for holder in found.holders)


def test_processes_that_hold_more_than_is_used_are_said_to_be_read_at_another_time() -> None:
    processes = (DeviceProcess(48_109, 40 * GIB), DeviceProcess(7, 50 * GIB))
    picture = changed({"used": 70 * GIB, "process_used": 40 * GIB, "processes": processes})
    found = division(gauges_of(picture.ranks[0]), picture)
    assert "read at different times" in found.note
    assert all(holder.bytes is None or holder.bytes >= 0 for holder in found.holders)


def test_what_the_driver_does_not_tell_of_processes_is_shown_with_the_reason() -> None:
    reason = "the driver does not tell the memory of processes here"
    picture = changed(
        {"process_used": None, "processes": (DeviceProcess(48_109, None), DeviceProcess(7, None)),
         "reasons": {"process_used": reason}}
    )  # fmt: skip
    shown = screen(picture)
    assert "all processes together" in shown
    assert " ".join(shown.split()).count(reason) >= 1
    assert "0.00" not in next(line for line in shown.splitlines() if line.startswith("   this rank "))


def test_no_memory_at_all_is_a_dash_with_its_reason() -> None:
    picture = changed(
        {"total": None, "used": None, "free": None, "reserved": None, "process_used": None, "processes": None,
         "reasons": {"total": NOT_PERMITTED}}
    )  # fmt: skip
    shown = screen(picture)
    assert "not permitted" in shown
    assert "0 B" not in shown
    bar = memory_bar(gauges_of(picture.ranks[0]), picture, Options(), 100)
    assert "█" not in text(bar)


def test_the_bar_is_as_full_as_the_device() -> None:
    picture = changed({"total": 80 * GIB, "used": 60 * GIB, "free": 20 * GIB})
    bar = text(memory_bar(gauges_of(picture.ranks[0]), picture, Options(), 100))
    assert (bar.count("█"), len(bar)) == (75, 101)
    letters = text(memory_bar(gauges_of(picture.ranks[0]), picture, Options(letters=True, glyphs=ASCII), 100))
    assert letters.count(".") == 25
    assert letters.isascii()


def test_ranks_that_share_a_gpu_are_no_strays() -> None:
    job = fsdp_job(2)
    plain = job.device
    job.device = lambda rank: replace(plain(rank), uuid="GPU-00000000")
    job.contexts[0] = (1,)
    picture = snapshot(job)
    found = {holder.name: holder.style for holder in division(gauges_of(picture.ranks[0]), picture).holders}
    assert found["rank 1"] == "text"
    assert ", stray" not in screen(picture)
    assert device_sentences(picture.ranks[0], picture, UNICODE) == []


def test_processes_of_the_whole_gpu_are_not_counted_against_an_instance() -> None:
    job = mig_job()
    job.processes[0] = (DeviceProcess(7731, 40 * GIB),)
    job.detail_changes[0] = {**job.detail_changes[0], "of_parent": ("processes",)}
    picture = snapshot(job)
    found = division(gauges_of(picture.ranks[0]), picture)
    assert sum(holder.bytes or 0 for holder in found.holders) == 10 * GIB
    assert parts_of_other(picture.ranks[0], picture) == []
    assert "of whole GPU" in screen(picture)
