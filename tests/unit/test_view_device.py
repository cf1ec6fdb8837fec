"""What is shown of a device: readings with ages and reasons, problems first, all its names."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest
from device_view import LIVE, NOT_PERMITTED, changed, gauges_of, screen, side, snapshot, text
from fake_gpu_jobs import mig_job, stray_job
from fake_job import MIB, fsdp_job, host_job

from ranktop.probes.reading import (
    NvLink,
)
from ranktop.tui.view.device import device_block
from ranktop.tui.view.device_groups import groups, link_strip, odd_links
from ranktop.tui.view.device_identity import identity_lines
from ranktop.tui.view.device_screen import Look, device_lines
from ranktop.tui.view.device_words import device_sentences, parts_of_other, unknown_sentences
from ranktop.tui.view.gauges import harmful, in_a_word
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import ASCII, UNICODE, ranges


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


def test_the_ids_by_which_other_namespaces_know_a_process_are_told() -> None:
    view = snapshot(fsdp_job()).ranks[0]
    assert view.card is not None
    card = msgspec.structs.replace(view.card, pids=(7001, view.card.pid))
    line = text(identity_lines(replace(view, card=card), UNICODE, 200)[0])
    assert "pid 48109 (other namespaces: 7001)" in line


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


@pytest.mark.parametrize(
    ("note", "title"),
    [
        ("RANKTOP_DEVICE=nvml:local_rank", "chosen by"),
        ("RANKTOP_DEVICE=gpu0 is not understood", "note"),
        ("memory limited by a cgroup: 8.0 GiB of the machine's 64.0 GiB", "note"),
    ],
)
def test_a_note_on_a_device_is_called_a_choice_only_where_it_is_one(note: str, title: str) -> None:
    job = host_job()
    plain = job.device
    job.device = lambda rank: replace(plain(rank), note=note)
    assert re.search(rf"{title} +{re.escape(note)}", screen(snapshot(job), (160, 40)))


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
    "unavailable": ("driver and library differ in version (NVML 18); reboot", "unavailable", "reboot"),
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
