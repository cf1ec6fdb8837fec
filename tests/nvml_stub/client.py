"""A process that reads devices over the stand-in library, told line by line what to do and answering in JSON."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ranktop.probes.device import open_device
from ranktop.probes.nvml import NvmlDevice, Target
from ranktop.probes.reading import DeviceProbe

Told = dict[str, dict[str, Any]]
"""``reading``, ``detail`` (empty while there is none) and ``identity`` of one probe."""


@dataclass(slots=True)
class Desk:
    """The probes of this process and what they said when they were well."""

    probes: list[DeviceProbe] = field(default_factory=list)
    before: list[Told] = field(default_factory=list)


def main() -> None:
    """Serve until the input ends; then end as a script does, waiting for nothing."""
    desk = Desk()
    for line in sys.stdin:
        print(json.dumps(serve(desk, json.loads(line))), flush=True)


def serve(desk: Desk, order: dict[str, Any]) -> dict[str, Any]:
    """Do one thing and return what came of it, with the seconds that it took."""
    started = time.monotonic()
    result: Any = {}
    probes = desk.probes
    if order["do"] == "open":
        target = Target(uuids=tuple(order["uuids"]))
        probes.append(NvmlDevice(lambda: target, **order.get("options", {})))
    elif order["do"] == "reopen":
        target = Target(uuids=tuple(order["uuids"]))
        probes[order["probe"]].close()
        probes[order["probe"]] = NvmlDevice(lambda: target, **order.get("options", {}))
    elif order["do"] == "open_device":
        probes.append(open_device(None))
    elif order["do"] == "read":
        result = msgspec.to_builtins(probes[order["probe"]].read())
    elif order["do"] == "told":
        result = told(probes[order["probe"]])
    elif order["do"] == "remember":
        desk.before = [told(probe) for probe in probes]
        result = desk.before
    elif order["do"] == "watch":
        result = watch(desk, order)
    elif order["do"] == "fork":
        result = {"code": read_in_child(probes[order["probe"]])}
    elif order["do"] == "close":
        probes[order["probe"]].close()
    return {"result": result, "seconds": time.monotonic() - started}


def read_in_child(probe: DeviceProbe) -> int:
    """Read a probe in a forked process, as a data loader's worker might; returns that process's wait status."""
    with warnings.catch_warnings():
        # Newer Pythons say that a fork beside threads is risky: just that is to be seen.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        probe.read()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def told(probe: DeviceProbe) -> Told:
    """Return all that a probe says, after reading it."""
    reading, detail = probe.read(), probe.detail()
    return {
        "reading": msgspec.to_builtins(reading),
        "detail": {} if detail is None else msgspec.to_builtins(detail),
        "identity": msgspec.to_builtins(probe.identity()),
    }


def watch(desk: Desk, order: dict[str, Any]) -> dict[str, Any]:
    """Read one probe until it meets a condition, then the others once: what has changed of them?

    The condition is one of ``says`` (field -> a part of its reason), ``identity`` (likewise of the identity's fields),
    ``state``, ``same`` (as remembered) or ``fresh`` (every value has been read since).
    """
    probe, met = desk.probes[order["probe"]], False
    started = time.monotonic()
    condition = condition_of(order, desk.before[order["probe"]], started)
    while not met and time.monotonic() < started + order.get("seconds", 5.0):
        # The probe's thread is to have the interpreter meanwhile.
        time.sleep(0.0005)
        met = condition(probe)
    now = told(probe)
    changed = {}
    for number, (other, before) in enumerate(zip(desk.probes, desk.before, strict=True)):
        if other is not probe:
            changed[number] = difference(before, told(other))
    return {"met": met, "told": now, "changed": {n: found for n, found in changed.items() if found}}


def condition_of(order: dict[str, Any], before: Told, started: float) -> Callable[[DeviceProbe], bool]:
    """Return the check of an order that was given at a time."""
    if order.get("fresh"):
        return lambda probe: oldest(told(probe)) < time.monotonic() - started
    if "identity" in order:
        return lambda probe: identity_says(probe, order["identity"])
    if "state" in order:
        return lambda probe: probe.read().state == order["state"]
    if order.get("same"):
        return lambda probe: same(probe, before)
    return lambda probe: all(words in reasons(probe).get(name, "") for name, words in order.get("says", {}).items())


def identity_says(probe: DeviceProbe, said: dict[str, str]) -> bool:
    """Read a probe and return whether it is well, and its identity gives these reasons."""
    if probe.read().state != "ok" or probe.identity().total is None:
        return False
    return all(words in probe.identity().reasons.get(name, "") for name, words in said.items())


def same(probe: DeviceProbe, before: Told) -> bool:
    """Return whether a probe tells the same as before: the reasons are looked at first, which is cheap."""
    known = {**before["detail"].get("reasons", {}), **before["reading"]["reasons"]}
    return reasons(probe) == known and not difference(before, told(probe))


def reasons(probe: DeviceProbe) -> dict[str, str]:
    """Read a probe and return why fields of the reading or the detail are unknown."""
    reading, detail = probe.read(), probe.detail()
    return {**(detail.reasons if detail else {}), **reading.reasons}


def oldest(one: Told) -> float:
    """Return the age of the oldest value; infinite while there is more to come."""
    reading, detail = one["reading"], one["detail"]
    if "two samples" in detail.get("reasons", {}).get("gpm_sm", ""):
        return float("inf")
    ages: list[float] = [reading["ages"].get(name, reading["age"]) for name in reading if reading[name] is not None]
    ages += detail.get("ages", {"nothing yet": float("inf")}).values()
    return max(ages)


def difference(before: Told, now: Told) -> dict[str, list[Any]]:
    """Return the fields of reading, detail and identity that have other values or reasons, ages aside."""
    return {
        f"{part}.{name}": [before[part].get(name), now[part].get(name)]
        for part in ("reading", "detail", "identity")
        for name in {**before[part], **now[part]}
        if name not in ("age", "ages") and before[part].get(name) != now[part].get(name)
    }


if __name__ == "__main__":
    main()
