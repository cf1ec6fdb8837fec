"""What NVML would say of a simulated rank's device."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from ranktop.agent.simulation.job import FIRST_PID, H100, Setup
from ranktop.agent.simulation.memory import MIB
from ranktop.budget.terms import Memory
from ranktop.probes.nvml.codes import GPU_IS_LOST, words
from ranktop.probes.reading import AllocatorReading, DeviceDetail, DeviceProcess, DeviceReading, NvLink

CLOCK: Final = 1755
"""MHz under load."""

MOST_CLOCK: Final = 1980

GPM: Final = ("gpm_sm", "gpm_occupancy", "gpm_tensor", "gpm_dram")

SOUND: Final = DeviceDetail(
    memory_utilization=41,
    performance_state=0,
    memory_temperature=68,
    temperature_slowdown=87,
    temperature_shutdown=92,
    temperature_max=85,
    temperature_memory_max=95,
    power_min_limit=200.0,
    power_max_limit=700.0,
    power_default_limit=700.0,
    max_sm_clock=MOST_CLOCK,
    max_memory_clock=2619,
    energy=1.62e9,
    persistence=True,
    compute_mode="default",
    pcie_generation=5,
    pcie_max_generation=5,
    pcie_width=16,
    pcie_max_width=16,
    pcie_tx=1_240_000_000,
    pcie_rx=310_000_000,
    pcie_replays=0,
    nvlinks=tuple(NvLink(link, up=True, replay=0, recovery=0, crc=0) for link in range(18)),
    ecc_enabled=True,
    ecc_corrected=0,
    ecc_uncorrected=0,
    ecc_aggregate_corrected=2,
    ecc_aggregate_uncorrected=0,
    remapped_corrected=0,
    remapped_uncorrected=0,
    remap_pending=False,
    remap_failed=False,
    recovery="none",
    graphics_processes=(),
    mps_processes=(),
    reasons={
        "fan": "not supported by this device",
        **dict.fromkeys(GPM, "off; RANKTOP_GPM=1 turns it on"),
    },
)
"""A sound H100 SXM."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the device does."""

    step: int
    waiting: bool = False
    """It spins in a collective that does not end."""
    idle: bool = False
    """Nothing is launched on it."""
    lost_for: float | None = None
    """Seconds since it was lost."""


class Sensors:
    """Readings of one rank's device."""

    def __init__(self, setup: Setup, rank: int, strays: tuple[int, ...]) -> None:
        self._setup, self._rank, self._strays = setup, rank, strays
        self._faults = {fault.name: fault for fault in setup.of(rank)}
        rng = random.Random(f"{setup.seed} device {rank}")
        self._power, self._temperature = rng.gauss(645.0, 8.0), 60 + rng.randrange(6)
        self._last: DeviceReading | None = None

    def read(self, memory: Memory, load: Load, second: int) -> DeviceReading:
        """Return a reading; ``second`` names the time, for the flicker of the sensors."""
        if load.lost_for is not None and self._last is not None:
            reasons = {"device": words(GPU_IS_LOST)}
            return replace(self._last, state="lost", age=load.lost_for, reasons=reasons)
        rng = random.Random(f"{self._setup.seed} sensors {self._rank} {second}")
        used, other = memory.used() or 0, memory.other or 0
        own, pid = used - other, FIRST_PID + self._rank
        extra = [DeviceProcess(FIRST_PID + stray, other // len(self._strays)) for stray in self._strays if other]
        power, clock, temperature, utilization = self._power, CLOCK, self._temperature, 96
        throttle = self._faults.get("throttle")
        why: tuple[str, ...] = ()
        if load.idle:
            power, clock, temperature, utilization = 118.0, MOST_CLOCK, temperature - 18, 0
        elif load.waiting:
            power, clock, temperature, utilization = 255.0, MOST_CLOCK, temperature - 9, 100
        elif throttle is not None and throttle.at(load.step):
            power, temperature = power / (1 + throttle.by), 87
            clock, why = int(CLOCK / (1 + throttle.by)), ("hardware thermal slowdown",)
        self._last = DeviceReading(
            total=H100,
            used=used,
            free=memory.free,
            process_used=own,
            utilization=max(0, min(100, utilization + (rng.randrange(-2, 3) if 0 < utilization < 100 else 0))),
            power=round(power + rng.gauss(0, 5.0), 3),
            power_limit=700.0,
            temperature=temperature + rng.randrange(2),
            sm_clock=clock - 15 * rng.randrange(2),
            memory_clock=2619,
            reserved=552 * MIB,
            throttle=why,
            processes=(DeviceProcess(pid, own), *extra),
            process_pid=pid,
        )
        return self._last

    def detail(self, second: float, step: int) -> DeviceDetail:
        """Return what is asked more seldom."""
        moving = replace(
            SOUND,
            energy=1.62e9 + 650.0 * second,
            pcie_tx=1_240_000_000 + 1_000_000 * (self._rank % 7),
            memory_temperature=68 + self._rank % 4,
        )
        pcie = self._faults.get("pcie")
        if pcie is not None and pcie.at(step):
            return replace(moving, pcie_generation=1, pcie_width=4, pcie_tx=640_000_000, pcie_replays=37 * step)
        return moving


def allocator(memory: Memory, reserved: int, inactive_split: int, retries: int) -> AllocatorReading:
    """Return all counters of the allocator, ``memory`` being what lies there at the peak."""
    held = reserved - (memory.cache or 0)
    return AllocatorReading(
        allocated=held,
        reserved=reserved,
        peak_allocated=held,
        inactive_split=inactive_split,
        retries=retries,
        ooms=0,
        backend="native",
        active=held + 4 * MIB,
        requested=held - 7 * MIB,
        segments=412,
        largest_free=min(64 * MIB, memory.cache or 0),
    )
