"""The device and the allocator of a rank in ``ranktop status --json``: each value, or why it is null, and its age.

Units: bytes, bytes a second, percent, watts, degrees Celsius, MHz, joules. A name with a dot is a field of an object;
the same names stand in ``reasons``, ``ages`` and ``of_parent``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from ranktop.probes.reading import AllocatorReading, DeviceDetail, DeviceIdentity, DeviceReading, MigInstance, NvLink
from ranktop.tui.session.processes import abroad, occupants, strays
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot

IDENTITY: Final = (
    *("kind", "uuid", "name", "torch_index", "nvml_index", "pci_bus_id", "mig", "numa_node", "unified"),
    *("driver", "cuda_driver", "total"),
)

READING: Final = {
    "utilization": "utilization",
    "memory_used": "used",
    "memory_reserved": "reserved",
    "memory_free": "free",
    "power": "power",
    "power_limit": "power_limit",
    "temperature": "temperature",
    "clocks.sm": "sm_clock",
    "clocks.memory": "memory_clock",
    "throttle": "throttle",
    "processes": "processes",
}
"""Name here -> field of DeviceReading."""

DETAIL: Final = {
    "clocks.max_sm": "max_sm_clock",
    "clocks.max_memory": "max_memory_clock",
    "pcie.generation": "pcie_generation",
    "pcie.max_generation": "pcie_max_generation",
    "pcie.width": "pcie_width",
    "pcie.max_width": "pcie_max_width",
    "pcie.tx": "pcie_tx",
    "pcie.rx": "pcie_rx",
    "pcie.replays": "pcie_replays",
    "nvlink": "nvlinks",
    "ecc.enabled": "ecc_enabled",
    "ecc.volatile_corrected": "ecc_corrected",
    "ecc.volatile_uncorrected": "ecc_uncorrected",
    "ecc.aggregate_corrected": "ecc_aggregate_corrected",
    "ecc.aggregate_uncorrected": "ecc_aggregate_uncorrected",
    "ecc.remapped_corrected": "remapped_corrected",
    "ecc.remapped_uncorrected": "remapped_uncorrected",
    "ecc.remap_pending": "remap_pending",
    "ecc.remap_failed": "remap_failed",
    "performance_state": "performance_state",
    "memory_utilization": "memory_utilization",
    "memory_temperature": "memory_temperature",
    "thresholds.slowdown": "temperature_slowdown",
    "thresholds.shutdown": "temperature_shutdown",
    "thresholds.max": "temperature_max",
    "thresholds.memory_max": "temperature_memory_max",
    "power_limits.min": "power_min_limit",
    "power_limits.max": "power_max_limit",
    "power_limits.default": "power_default_limit",
    "energy": "energy",
    "fan": "fan",
    "persistence": "persistence",
    "compute_mode": "compute_mode",
    "recovery": "recovery",
}
"""Name here -> field of DeviceDetail."""

GPM: Final = {"sm": "gpm_sm", "occupancy": "gpm_occupancy", "tensor": "gpm_tensor", "dram": "gpm_dram"}

NAMES: Final = {field: name for name, field in {**READING, **DETAIL, **{f"gpm.{k}": v for k, v in GPM.items()}}.items()}
"""Field of DeviceReading or DeviceDetail -> name here."""

COUNTERS: Final = (
    *("allocated", "reserved", "active", "requested", "inactive_split", "segments", "largest_free"),
    *("retries", "ooms", "peak_allocated"),
)

NOT_REPORTED: Final = "this rank has not reported yet"
NOT_TOLD: Final = "the driver does not tell it"


_USUAL: Final = {"mig": "the device is no MIG instance", "torch_index": "torch does not use this device"}
"""Why a field of the identity is null though nothing is wrong."""


class _Sheet:
    """An object in the making: values under dotted names, why those that are null are, the age of the others."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.reasons: dict[str, str] = {}
        self.ages: dict[str, float] = {}

    def put(self, name: str, value: Any, reason: str, age: float | None = None) -> None:
        """Set a value; ``reason`` is why it is null, should it be."""
        target = self.values
        *groups, last = name.split(".")
        for group in groups:
            target = target.setdefault(group, {})
        target[last] = value
        if value is None:
            self.reasons[name] = reason
        elif age is not None:
            self.ages[name] = round(age, 3)


def device_json(view: RankView, snapshot: Snapshot) -> dict[str, Any]:
    """Return the rank's device in the documented form."""
    sheet = _Sheet()
    _identity(sheet, view)
    _reading(sheet, view)
    _detail(sheet, view)
    _gpm(sheet, view)
    _processes(sheet, view, snapshot)
    of_parent = view.detail.of_parent if view.detail is not None else ()
    return {
        **sheet.values,
        "of_parent": [NAMES.get(name, name) for name in of_parent],
        "reasons": sheet.reasons,
        "ages": sheet.ages,
    }


def _identity(sheet: _Sheet, view: RankView) -> None:
    device = view.card.device if view.card is not None else None
    told = view.sample.device.reasons if view.sample is not None else {}
    known = device is not None and device.kind in {"cuda", "host"}
    for name in IDENTITY:
        value = getattr(device, name) if device is not None and known else None
        if name == "total":
            value = view.sample.device.total if view.sample and view.sample.device.total is not None else value
        if name == "mig":
            value = _mig(sheet, device)
        sheet.put(name, None if value == "" else value, _why_no_identity(name, device, told))


def _why_no_identity(name: str, device: DeviceIdentity | None, told: Mapping[str, str]) -> str:
    if device is None:
        return NOT_REPORTED
    if device.kind not in {"cuda", "host"}:
        return told.get("device", "the rank's device is not known yet")
    if device.kind == "host" and name not in {"name", "total"}:
        return "a host has none"
    said = device.reasons.get(name) or told.get(name)
    if name in _USUAL:
        return said or _USUAL[name]
    return said or told.get("device") or NOT_TOLD


