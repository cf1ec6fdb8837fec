"""The devices: one line for each, with what it is, and what is wrong with it."""

from __future__ import annotations

from typing import Any, Final

from ranktop.tui.doctor.check import Check, Result, failed, passed, warned
from ranktop.tui.doctor.container import runtimes
from ranktop.tui.doctor.driver import report
from ranktop.tui.doctor.scene import Scene, plural, ranges, size
from ranktop.tui.doctor.signs import signs

_CURES: Final = {
    "lost": "see `dmesg` for Xid 79; reset the GPU or reboot the machine",
    "reset required": "sudo nvidia-smi --gpu-reset -i {index}, or reboot",
    "no answer": "see `dmesg` for Xid lines; reset the GPU (nvidia-smi --gpu-reset -i {index}) or reboot",
    "slow": "see whether another program keeps the driver busy, and `dmesg` for Xid lines about {bus}",
    "unavailable": "see `dmesg` for Xid and NVRM lines about {bus}",
}
_NOT_GIVEN: Final = "inside a container only the devices given to it may be asked"
_DRAIN: Final = "drain P2P"
"""The only recovery action under which a device may go on being used."""


def look_at_count(scene: Scene) -> Result | list[Result]:
    """Compare how many devices the driver lists with how many are on the PCI bus."""
    said, seen = report(scene), signs(scene)
    if (said.get("init") or {}).get("state") != "ok":
        return []
    count = int(said["count"])
    facts = {"count": count, "pci": list(seen.pci)}
    if count == 0:
        advice = "give the container its GPUs (docker: --gpus all)" if runtimes(scene) else "see `dmesg` for NVRM lines"
        return (failed if seen.pci else warned)("the driver lists no device", advice, **facts)
    if len(seen.pci) > count and not runtimes(scene):
        found = f"{plural(count, 'device')} of the {len(seen.pci)} NVIDIA GPUs on the PCI bus"
        return warned(found, "see `dmesg` for the one that the driver could not start", **facts)
    return passed(f"{plural(count, 'device')} listed", **facts)


def look_at_devices(scene: Scene) -> list[Result]:
    """Tell each device's identity, and what keeps it from being used."""
    return [device_result(device) for device in report(scene).get("devices") or ()]


def device_result(device: dict[str, Any]) -> Result:
    """Return one device's line."""
    label = f"GPU {device['index']}"
    found = _identity(device)
    facts = {**device, "label": label}
    if device["state"] != "ok":
        why = _why(device)
        cure = _CURES[device["state"]].format(index=device["index"], bus=device.get("pci_bus_id") or "it")
        if device.get("code") == 4:
            cure = _NOT_GIVEN
        make = warned if device["state"] == "slow" else failed
        return make(f"{why}; {found}" if found else why, cure, **facts)
    problems = _problems(device)
    bad = [problem for problem in problems if problem[0]]
    if problems:
        severe, _, advice = (bad or problems)[0]
        make = failed if severe else warned
        return make(f"{'; '.join(p[1] for p in problems)}; {found}", advice.format(index=device["index"]), **facts)
    return passed(found, **facts)


def _why(device: dict[str, Any]) -> str:
    if device["state"] == "no answer":
        called = f" ({device['calling']})" if device.get("calling") else ""
        return f"no answer from the driver for {device['seconds']:.0f} s{called}"
    if device["state"] == "slow":
        return f"slow: {plural(device['answered'], 'question')} answered in {device['seconds']:.0f} s"
    return str(device.get("words") or device["state"]).partition("; ")[0]


def _identity(device: dict[str, Any]) -> str:
    parts = [str(device[key]) for key in ("name", "pci_bus_id") if device.get(key)]
    if device.get("total"):
        parts.append(size(device["total"]) + (" shared with the host" if device.get("unified") else ""))
    instances = device.get("mig")
    if instances:
        parts.append(f"MIG: {plural(len(instances), 'instance')}")
    if device.get("uuid"):
        parts.append(str(device["uuid"]))
    return ", ".join(parts)


def _problems(device: dict[str, Any]) -> list[tuple[bool, str, str]]:
    """Return (keeps it from working, words, advice) of a device that answers."""
    found: list[tuple[bool, str, str]] = []
    recovery = device.get("recovery")
    if recovery not in (None, "none"):
        found.append((recovery != _DRAIN, f"the driver asks for: {recovery}", "end its jobs, then do what it asks for"))
    if device.get("remap_failed"):
        found.append((True, "a broken row of its memory could not be replaced", "have the device replaced"))
    if device.get("remap_pending"):
        reset = "end its jobs, then sudo nvidia-smi --gpu-reset -i {index}"
        found.append((False, "a row of its memory waits to be replaced by a reset", reset))
    if device.get("ecc_uncorrected"):
        found.append(
            (False, plural(device["ecc_uncorrected"], "uncorrected memory error"), "see `dmesg` for Xid 48, 63, 94, 95")
        )
    if device.get("compute_mode") == "prohibited":
        found.append((True, "compute mode is prohibited", "sudo nvidia-smi -c 0 -i {index}"))
    memory = device.get("errors", {}).get("memory")
    if memory and not device.get("mig"):  # A container that has an instance need not be given the whole GPU.
        meaning, _, cure = str(memory["words"]).partition("; ")
        found.append((False, f"memory: {meaning}", _NOT_GIVEN if memory["code"] == 4 else cure or "see `dmesg`"))
    if not device.get("uuid"):
        why = str(device.get("errors", {}).get("uuid", {}).get("words", "not told")).partition("; ")[0]
        found.append(
            (False, f"UUID: {why}; no rank can be found on it", "see `dmesg`; restart the container if this is one")
        )
    if device.get("mig_mode") and not device.get("mig"):
        found.append((False, "MIG is on without an instance", "sudo nvidia-smi mig -i {index} -cgi ... -C, or -mig 0"))
    return found


def look_at_persistence(scene: Scene) -> Result | list[Result]:
    """Hint at persistence mode: without it the driver unloads a device whenever nobody uses it."""
    devices = [device for device in report(scene).get("devices") or () if device.get("persistence") is not None]
    off = [int(device["index"]) for device in devices if not device["persistence"]]
    if not devices:
        return []
    if off:
        found = f"off on GPU {ranges(off)}: the first program to use it waits for seconds"
        return warned(found, "sudo nvidia-smi -pm 1, or enable nvidia-persistenced", off=off)
    return passed("on", off=[])


CHECKS = (
    Check("driver.count", "devices", look_at_count),
    Check("driver.device", "GPU", look_at_devices),
    Check("driver.persistence", "persistence", look_at_persistence),
)
