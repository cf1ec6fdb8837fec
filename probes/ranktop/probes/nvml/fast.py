"""What is asked of a device in every round, each getter by itself: one that fails takes nothing else along."""

from __future__ import annotations

from typing import Final

from ranktop.probes.nvml.getter import Getter, Subject, Values, first, number
from ranktop.probes.nvml.limits import checked, degrees, megahertz, percent, watts
from ranktop.probes.nvml.memory import ask_memory
from ranktop.probes.nvml.processes import COMPUTE

_REASONS: Final = (
    "idle",
    "application clocks",
    "software power cap",
    "hardware slowdown",
    "sync boost",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
    "display clocks",
    "board limit",
    "reliability",
)
"""By bit (nvml.h, ``nvmlClocksEventReasons``)."""


def reasons_in_words(bits: int) -> tuple[str, ...]:
    """Return the clock event reasons of a bit mask.

    >>> reasons_in_words(0b101)
    ('idle', 'software power cap')
    """
    known = [word for bit, word in enumerate(_REASONS) if bits >> bit & 1]
    rest = [f"unknown reason {1 << bit:#x}" for bit in range(len(_REASONS), 64) if bits >> bit & 1]
    return (*known, *rest)


def _utilization(subject: Subject) -> Values:
    rates = subject.nvml.nvmlDeviceGetUtilizationRates(subject.handle)
    return {
        "utilization": checked(percent, int(rates.gpu)),
        "memory_utilization": checked(percent, int(rates.memory)),
    }


def _temperature(subject: Subject) -> Values:
    nvml, handle = subject.nvml, subject.gpu()
    sensor = nvml.NVML_TEMPERATURE_GPU
    # The plain one is announced to go with CUDA 14; older drivers have no other.
    ways = (
        lambda: nvml.nvmlDeviceGetTemperature(handle, sensor),
        lambda: nvml.nvmlDeviceGetTemperatureV(handle, sensor),
    )
    return {"temperature": degrees(int(first(subject, "temperature", ways)[1]))}


MEMORY: Final = Getter(
    "nvmlDeviceGetMemoryInfo", ("total", "used", "free", "reserved"), ask_memory, calls=2, of_whole=False
)
FAST: Final = (
    MEMORY,
    COMPUTE,
    Getter(
        "nvmlDeviceGetUtilizationRates",
        ("utilization", "memory_utilization"),
        _utilization,
        of_whole=False,
        hint="of a MIG instance RANKTOP_GPM=1 tells how busy it is",
    ),
    number("nvmlDeviceGetPowerUsage", "power", watts),
    Getter("nvmlDeviceGetTemperature", ("temperature",), _temperature),
    number("nvmlDeviceGetClockInfo", "sm_clock", megahertz, "NVML_CLOCK_SM"),
    number("nvmlDeviceGetClockInfo", "memory_clock", megahertz, "NVML_CLOCK_MEM"),
    number(
        "nvmlDeviceGetCurrentClocksEventReasons",
        "throttle",
        reasons_in_words,
        ways=("nvmlDeviceGetCurrentClocksThrottleReasons",),
    ),
)
"""Nine calls: the list of processes takes two."""
