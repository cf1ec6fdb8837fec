"""What numbers a device can tell: what is none of them is dropped, and the reason says what came instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ranktop.probes.nvml.codes import Absent

NO_NUMBER: Final = (1 << 32) - 1
NO_NUMBER_64: Final = (1 << 64) - 1
"""What drivers put where they have no number, unsigned (``NVML_VALUE_NOT_AVAILABLE``)."""


def within(lowest: int, highest: int, unit: str) -> Callable[[int], int]:
    """Return a check that lets a number pass which can be one, and raises Absent for another.

    >>> within(0, 100, "%")(7)
    7
    """

    def check(value: int) -> int:
        if not lowest <= value <= highest:
            raise Absent(f"the driver says {value} {unit}".rstrip())
        return value

    return check


percent = within(0, 100, "%")
fan = within(0, 250, "%")
"""Fans may run faster than their full speed (nvmlDeviceGetFanSpeed)."""
degrees = within(-99, 249, "°C")
megahertz = within(0, 100_000, "MHz")
counter = within(0, NO_NUMBER - 1, "")
counter_64 = within(0, NO_NUMBER_64 - 1, "")
_milliwatts = within(0, 100_000_000, "mW")
_kilobytes = within(0, 4_000_000_000, "KB/s")


def watts(milliwatts: int) -> float:
    """Return watts."""
    return _milliwatts(milliwatts) / 1000


def joules(millijoules: int) -> float:
    """Return joules."""
    return counter_64(millijoules) / 1000


def bytes_per_second(kilobytes: int) -> int:
    """Return bytes a second; NVML's KB are of 1000 bytes."""
    return _kilobytes(kilobytes) * 1000


def switch(value: int) -> bool:
    """Return whether something is on (``nvmlEnableState_t``)."""
    if value not in (0, 1):
        raise Absent(f"the driver says {value}")
    return value == 1


def checked(convert: Callable[[int], Any], value: int) -> Any:
    """Return the value that ``convert`` makes, or the Absent that it raises."""
    try:
        return convert(value)
    except Absent as problem:
        return problem
