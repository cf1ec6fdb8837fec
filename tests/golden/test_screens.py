"""Screens as text and as a map of styles. ``RANKTOP_UPDATE_GOLDEN=1`` writes them anew; read the diff."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from dashboard import dashboard
from fake_gpu_jobs import mig_job, stray_job
from fake_job import GIB, FakeJob, fsdp_job, host_job
from golden_screens import compare, picture

from ranktop.probes.reading import NvLink


@pytest.fixture(autouse=True)
def colour(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_FILTERS"):
        monkeypatch.delenv(name, raising=False)


SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_ranks_in_colour(size: tuple[int, int]) -> None:
    width, height = size
    text = asyncio.run(picture(fsdp_job(), size, "down", "down", "down"))
    compare(f"ranks-{width}x{height}", text)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_ranks_without_colour(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    width, height = size
    text = asyncio.run(picture(fsdp_job(), size, "down", "down", "down"))
    legend = text.rsplit("\n\n", 1)[1]
    assert "#" not in legend
    assert "color" not in legend
    compare(f"ranks-{width}x{height}-nocolor", text)


def test_ranks_in_ascii() -> None:
    text = asyncio.run(picture(fsdp_job(), (80, 24), "down", "down", "down", ascii=True))
    assert text.isascii()
    compare("ranks-80x24-ascii", text)


def test_ranks_light() -> None:
    compare("ranks-80x24-light", asyncio.run(picture(fsdp_job(), (80, 24), theme="light")))


def test_ranks_in_the_terminals_own_colours() -> None:
    text = asyncio.run(picture(fsdp_job(), (80, 24), theme="ansi"))
    assert "#" not in text.rsplit("\n\n", 1)[1]
    compare("ranks-80x24-ansi", text)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
def test_host_demo(size: tuple[int, int]) -> None:
    width, height = size
    compare(f"host-{width}x{height}", asyncio.run(picture(host_job(), size)))


def test_help() -> None:
    async def help_text() -> str:
        async with dashboard(fsdp_job(), (84, 50)) as run:
            await run.press("question_mark")
            return run.text()

    compare("help-84x50", asyncio.run(help_text()))


READ = (
    "total", "used", "free", "process_used", "utilization", "power", "power_limit", "temperature", "sm_clock",
    "memory_clock", "reserved", "throttle", "processes", "process_pid",
)  # fmt: skip
CANT_ASK = "driver and library differ in version (NVML 18); updated while in use: reboot, or reload its module"
STATES: dict[int, dict[str, Any]] = {
    1: {"state": "lost", "age": 12.0, "reasons": {
        "device": "the GPU is lost: it does not answer on the bus (NVML 15); see dmesg for Xid 79; reset or reboot"
    }},
    2: {"state": "reset required", "age": 4.0, "reasons": {
        "device": "the GPU needs a reset (NVML 16); nvidia-smi --gpu-reset, or reboot"
    }},
    3: {"state": "no answer", "age": 12.0, "reasons": {
        "device": "no answer from the driver for 12 s (nvmlDeviceGetPowerUsage)"
    }},
    4: {"state": "unavailable", **dict.fromkeys(READ), "reasons": {
        **dict.fromkeys(READ, CANT_ASK), "device": CANT_ASK
    }},
}  # fmt: skip


def sick_job() -> FakeJob:
    """Eight GPUs of which four are in trouble, and one has links and memory that are not what they should be."""
    job = named(fsdp_job())
    job.reading_changes.update(STATES)
    job.reading_changes[5] = {
        "power": None, "utilization": None,
        "reasons": dict.fromkeys(("power", "utilization"), "not permitted (NVML 4); ask who runs the node"),
    }  # fmt: skip
    links = tuple(NvLink(link, link != 9, 0, 0, 340 if link == 14 else 0) for link in range(18))
    job.detail_changes[7] = {"nvlinks": links, "pcie_width": 4, "ecc_uncorrected": 2, "remap_pending": True}
    job.reading_changes[7] = {"throttle": ("software power cap", "hardware thermal slowdown"), "temperature": 88}
    return job


def named(job: FakeJob) -> FakeJob:
    """Give the devices UUIDs of the usual length."""
    plain = job.device
    job.device = lambda rank: replace(plain(rank), uuid=f"GPU-5e1c0f2{rank}-9d31-4a77-b0c2-7f1de2c3a4b5")
    return job


def unified_job() -> FakeJob:
    """A GB10, which has no memory of its own: what it lacks is said, what the host has is said to be the host's."""
    job = named(fsdp_job(1))
    plain, total = job.device, 120 * GIB
    lacks = "not supported by this device (NVML 3)"
    shard = 4 * GIB
    job.specs[0] = replace(
        job.specs[0], states=(shard, shard, 2 * shard), activations=20 * GIB, other=9 * GIB, total=total, power=92.0
    )
    job.device = lambda rank: replace(plain(rank), name="NVIDIA GB10", total=total, unified=True)
    job.reading_changes[0] = {
        "reserved": None, "power_limit": None, "reasons": dict.fromkeys(("reserved", "power_limit"), lacks),
    }  # fmt: skip
    gone = (
        "memory_utilization", "memory_temperature", "temperature_memory_max", "max_memory_clock", "ecc_enabled",
        "ecc_corrected", "ecc_uncorrected", "ecc_aggregate_corrected", "ecc_aggregate_uncorrected", "pcie_generation",
        "pcie_width", "pcie_max_generation", "pcie_max_width", "pcie_tx", "pcie_rx", "pcie_replays", "power_min_limit",
        "power_max_limit", "power_default_limit", "remapped_corrected", "remapped_uncorrected",
    )  # fmt: skip
    job.detail_changes[0] = {**dict.fromkeys(gone), "nvlinks": (), "reasons": dict.fromkeys(gone, lacks)}
    return job


