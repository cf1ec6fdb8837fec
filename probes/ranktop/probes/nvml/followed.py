"""A reading that another process of this host has made, as this process's own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ranktop.probes.nvml.codes import Absent
from ranktop.probes.nvml.processes import of_this_process
from ranktop.probes.nvml.sharing import Shared
from ranktop.probes.reading import DeviceDetail, DeviceIdentity, DeviceReading


class Followed:
    """What the reader has told, with the process fields made for this process."""

    def __init__(self, told: Shared, pids: Collection[int]) -> None:
        """``pids``: this process's ids."""
        self._told = told
        self._reading = _with_own(told, pids)

    def identity(self, own: DeviceIdentity) -> DeviceIdentity:
        """Return the device's identity with what is this process's own."""
        return replace(self._told.identity, torch_index=own.torch_index, note=own.note)

    def reading(self, now: float, hung: str = "") -> DeviceReading:
        """Return the reading, as much older as it is now; ``hung``: what to say of a call of this process's own."""
        since = max(0.0, now - self._told.stamp)
        reading = self._reading
        reading = replace(reading, age=reading.age + since, ages=_older(reading.ages, since))
        return replace(reading, state="no answer", reasons={**reading.reasons, "device": hung}) if hung else reading

    def detail(self, now: float) -> DeviceDetail | None:
        """Return the detail, likewise."""
        detail = self._told.detail
        return detail and replace(detail, ages=_older(detail.ages, max(0.0, now - self._told.stamp)))


def _older(ages: dict[str, float], seconds: float) -> dict[str, float]:
    return {name: age + seconds for name, age in ages.items()}


def _with_own(told: Shared, pids: Collection[int]) -> DeviceReading:
    names = ("processes", "process_used", "process_pid")
    if told.entries is None:
        # What the reading has of the reader's own process is not this one's.
        why = told.reading.reasons.get("processes", "the driver's list is being read anew")
        reasons = {**told.reading.reasons, **{name: told.reading.reasons.get(name, why) for name in names}}
        return replace(told.reading, processes=None, process_used=None, process_pid=None, reasons=reasons)
    values = of_this_process(told.entries, pids)
    reasons = {name: reason for name, reason in told.reading.reasons.items() if name not in names}
    for name, value in list(values.items()):
        if isinstance(value, Absent):
            reasons[name], values[name] = str(value), None
    ages = told.reading.ages
    if "processes" in ages:
        ages = {**ages, **dict.fromkeys(names, ages["processes"])}
    return replace(told.reading, reasons=reasons, ages=ages, **values)
