"""Devices in trouble, held down or carrying other ranks: what is said, and when nothing."""

from __future__ import annotations

import pytest
from hand_made import at, evidence, found, gpu, rank, the

from ranktop.probes.reading import DeviceIdentity, DeviceProcess
from ranktop.tui.session.findings.device import device
from ranktop.tui.session.findings.strays import strays
from ranktop.tui.session.findings.throttle import throttle
from ranktop.tui.session.rank_view import RankView

MIB = 2**20


@pytest.mark.parametrize("rule", [device, throttle, strays])
def test_sound_devices_and_hosts_raise_nothing(rule: object) -> None:
    assert callable(rule)
    assert found(rule, *(rank(number) for number in range(4))) == []
    assert found(rule, rank(0, card={"device": DeviceIdentity(kind="host")}, device={"sm_clock": None})) == []


@pytest.mark.parametrize(
    ("state", "severity", "words"),
    [
        ("lost", "critical", "the GPU is lost (for 12 s)"),
        ("reset required", "critical", "the GPU needs a reset"),
        ("no answer", "warning", "the driver does not answer for this GPU (values are 12 s old)"),
        ("unavailable", "warning", "the GPU can't be asked"),
    ],
)
def test_each_trouble_has_its_sentence_and_weight(state: str, severity: str, words: str) -> None:
    reading: dict[str, object] = {"state": state, "age": 11.6}
    if state in ("lost", "reset required"):
        reading.update(dict.fromkeys(("sm_clock", "temperature", "power", "throttle")))
    if state in ("reset required", "unavailable"):
        reading["age"] = 0.0
    one = the(device, rank(0), rank(1, device=reading))
    assert (one.severity, one.ranks, one.subject) == (severity, (1,), state)
    assert one.sentence.startswith(f"rank 1: {words}"), one.sentence
    assert (evidence(one)["GPU"], evidence(one)["PCI bus id"]) == ("GPU-1", "0000:11:00.0")
    assert one.advice


def test_ranks_that_share_a_device_are_told_together() -> None:
    shared = {"device": gpu(0)}
    one = the(device, *(rank(number, card=shared, device={"state": "unavailable"}) for number in (0, 1)), rank(2))
    assert one.ranks == (0, 1)
    assert one.sentence == "ranks 0, 1: the GPU can't be asked (values are 0.4 s old)"


def test_what_ails_a_working_device_is_one_finding() -> None:
    ill = {"ecc_uncorrected": 2, "remap_pending": True, "remap_failed": None, "recovery": "reset"}
    one = the(device, rank(0), rank(1, detail=ill))
    assert one.sentence == (
        "rank 1: this GPU works but ails: the driver asks for a reset, 2 uncorrected ECC errors, "
        "a row of memory waits to be replaced by a reset"
    )
    assert (one.severity, one.subject, one.short) == ("warning", "ailing", "reset asked")
    assert found(device, rank(0), rank(1, detail=ill, age=20.0)) == [], "old news of a silent rank"


def hot(number: int, **reading: object) -> RankView:
    return rank(number, device={"throttle": ("hardware thermal slowdown",), "temperature": 91, **reading})


def test_heat_that_holds_a_clock_down_is_a_warning() -> None:
    one = the(throttle, rank(0), rank(1), rank(2), hot(3, sm_clock=1200))
    assert one.sentence == (
        "rank 3: this GPU is slowed down: hardware thermal slowdown, SM at 1,200 of 1,980 MHz, 91 °C; check its cooling"
    )
    assert (one.severity, one.short, one.confidence) == ("warning", "too hot", "medium")
    assert evidence(one)["median SM clock of its peers"] == 1755


def test_a_node_whose_gpus_are_hot_is_one_finding() -> None:
    one = the(throttle, *(hot(number, sm_clock=1200 + number) for number in range(4)), *(rank(9 + n) for n in range(4)))
    assert one.sentence == (
        "ranks 0-3: 4 GPUs of n0 are slowed down: hardware thermal slowdown, SM down to 1,200 MHz, up to 91 °C; "
        "check the node's cooling and power supply"
    )
    assert one.ranks == (0, 1, 2, 3)
    assert len(found(throttle, *(hot(number, sm_clock=1200) for number in range(3)), rank(8))) == 3


def test_a_busy_gpu_at_its_power_limit_or_at_full_clock_is_none() -> None:
    capped = rank(1, device={"throttle": ("software power cap",), "sm_clock": 1200})
    assert found(throttle, rank(0), capped) == []
    assert found(throttle, rank(0), hot(1, sm_clock=1965)) == []


def test_a_device_slower_than_its_peers_counts_where_its_highest_clock_is_unknown() -> None:
    unknown = {"max_sm_clock": None}
    peers = [rank(number, detail=unknown) for number in range(3)]

    def slow(clock: int | None) -> RankView:
        return rank(3, device={"throttle": ("hardware slowdown",), "sm_clock": clock}, detail=unknown)

    assert found(throttle, *peers, slow(1740)) == []
    assert the(throttle, *peers, slow(1500)).confidence == "medium"
    assert the(throttle, *peers, slow(None)).confidence == "low"
    assert the(throttle, slow(1500)).confidence == "low", "nothing to hold it against"


def test_an_old_reading_says_nothing_of_now() -> None:
    assert found(throttle, rank(0), hot(1, sm_clock=1200, ages={"throttle": 30.0})) == []
    silent = rank(1, device={"throttle": ("hardware slowdown",), "sm_clock": 900}, age=30.0)
    assert found(throttle, rank(0), silent) == []


def test_a_device_with_the_contexts_of_others_is_one_finding() -> None:
    here = tuple(DeviceProcess(100 + number, 500 * MIB) for number in range(8))
    one = the(strays, rank(0, device={"processes": here}), *(rank(number) for number in range(1, 8)))
    assert one.ranks == (0,)
    assert one.sentence == (
        "ranks 1-7 hold 3.4 GiB on the GPU of rank 0: set_device missing, or torch.load without map_location"
    )
    assert (one.short, evidence(one)["they hold"]) == ("7 strays", 7 * 500 * MIB)
    assert "set_device" in one.advice


def test_ranks_that_share_a_device_are_no_strays_and_strangers_to_the_job_neither() -> None:
    both = (DeviceProcess(100, MIB), DeviceProcess(101, MIB), DeviceProcess(4711, MIB))
    shared = [rank(number, card={"device": gpu(0)}, device={"processes": both}) for number in (0, 1)]
    assert found(strays, *shared, rank(2)) == []
    third = (*both, DeviceProcess(102, MIB))
    shared = [rank(number, card={"device": gpu(0)}, device={"processes": third}) for number in (0, 1)]
    (one,) = strays(at([*shared, rank(2)]))
    assert (one.ranks, one.short) == ((0, 1), "1 stray")
