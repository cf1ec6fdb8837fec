"""What is shown of a device: memory that adds up, readings with ages and reasons, problems first, all its names."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from fake_gpu_jobs import mig_job, stray_job
from fake_job import GIB, MIB, FakeClock, FakeJob, FakeSource, fsdp_job, host_job
from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.probes.reading import DeviceProcess, NvLink
from ranktop.tui.session.rank import RankView
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Session, Snapshot
from ranktop.tui.view.device import device_block
from ranktop.tui.view.device_groups import groups, link_strip, odd_links
from ranktop.tui.view.device_identity import identity_lines
from ranktop.tui.view.device_memory import division, memory_bar
from ranktop.tui.view.device_screen import Look, device_lines
from ranktop.tui.view.device_words import device_sentences, parts_of_other, ranges, unknown_sentences
from ranktop.tui.view.gauges import Gauges, harmful, in_a_word
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import ASCII, UNICODE, Line, length

LIVE = Link(state="live", age=0.1)
NOT_PERMITTED = "not permitted (NVML 4); inside a container only the device or MIG instance given to it may be asked"


def snapshot(job: FakeJob, seconds: float = 5.0) -> Snapshot:
    clock = FakeClock()
    source = FakeSource(job, clock)
    session = Session(clock)
    session.feed(source.drain())
    clock.advance(seconds)
    session.feed(source.drain())
    return session.snapshot()


def changed(reading: dict[str, Any] | None = None, detail: dict[str, Any] | None = None, rank: int = 0) -> Snapshot:
    job = fsdp_job()
    job.reading_changes[rank] = reading or {}
    job.detail_changes[rank] = detail or {}
    return snapshot(job)


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def gauges_of(view: RankView) -> Gauges:
    gauges = Gauges.of(view)
    assert gauges is not None
    return gauges


def side(picture: Snapshot, width: int = 34, rank: int = 0) -> list[str]:
    lines = device_block(picture.ranks[rank], picture, width, UNICODE)
    assert all(length(line) == width for line in lines)
    return [text(line).rstrip() for line in lines]


def screen(picture: Snapshot, size: tuple[int, int] = (120, 60), rank: int = 0, **choices: Any) -> str:
    options = Options(selected=rank, **choices)
    lines = device_lines(picture, LIVE, Look(), options, size, "")
    assert len(lines) == size[1]
    assert all(length(line) == size[0] for line in lines)
    return "\n".join(text(line).rstrip() for line in lines)


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


def test_every_name_of_a_device_is_on_one_line_of_120_cells() -> None:
    job = fsdp_job()
    plain = job.device
    uuid = "GPU-5e1c0f2a-9d31-4a77-b0c2-7f1de2c3a4b5"
    job.device = lambda rank: replace(plain(rank), uuid=uuid, numa_node=1, pci_bus_id="0000:81:00.0")
    job.reading_changes[1] = {"process_pid": 4_112_345}
    picture = snapshot(job)
    lines = [text(line) for line in identity_lines(picture.ranks[0], UNICODE, 120)]
    assert len(lines) == 1
    for name in ("rank 0", "node1", "cuda:0", "NVML 2", uuid, "81:00.0", "NUMA 1", "H100 80GB HBM3", "pid 48109"):
        assert name in lines[0]
    wide = text(identity_lines(picture.ranks[1], UNICODE, 200)[0])
    assert "0000:81:00.0" in wide
    assert "pid 48110 (driver: 4112345)" in wide
    narrow = [text(line) for line in identity_lines(picture.ranks[1], UNICODE, 80)]
    assert 1 < len(narrow) <= 3
    assert uuid in " ".join(narrow)
    assert "(driver: 4112345)" in " ".join(narrow)


def test_a_mig_instance_is_told_by_profile_index_and_instances() -> None:
    picture = snapshot(mig_job())
    line = text(identity_lines(picture.ranks[1], UNICODE, 120)[0])
    for name in ("cuda:0", "NVML 4", "MIG-00000001", "81:00.0", "MIG 2 1g.10gb GI 9 CI 0", "H100 80GB HBM3 "):
        assert name in line
    assert line.count("1g.10gb") == 1
    shown = screen(picture, rank=1)
    assert "of GPU-000000ff" in shown
    assert "(whole GPU)" in shown
    assert "utilization, memory bus: not told for a MIG instance" in shown
    assert "of the whole GPU: power, temp, clock" in " ".join(side(picture, rank=1))


def test_a_uuid_that_has_no_room_is_shortened_and_told_below() -> None:
    job = fsdp_job()
    plain = job.device
    uuid = "GPU-5e1c0f2a-9d31-4a77-b0c2-7f1de2c3a4b5"
    job.device = lambda rank: replace(plain(rank), uuid=uuid)
    job.node = lambda rank: "gpu-worker-17.cluster.example"
    shown = screen(snapshot(job)).splitlines()
    assert "GPU-5e1c0f2a…" in shown[0]
    assert any(uuid in line for line in shown[1:])


def test_a_sound_gpu_fits_beside_the_memory_table() -> None:
    rows = side(snapshot(fsdp_job()), 28)
    assert [row.split()[0] for row in rows] == [
        "util", "power", "temp", "clock", "slowed", "PCIe", "NVLink", "ECC", "reserved"
    ]  # fmt: skip
    assert len(rows) <= 11
    assert {"power     608 of 700 W", "PCIe      gen 5 x16", "NVLink    18 of 18 up"} <= set(rows)
    assert re.fullmatch(r"clock     1,\d\d\d of 1,980 MHz", rows[3])


def test_problems_come_first_and_loud() -> None:
    links = tuple(NvLink(link, up=link != 9, replay=0, recovery=0, crc=0) for link in range(18))
    picture = changed(
        {"throttle": ("software power cap", "hardware thermal slowdown"), "temperature": 89, "power": None,
         "reasons": {"power": NOT_PERMITTED}},
        {"nvlinks": links, "pcie_width": 4, "ecc_uncorrected": 2},
    )  # fmt: skip
    lines = device_block(picture.ranks[0], picture, 34, UNICODE)
    loud = [any(style.startswith(("bad", "warn")) for _, style in line) for line in lines]
    assert loud.index(False) >= 5
    assert not any(loud[loud.index(False) :])
    rows = [text(line).rstrip() for line in lines]
    assert "PCIe      gen 5 x4 of 5 x16" in rows
    assert any(row == "slowed by HW thermal  SW power cap" for row in rows)
    assert "power     – not permitted" in rows


def test_a_link_that_rests_is_no_problem_and_one_that_works_below_its_best_is() -> None:
    rests = changed({"utilization": 0}, {"pcie_generation": 1})
    assert "PCIe      gen 1 x16 of 5 x16 at rest" in side(rests, 40)
    group = {group.title: group for group in groups(gauges_of(rests.ranks[0]), UNICODE)}
    assert group["PCIe"].loud == 0
    works = changed({"utilization": 80}, {"pcie_generation": 1})
    assert {group.title: group.loud for group in groups(gauges_of(works.ranks[0]), UNICODE)}["PCIe"] == 1


def test_rows_exist_only_for_what_exists() -> None:
    lacks = "not supported by this device (NVML 3)"
    without = changed(
        {}, {"nvlinks": (), "ecc_enabled": None, "ecc_uncorrected": None, "ecc_corrected": None,
             "reasons": {"ecc_enabled": lacks, "ecc_uncorrected": lacks}},
    )  # fmt: skip
    titles = [row.split()[0] for row in side(without)]
    assert not set(titles) & {"NVLink", "ECC"}
    assert "power" not in " ".join(side(snapshot(host_job())))
    assert "free RAM  18.6 GiB of 24.0 GiB" in side(snapshot(host_job()))


def test_the_odd_nvlink_is_marked() -> None:
    sound = [NvLink(link, up=True, replay=2, recovery=1, crc=0) for link in range(6)]
    assert odd_links(sound) == {}
    links = [*sound[:4], NvLink(4, up=True, replay=2, recovery=900, crc=0), NvLink(5, up=False)]
    assert odd_links(links) == {4: "2 replays, 900 recoveries", 5: "down"}
    assert text(link_strip(links, UNICODE)) == "■■■■!✗"
    assert text(link_strip([*links, NvLink(6)], ASCII)) == "####!x?"
    unused = [NvLink(link, up=False) for link in range(4)]
    assert odd_links(unused) == {}
    picture = changed({}, {"nvlinks": tuple(unused)})
    assert "NVLink    none of 4 up" in side(picture)


@pytest.mark.parametrize(
    ("words", "matters"),
    [("idle", False), ("software power cap", False), ("application clocks", False), ("sync boost", False),
     ("hardware slowdown", True), ("hardware thermal slowdown", True), ("software thermal slowdown", True),
     ("hardware power brake", True)],
)  # fmt: skip
def test_which_throttle_reasons_matter(words: str, matters: bool) -> None:
    assert harmful(words) is matters
    picture = changed({"throttle": (words,)})
    told = " ".join(sentence for sentence, _ in device_sentences(picture.ranks[0], picture, UNICODE))
    assert (words in told) is matters


def test_values_show_their_age_once_they_are_old() -> None:
    fresh = changed({"ages": {"power": 1.5}})
    assert "old" not in " ".join(side(fresh))
    old = changed({"ages": {"power": 12.0}})
    assert "power     608 of 700 W 12 s old" in side(old)
    assert "(12 s old)" in screen(old)
    slow = changed({"ages": {"power_limit": 12.0}}, {"ages": {"ecc_uncorrected": 12.0}})
    assert "old" not in " ".join(side(slow)), "what is asked every tenth round is not old yet"
    slower = changed({}, {"ages": {"ecc_uncorrected": 60.0}})
    assert any(row.startswith("ECC       0 uncorrected") and row.endswith("s old") for row in side(slower))


STATES = {
    "lost": (
        "the GPU is lost: it does not answer on the bus (NVML 15); see dmesg for Xid 79",
        "GPU lost 12s",
        "Xid 79",
    ),
    "reset required": ("the GPU needs a reset (NVML 16); nvidia-smi --gpu-reset", "reset needed", "--gpu-reset"),
    "no answer": ("no answer from the driver for 12 s (nvmlDeviceGetPowerUsage)", "no answer 12s", "PowerUsage"),
    "unavailable": ("driver and library differ in version (NVML 18); reboot", "no device", "reboot"),
}


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_words_a_reason_and_a_cure(state: str) -> None:
    reason, word, cure = STATES[state]
    picture = changed({"state": state, "age": 12.0, "reasons": {"device": reason}})
    (told, style), *_ = device_sentences(picture.ranks[0], picture, UNICODE)
    assert cure in told
    assert style in ("bad", "warn")
    assert "12 s" in told
    assert word in side(picture)[0]
    assert word in screen(picture).splitlines()[1]
    lines = device_lines(picture, LIVE, Look(), Options(selected=0), (120, 40), "")
    power = next(line for line in lines if "of 700 W" in text(line))
    assert all(style == "dim" for part, style in power if "of 700 W" in part)


def test_strays_are_named_with_bytes_and_the_usual_cause() -> None:
    picture = snapshot(stray_job())
    (told, style), *_ = device_sentences(picture.ranks[0], picture, UNICODE)
    assert told == (
        "! ranks 1-7 hold 3.6 GiB on this GPU: set_device missing, or torch.load without map_location"
    )  # fmt: skip
    assert style == "bad"
    (away, _), *_ = device_sentences(picture.ranks[5], picture, UNICODE)
    assert away.startswith("! rank 5 also holds 520.0 MiB on rank 0's GPU: set_device missing")
    assert parts_of_other(picture.ranks[0], picture) == [("ranks 1-7", 7 * 520 * MIB)]
    shown = screen(picture)
    assert "ranks 1-7" in shown
    assert shown.count(", stray") == 7


def test_missing_readings_are_named_by_reason() -> None:
    picture = changed(
        {"power": None, "utilization": None, "reasons": dict.fromkeys(("power", "utilization"), NOT_PERMITTED)}
    )
    assert unknown_sentences(picture.ranks[0]) == [(f"not known: power, utilization: {NOT_PERMITTED}", "dim")]
    assert unknown_sentences(snapshot(host_job()).ranks[0]) == []
    lost = changed(
        {"state": "lost", "power": None, "reasons": {"power": "the GPU is lost", "device": "the GPU is lost"}}
    )
    assert unknown_sentences(lost.ranks[0]) == []


def test_a_device_that_shares_the_hosts_memory_says_so() -> None:
    job = fsdp_job()
    plain = job.device
    job.device = lambda rank: replace(plain(rank), unified=True, name="NVIDIA GB10")
    job.reading_changes[0] = {"reserved": None, "processes": None, "reasons": {"reserved": "the host's"}}
    shown = screen(snapshot(job))
    assert "memory, shared with the host" in shown


@pytest.mark.parametrize(
    ("reason", "word"),
    [(NOT_PERMITTED, "not permitted"), ("not supported by this device (NVML 3)", "not supported"),
     ("off; RANKTOP_GPM=1 turns it on", "off"), ("the driver says 4294967295 %", "the driver says 4294967295 %")],
)  # fmt: skip
def test_a_reason_in_a_word(reason: str, word: str) -> None:
    assert in_a_word(reason) == word


def test_ranges_of_ranks() -> None:
    assert ranges([3, 1, 2, 5]) == "1-3, 5"
    assert ranges([4, 5]) == "4, 5"
    assert ranges([]) == ""


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
