"""The values of one rank's device, each with its age and, where it is unknown, the reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from ranktop.probes.reading import DeviceDetail, DeviceIdentity, DeviceReading
from ranktop.tui.session.rank_view import SILENT_INTERVALS, RankView, device_trouble
from ranktop.tui.view.text import plain

_READING: Final = frozenset(DeviceReading.__dataclass_fields__)
_ALL: Final = (*_READING, *DeviceDetail.__dataclass_fields__)
_SELDOM_INTERVALS: Final = 10 * SILENT_INTERVALS
"""What is asked or sent only every tenth interval is old after as many of its own."""
_SELDOM: Final = frozenset({"power_limit"})
"""Fields of the reading that are asked as seldom as those of the detail."""
_EVERY_ROUND: Final = ("used", "free", "utilization", "power", "temperature", "sm_clock", "memory_clock")
"""Numbers that are asked every round."""
_OF_A_HOST: Final = frozenset({"total", "used", "free", "process_used", "utilization"})
"""Fields that a host has."""
_HARMFUL: Final = ("hardware", "thermal", "brake")

WORDS: Final = {
    "process_used": "own memory", "processes": "processes", "process_pid": "pid", "reserved": "reserved",
    "power_limit": "power limit", "sm_clock": "SM clock", "throttle": "throttle reasons",
    "memory_utilization": "memory bus", "performance_state": "P-state",
    "temperature_slowdown": "slowdown temperature", "temperature_shutdown": "shutdown temperature",
    "temperature_max": "highest temperature", "temperature_memory_max": "highest memory temperature",
    "power_min_limit": "lowest power limit", "power_max_limit": "highest power limit",
    "power_default_limit": "default power limit", "max_sm_clock": "highest SM clock",
    "max_memory_clock": "highest memory clock", "pcie_generation": "PCIe generation",
    "pcie_max_generation": "highest PCIe generation", "pcie_width": "PCIe width",
    "pcie_max_width": "highest PCIe width", "pcie_tx": "PCIe out", "pcie_rx": "PCIe in",
    "pcie_replays": "PCIe replays", "nvlinks": "NVLink",
    "ecc_enabled": "ECC", "ecc_corrected": "corrected errors", "ecc_uncorrected": "uncorrected errors",
    "ecc_aggregate_corrected": "corrected errors in its life",
    "ecc_aggregate_uncorrected": "uncorrected errors in its life", "remapped_corrected": "rows remapped (corrected)",
    "remapped_uncorrected": "rows remapped (uncorrected)", "remap_pending": "pending remaps",
    "remap_failed": "failed remaps", "ooms": "out of memory", "graphics_processes": "graphics processes",
    "mps_processes": "MPS processes", "gpm_sm": "SM activity", "gpm_occupancy": "occupancy",
    "gpm_tensor": "tensor activity", "gpm_dram": "DRAM activity",
}  # fmt: skip
"""Names of fields where the underscores alone would not read well."""


_TOGETHER: Final = {
    "memory": ("used", "free", "reserved", "process_used"),
    "processes": ("processes", "process_pid"),
    "PCIe": (
        "pcie_generation", "pcie_max_generation", "pcie_width", "pcie_max_width", "pcie_tx", "pcie_rx", "pcie_replays",
    ),
    "power limits": ("power_min_limit", "power_max_limit", "power_default_limit"),
    "temperature limits": ("temperature_slowdown", "temperature_shutdown", "temperature_max"),
    "ECC": (
        "ecc_enabled", "ecc_corrected", "ecc_uncorrected", "ecc_aggregate_corrected", "ecc_aggregate_uncorrected",
    ),
    "remapped rows": ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed"),
    "GPM (SM, tensor, DRAM activity)": ("gpm_sm", "gpm_occupancy", "gpm_tensor", "gpm_dram"),
}  # fmt: skip
"""Fields that are told by one name where all of them are unknown for the same reason."""


def named_together(fields: Iterable[str]) -> list[str]:
    """Return the names of fields, those that belong together by one name when all of them are there."""
    left = dict.fromkeys(fields)
    names: list[str] = []
    for name, members in _TOGETHER.items():
        if all(member in left for member in members):
            names.append(name)
            for member in members:
                del left[member]
    return [*map(named, left), *names]


def named(field: str) -> str:
    """Return a field's name in words."""
    return WORDS.get(field) or plain(field).replace("_", " ")


