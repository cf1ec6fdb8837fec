"""This rank's device: opened once it is known, read every interval, told in detail when there is news."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranktop.probes.device import open_device
from ranktop.probes.nvml.processes import own_pids
from ranktop.probes.processes import own
from ranktop.probes.reading import (
    AllocatorReading,
    DeviceDetail,
    DeviceIdentity,
    DeviceProbe,
    DeviceReading,
)
from ranktop.wire.schema import Device

if TYPE_CHECKING:
    import torch

REPEAT: Final = 10
"""Intervals after which the detail is sent again though nothing else has changed than what always does."""

SETTLED: Final = 3
"""Samples for which the allocator must have held something before a process is taken for this one: by then it is in the
driver's list, so that another is not mistaken for it."""

MOVING: Final = frozenset(
    {
        *("memory_utilization", "memory_temperature", "energy", "fan", "pcie_tx", "pcie_rx", "pcie_replays"),
        *("gpm_sm", "gpm_occupancy", "gpm_tensor", "gpm_dram", "nvlinks", "ages"),
    }
)
"""Fields of DeviceDetail that change all the time: by themselves they are no news."""

_STEADY: Final = tuple(field.name for field in fields(DeviceDetail) if field.name not in MOVING)

NO_DEVICE: Final = DeviceReading(
    state="pending",
    reasons=dict.fromkeys(("device", "total", "used", "free"), "no model has run yet: the rank's device is not known"),
)

UNKNOWN: Final = DeviceIdentity(kind="unknown")

BESIDE: Final = (
    "memory by category is the host's, as malloc counts it, beside a GPU that RANKTOP_DEVICE names: the sum is that "
    "GPU's, the parts are not on it"
)


class OwnDevice:
    """The device of this rank. Belongs to the sampling thread."""

    def __init__(self, rank: int, interval: float, share: Path) -> None:
        """``share``: folder in which ranks of one node find each other to read one device once."""
        self._rank, self._interval, self._share = rank, interval, share
        self._probe: DeviceProbe | None = None
        self._opened: torch.device | None = None
        self._missing = NO_DEVICE
        """What is said while there is no probe."""
        self._pids = own_pids()
        self._held = 0
        """Samples since the allocator first held something."""
        self._told: tuple[object, ...] = ()
        self._since_told = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """This process's ids in all PID namespaces that it can see."""
        return self._pids

    def choose(self, device: torch.device | None) -> None:
        """Open the device once it is known: at once for a torch without CUDA, else when the model has run."""
        if device is not None and device == self._opened:
            return
        torch = sys.modules["torch"]
        if device is None and torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
            device = torch.device("cpu")
        if device is not None and device != self._opened:
            self.close()
            self._probe = self._opened = None
            try:
                self._probe = open_device(device, interval=self._interval, share=self._share)
            except Exception as error:  # e.g. no further thread can be started: the rank's other numbers stay
                why = f"the device can't be read from this process: {type(error).__name__}: {error}"
                reasons = dict.fromkeys(NO_DEVICE.reasons, why)
                self._missing = DeviceReading(state="unavailable", reasons=reasons)
            else:
                self._opened = device

    def identity(self) -> DeviceIdentity:
        """Return which device it is, as far as that is known."""
        return self._probe.identity() if self._probe is not None else UNKNOWN

    def notes(self, allocator: AllocatorReading) -> tuple[str, ...]:
        """Return what is to be said of device and allocator together."""
        return (BESIDE,) if self.identity().kind == "cuda" and allocator.backend == "malloc" else ()

    def read(self, allocator: AllocatorReading) -> DeviceReading:
        """Return the newest values, with this process's bytes also where only its allocator tells which it is."""
        reading = self._probe.read() if self._probe is not None else self._missing
        self._held = self._held + 1 if allocator.reserved else 0
        return own(reading, allocator, self._pids) if self._held >= SETTLED else reading

    def news(self, allocator: AllocatorReading) -> Device | None:
        """Return the message that is due: at first, when what is steady has changed, and every few intervals."""
        if self._probe is None:
            return None
        detail = self._probe.detail()
        if detail is None and not allocator.backend:
            return None
        key = _key(detail, allocator)
        self._since_told += 1
        if key == self._told and self._since_told < REPEAT:
            return None
        self._told, self._since_told = key, 0
        return Device(rank=self._rank, detail=detail or DeviceDetail(), allocator=allocator)

    def close(self) -> None:
        """Stop asking; never waits."""
        if self._probe is not None:
            self._probe.close()


def _key(detail: DeviceDetail | None, allocator: AllocatorReading) -> tuple[object, ...]:
    """Return what makes a new message worth sending at once when it differs from that of the last one."""
    told = (allocator.backend, allocator.expandable, allocator.ooms, tuple(allocator.elsewhere))
    if detail is None:
        return told
    missing = tuple(getattr(detail, name) is None for name in MOVING)
    links = tuple((link.link, link.up) for link in detail.nvlinks or ())
    return (*told, missing, links, *(getattr(detail, name) for name in _STEADY))
