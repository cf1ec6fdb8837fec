"""When a rank tells its device in detail, and when it takes a process of the driver's list for itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import h100_detail

from ranktop.agent import own_device
from ranktop.agent.own_device import BESIDE, REPEAT, SETTLED, OwnDevice
from ranktop.probes.reading import (
    AllocatorReading,
    DeviceDetail,
    DeviceIdentity,
    DeviceProcess,
    DeviceReading,
    NvLink,
)
from ranktop.wire.schema import Device

NATIVE = AllocatorReading(allocated=10, reserved=20, ooms=0, backend="native")
MALLOC = AllocatorReading(allocated=10, reserved=20, backend="malloc")
CUDA = torch.device("cuda", 0)


@dataclass
class Probe:
    """A device whose answers are the test's."""

    kind: str = "cuda"
    told: DeviceDetail | None = None
    reading: DeviceReading = field(default_factory=DeviceReading)
    opened: list[tuple[object, float, object]] = field(default_factory=list)
    closed: int = 0

    def identity(self) -> DeviceIdentity:
        return DeviceIdentity(kind=self.kind)

    def read(self) -> DeviceReading:
        return self.reading

    def detail(self) -> DeviceDetail | None:
        return self.told

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    found = Probe()

    def open_device(device: object, *, interval: float, share: object) -> Probe:
        found.opened.append((device, interval, share))
        return found

    monkeypatch.setattr(own_device, "open_device", open_device)
    return found


def opened(probe: Probe, folder: Path) -> OwnDevice:
    device = OwnDevice(3, 0.5, folder)
    device.choose(CUDA)
    return device


def test_it_is_opened_once_with_the_jobs_folder_and_anew_for_another_device(probe: Probe, tmp_path: Path) -> None:
    device = OwnDevice(3, 0.5, tmp_path)
    assert (device.identity().kind, device.news(NATIVE), device.read(NATIVE).state) == ("unknown", None, "pending")
    device.choose(CUDA)
    device.choose(CUDA)
    assert probe.opened == [(CUDA, 0.5, tmp_path)]
    device.choose(torch.device("cuda", 1))
    assert (len(probe.opened), probe.closed) == (2, 1)


def test_the_detail_is_told_at_first_and_every_few_intervals(probe: Probe, tmp_path: Path) -> None:
    device = opened(probe, tmp_path)
    before = replace(NATIVE, backend="")
    assert device.news(before) is None, "neither the driver nor CUDA has said anything yet"
    probe.told = h100_detail(0)
    told = [device.news(NATIVE) is not None for _ in range(3 * REPEAT)]
    assert [number for number, sent in enumerate(told) if sent] == [0, REPEAT, 2 * REPEAT]


def test_a_host_tells_of_its_allocator_only(probe: Probe, tmp_path: Path) -> None:
    probe.kind = "host"
    assert opened(probe, tmp_path).news(MALLOC) == Device(rank=3, detail=DeviceDetail(), allocator=MALLOC)


MOVES: list[dict[str, Any]] = [
    *({"energy": 5.0}, {"pcie_tx": 3}, {"memory_utilization": 99}, {"memory_temperature": 1}, {"ages": {"fan": 9.0}}),
    {"nvlinks": tuple(NvLink(link, up=True, replay=7, recovery=0, crc=1) for link in range(18))},
]
NEWS: list[dict[str, Any]] = [
    *({"ecc_uncorrected": 1}, {"remap_pending": True}, {"recovery": "reset"}, {"performance_state": 2}),
    *({"compute_mode": "prohibited"}, {"energy": None}, {"graphics_processes": (DeviceProcess(1),)}),
    *({"nvlinks": ()}, {"nvlinks": tuple(NvLink(link, up=link != 3) for link in range(18))}),
    {"reasons": {"fan": "no permission (NVML 4)"}},
]


@pytest.mark.parametrize("changes", MOVES, ids=str)
def test_what_always_moves_is_no_news(changes: dict[str, Any], probe: Probe, tmp_path: Path) -> None:
    device, probe.told = opened(probe, tmp_path), h100_detail(0)
    assert device.news(NATIVE) is not None
    probe.told = replace(probe.told, **changes)
    assert [device.news(replace(NATIVE, allocated=number)) for number in range(REPEAT - 1)] == [None] * (REPEAT - 1)
    message = device.news(NATIVE)
    assert message is not None
    assert message.detail == probe.told, "but it is told when its turn comes"


@pytest.mark.parametrize("changes", NEWS, ids=str)
def test_what_is_steady_is_told_at_once_when_it_changes(changes: dict[str, Any], probe: Probe, tmp_path: Path) -> None:
    device, probe.told = opened(probe, tmp_path), h100_detail(0)
    assert device.news(NATIVE) is not None
    probe.told = replace(probe.told, **changes)
    message = device.news(NATIVE)
    assert message is not None
    assert message.detail == probe.told
    assert device.news(NATIVE) is None


@pytest.mark.parametrize("changes", [{"backend": "cudaMallocAsync"}, {"expandable": True}, {"ooms": 1}], ids=str)
def test_another_backend_and_an_out_of_memory_are_told_at_once(
    changes: dict[str, Any], probe: Probe, tmp_path: Path
) -> None:
    device, probe.told = opened(probe, tmp_path), h100_detail(0)
    assert device.news(NATIVE) is not None
    assert device.news(replace(NATIVE, **changes)) is not None


def test_a_process_is_taken_for_this_one_only_once_it_must_be_listed(probe: Probe, tmp_path: Path) -> None:
    probe.reading = DeviceReading(processes=(DeviceProcess(2**30, 50),), reasons={"process_used": "not listed"})
    device = opened(probe, tmp_path)
    # At first the list may be older than this process's context: what it has is another's.
    assert [device.read(NATIVE).process_used for _ in range(SETTLED - 1)] == [None] * (SETTLED - 1)
    found = device.read(NATIVE)
    assert (found.process_used, found.process_pid) == (50, 2**30)
    assert device.read(replace(NATIVE, reserved=0)).process_used is None
    assert device.read(NATIVE).process_used is None, "an allocator that was emptied begins again"


def test_mallocs_numbers_beside_a_gpu_are_said_to_be(probe: Probe, tmp_path: Path) -> None:
    device = opened(probe, tmp_path)
    assert device.notes(MALLOC) == (BESIDE,)
    assert device.notes(NATIVE) == ()
    probe.kind = "host"
    assert device.notes(MALLOC) == ()


def test_a_device_that_cannot_be_opened_costs_its_own_values_and_is_tried_again(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opening = vars(own_device)["open_device"]

    def no_thread(*_: object, **__: object) -> Probe:
        raise RuntimeError("can't start new thread")

    device = OwnDevice(0, 1.0, tmp_path)
    monkeypatch.setattr(own_device, "open_device", no_thread)
    device.choose(CUDA)
    reading = device.read(NATIVE)
    assert reading.state == "unavailable"
    assert "can't start new thread" in reading.reasons["device"]
    assert device.news(NATIVE) is None
    monkeypatch.setattr(own_device, "open_device", opening)
    device.choose(CUDA)
    assert device.read(NATIVE).state == "ok"
    assert len(probe.opened) == 1