@lru_cache(maxsize=1024)
def in_a_word(reason: str) -> str:
    """Return the beginning of a reason that says what, without the code and the cure."""
    text = plain(reason)
    for mark in (" (", ";", ":", ", "):
        text = text.partition(mark)[0]
    return text.removesuffix(" by this device")


@lru_cache(maxsize=256)
def harmful(words: str) -> bool:
    """Tell whether a throttle reason means that something is wrong: not that it idles or keeps to its power limit."""
    return any(word in words.lower() for word in _HARMFUL)


@dataclass(frozen=True, slots=True)
class Gauges:
    """What one rank's device says, by field of DeviceReading or DeviceDetail."""

    view: RankView
    reading: DeviceReading
    detail: DeviceDetail | None
    interval: float

    @classmethod
    def of(cls, view: RankView) -> Gauges | None:
        """Return the gauges of a rank, None before its first sample."""
        sample = view.sample
        return None if sample is None else cls(view, sample.device, view.detail, max(0.1, sample.interval))

    @property
    def identity(self) -> DeviceIdentity:
        """Which device it is."""
        return self.view.card.device if self.view.card is not None else DeviceIdentity()

    @property
    def trouble(self) -> str:
        """The device's state when it is one to be shown."""
        assert self.view.sample is not None
        return device_trouble(self.view.card, self.view.sample)

    @property
    def read_ago(self) -> float:
        """Return the seconds since the device last gave values."""
        return self.reading.age + (self.view.age or 0.0)

    @property
    def silent_for(self) -> float:
        """Return the seconds since the device last answered anything."""
        return min((self.reading.age, *self.reading.ages.values())) + (self.view.age or 0.0)

    @property
    def oldest(self) -> float | None:
        """Return the age of the oldest known value of those that are asked every round, None where none is known."""
        ages = [age for field in _EVERY_ROUND if self.get(field) is not None and (age := self.age(field)) is not None]
        return max(ages, default=None)

    def get(self, field: str) -> Any:
        """Return a value, None where it is not known."""
        if field in _READING:
            return getattr(self.reading, field)
        return getattr(self.detail, field) if self.detail is not None else None

    def reason(self, field: str) -> str:
        """Return why a value is not known; empty when nobody said."""
        source = self.reading if field in _READING or field == "device" else self.detail
        return plain(source.reasons.get(field, "")) if source is not None else ""

    def age(self, field: str) -> float | None:
        """Return the seconds since a field was read."""
        if field in _READING:
            return (self.view.age or 0.0) + self.reading.ages.get(field, self.reading.age)
        if self.detail is None or self.view.detail_age is None:
            return None
        return self.view.detail_age + self.detail.ages.get(field, 0.0)

    def old(self, *fields: str) -> float | None:
        """Return the age of the oldest of these values that are known, once it is more than it should be."""
        ages = [age for field in fields if self.get(field) is not None and (age := self._beyond(field)) is not None]
        return max(ages, default=None)

    @property
    def fresh(self) -> bool:
        """True while no known value is older than it should be."""
        return self.old(*_ALL) is None

    def _beyond(self, field: str) -> float | None:
        age = self.age(field)
        seldom = field not in _READING or field in _SELDOM
        allowed = (_SELDOM_INTERVALS if seldom else SILENT_INTERVALS) * self.interval
        return age if age is not None and age > allowed else None

    def of_parent(self, *fields: str) -> bool:
        """Tell whether one of these values is the whole GPU's, though the device is a MIG instance."""
        return self.detail is not None and any(field in self.detail.of_parent for field in fields)

    def throttled(self) -> tuple[str, ...]:
        """Return the throttle reasons by which something is wrong."""
        return tuple(plain(words) for words in self.reading.throttle or () if harmful(words))

    def unknown(self, *, detail: bool) -> dict[str, list[str]]:
        """Return reason -> names of the values that are unknown for it; with those of the detail when asked."""
        found: dict[str, list[str]] = {}
        host = self.identity.kind != "cuda"
        for source in (self.reading, self.detail if detail else None):
            for field, reason in source.reasons.items() if source is not None else ():
                of_no_host = host and field not in _OF_A_HOST
                if field == "device" or of_no_host or (field == "total" and self.identity.total is not None):
                    continue
                if getattr(source, field, None) is None:
                    found.setdefault(plain(reason), []).append(field)
        return {reason: named_together(fields) for reason, fields in found.items()}