def _mig(sheet: _Sheet, device: DeviceIdentity | None) -> dict[str, Any] | None:
    instance = device.mig if device is not None else None
    if instance is None:
        return None
    found: dict[str, Any] = {}
    for field in fields(MigInstance):
        value = getattr(instance, field.name)
        found[field.name] = None if value == "" else value
        if found[field.name] is None:
            sheet.reasons[f"mig.{field.name}"] = NOT_TOLD
    return found


def _reading(sheet: _Sheet, view: RankView) -> None:
    sample = view.sample
    device = sample.device if sample is not None else None
    sheet.put("state", device.state if device is not None else None, NOT_REPORTED)
    # Of its own: while a driver hangs the values stay, so none of their reasons could say it.
    sheet.put("state_reason", _why_state(device) if device is not None else None, NOT_REPORTED)
    late = view.age or 0.0
    for name, field in READING.items():
        value = getattr(device, field) if device is not None else None
        if field == "used" and device is not None and value is not None and device.reserved is not None:
            value = max(0, value - device.reserved)
        if field == "throttle" and value is not None:
            value = list(value)
        reason = device.reasons.get(field) or device.reasons.get("device") if device is not None else NOT_REPORTED
        age = device.ages.get(field, device.age) + late if device is not None else None
        sheet.put(name, value, reason or _host_or(view, NOT_TOLD), age)


def _why_state(device: DeviceReading) -> str:
    return "" if device.state == "ok" else device.reasons.get("device") or NOT_TOLD


def _detail(sheet: _Sheet, view: RankView) -> None:
    detail, late = view.detail, view.detail_age or 0.0
    for name, field in DETAIL.items():
        value = getattr(detail, field) if detail is not None else None
        if field == "nvlinks" and value is not None:
            value = [_link(sheet, link) for link in value]
        age = detail.ages.get(field, 0.0) + late if detail is not None else None
        sheet.put(name, value, _why_no_detail(view, field), age)


def _link(sheet: _Sheet, link: NvLink) -> dict[str, Any]:
    found = {field.name: getattr(link, field.name) for field in fields(NvLink)}
    for name, value in found.items():
        if value is None:
            sheet.reasons[f"nvlink.{name}"] = "the driver does not tell it of every link"
    return found


def _gpm(sheet: _Sheet, view: RankView) -> None:
    detail, late = view.detail, view.detail_age or 0.0
    if detail is None or all(getattr(detail, field) is None for field in GPM.values()):
        sheet.put("gpm", None, _why_no_detail(view, "gpm_sm"))
        return
    for name, field in GPM.items():
        age = detail.ages.get(field, 0.0) + late
        sheet.put(f"gpm.{name}", getattr(detail, field), _why_no_detail(view, field), age)


def _why_no_detail(view: RankView, field: str) -> str:
    detail: DeviceDetail | None = view.detail
    if detail is not None:
        return detail.reasons.get(field) or NOT_TOLD
    if view.sample is None:
        return NOT_REPORTED
    return _host_or(view, view.sample.device.reasons.get("device") or "not asked yet")


def _host_or(view: RankView, words: str) -> str:
    return "a host has none" if view.card is not None and view.card.device.kind == "host" else words


def _processes(sheet: _Sheet, view: RankView, snapshot: Snapshot) -> None:
    """Replace the driver's list by one that names ranks."""
    if sheet.values["processes"] is None:
        return
    listed = occupants(view, snapshot.owners)
    sheet.values["processes"] = [
        {"pid": one.pid, "bytes": one.bytes, "rank": one.rank, "kind": one.kind} for one in listed
    ]
    if any(one.bytes is None for one in listed):
        sheet.reasons["processes.bytes"] = "the driver does not tell it of every process"
    if any(one.rank is None for one in listed):
        sheet.reasons["processes.rank"] = "no rank of this job says that this process is it"


def strays_json(view: RankView, snapshot: Snapshot) -> dict[str, Any]:
    """Return the other ranks of the job with a context on this rank's device, and those on whose device it has one."""
    found = strays(view, snapshot)
    return {
        "here": {"ranks": list(found.ranks), "bytes": found.bytes} if found is not None else {"ranks": [], "bytes": 0},
        "on": [{"rank": rank, "bytes": held} for rank, held in abroad(view, snapshot)],
    }


def allocator_json(view: RankView) -> dict[str, Any]:
    """Return all counters of the rank's allocator in the documented form."""
    if view.allocator is not None:
        return {**counters_json(view.allocator), "age": view.detail_age}
    sheet = _Sheet()
    words = NOT_REPORTED if view.sample is None else "not told yet"
    for name in ("backend", "expandable", *COUNTERS, "elsewhere"):
        sheet.put(name, None, words)
    return {**sheet.values, "reasons": sheet.reasons, "age": None}


def counters_json(reading: AllocatorReading) -> dict[str, Any]:
    """Return all counters of one reading of an allocator, with the reasons for those that are null."""
    sheet = _Sheet()
    before = "" if reading.backend else "CUDA is not initialised in this process"
    sheet.put("backend", reading.backend or None, before)
    sheet.put("expandable", reading.expandable, "")
    for name in COUNTERS:
        sheet.put(name, getattr(reading, name), _why_no_counter(reading, name, before))
    sheet.put("elsewhere", {str(index): held for index, held in reading.elsewhere.items()}, "")
    return {**sheet.values, "reasons": sheet.reasons}


def _why_no_counter(reading: AllocatorReading, name: str, before: str) -> str:
    return reading.reasons.get(name) or before or f"the {reading.backend} allocator does not count it"