DEVICES: dict[str, tuple[Callable[[], FakeJob], int]] = {
    "h100": (lambda: named(fsdp_job()), 0), "mig": (mig_job, 1), "lost": (sick_job, 1), "sick": (sick_job, 7),
    "strays": (stray_job, 0), "unified": (unified_job, 0), "host": (host_job, 0),
}  # fmt: skip


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
@pytest.mark.parametrize("name", DEVICES)
def test_device(name: str, size: tuple[int, int]) -> None:
    make, rank = DEVICES[name]
    width, height = size
    compare(f"device-{name}-{width}x{height}", asyncio.run(picture(make(), size, *["down"] * rank, "d")))


def test_device_in_ascii() -> None:
    text = asyncio.run(picture(sick_job(), (80, 24), *["down"] * 7, "d", ascii=True))
    assert text.isascii()
    compare("device-sick-80x24-ascii", text)


def test_device_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = asyncio.run(picture(stray_job(), (120, 40), "d"))
    assert "#" not in text.rsplit("\n\n", 1)[1]
    compare("device-strays-120x40-nocolor", text)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
def test_ranks_with_devices_in_trouble(size: tuple[int, int]) -> None:
    width, height = size
    compare(f"ranks-trouble-{width}x{height}", asyncio.run(picture(sick_job(), size, "down")))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
def test_ranks_with_strays(size: tuple[int, int]) -> None:
    width, height = size
    compare(f"ranks-strays-{width}x{height}", asyncio.run(picture(stray_job(), size)))


def test_the_device_beside_the_memory_on_a_narrow_screen() -> None:
    compare("ranks-device-page-80x24", asyncio.run(picture(sick_job(), (80, 24), *["down"] * 7, "tab")))


def test_ranks_of_a_device_that_shares_the_hosts_memory() -> None:
    text = asyncio.run(picture(unified_job(), (80, 24), "tab"))
    assert " of 120.00 shared" in text
    assert "the device has no memory of its own: it shares the host's" in text
    compare("ranks-unified-80x24", text)


def test_ranks_on_mig_instances() -> None:
    compare("ranks-mig-120x40", asyncio.run(picture(mig_job(), (120, 40), "down", "tab")))
