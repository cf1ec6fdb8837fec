"""Which devices a CUDA process started here would see, by the variables that choose them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ranktop.probes.visible import Seen, Visible, resolve
from ranktop.tui.doctor.check import Check, Result, failed, passed, skipped, warned
from ranktop.tui.doctor.container import runtimes
from ranktop.tui.doctor.driver import report
from ranktop.tui.doctor.scene import Scene, plural, ranges

_GIVEN_NONE = ("", "void", "none")


def look_at_cuda(scene: Scene) -> Result:
    """Resolve CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER on the devices that the driver lists."""
    visible, order = scene.environ.get("CUDA_VISIBLE_DEVICES"), scene.environ.get("CUDA_DEVICE_ORDER")
    facts: dict[str, object] = {
        "CUDA_VISIBLE_DEVICES": visible,
        "CUDA_DEVICE_ORDER": order,
        "devices": None,
        "notes": [],
    }
    named = "CUDA_VISIBLE_DEVICES is not set" if visible is None else f"CUDA_VISIBLE_DEVICES={visible!r}"
    listed = [device for device in report(scene).get("devices") or () if device.get("uuid")]
    if not listed:
        return skipped(f"{named}; the driver lists no device to resolve it on", **facts)
    found = resolve(visible, order, _named([seen(device) for device in listed]))
    left_out = [int(device["index"]) for device in report(scene).get("devices") or () if not device.get("uuid")]
    if left_out:
        words = f"GPU {ranges(left_out)} did not tell what it is and is left out: indexes may be others"
        found = Visible(found.devices, (*found.notes, words))
    facts.update(devices=[_ordinal(entry) for entry in found.devices], notes=list(found.notes))
    return _judged(named, visible, found, len(listed), facts)


def seen(device: dict[str, Any]) -> Seen:
    """Return a device of NVML's report as the resolution takes it."""
    instances = device.get("mig") or ()
    return Seen(
        nvml_index=device["index"],
        uuid=device["uuid"],
        pci_bus_id=device.get("pci_bus_id"),
        name=device.get("name") or "",
        mig=tuple(instance["uuid"] for instance in instances),
        instances=tuple((instance["gpu_instance"], instance["compute_instance"]) for instance in instances),
        mig_enabled=bool(device.get("mig_mode")),
    )


def _named(devices: list[Seen]) -> list[Seen]:
    """Take a device that does not tell its name for one of the others' kind, where that is one kind."""
    names = {device.name for device in devices if device.name}
    if len(names) != 1:
        return devices
    return [replace(device, name=next(iter(names))) for device in devices]


def _ordinal(entry: Any) -> dict[str, object]:
    return {
        "cuda": entry.ordinal,
        "uuid": entry.uuid,
        "nvml_index": entry.device.nvml_index,
        "mig": entry.mig,
        "certain": entry.certain,
    }


def _judged(named: str, visible: str | None, found: Visible, listed: int, facts: dict[str, object]) -> Result:
    # First what decides.
    notes = "; ".join(sorted(found.notes, key=lambda note: "sees no device" not in note))
    if not found.devices:
        if visible is not None and visible.strip() in ("", "-1"):
            return warned(f"{named}: {notes or 'CUDA sees no device'}", "unset CUDA_VISIBLE_DEVICES", **facts)
        return failed(f"{named}: {notes or 'CUDA sees no device'}", "name devices that `nvidia-smi -L` lists", **facts)
    words = _numbering(found)
    if notes:
        order = visible is None and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in notes
        advice = (
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID" if order else "name each device once, best by UUID (`nvidia-smi -L`)"
        )
        return warned(f"{named}: {words}; {notes}", advice, **facts)
    return passed(f"{named}: {plural(len(found.devices), 'device')} of {listed}, {words}", **facts)


def _numbering(found: Visible) -> str:
    pairs = [(entry.ordinal, entry.device.nvml_index) for entry in found.devices]
    if len(pairs) > 1 and all(cuda == nvml for cuda, nvml in pairs):
        return f"cuda:0-{len(pairs) - 1} are GPU 0-{len(pairs) - 1}"
    shown = [f"cuda:{e.ordinal} is {'MIG of ' if e.mig else ''}GPU {e.device.nvml_index}" for e in found.devices[:8]]
    return ", ".join(shown) + (", ..." if len(pairs) > 8 else "")


def look_at_container(scene: Scene) -> Result:
    """Tell what NVIDIA_VISIBLE_DEVICES, by which container runtimes hand out devices, says."""
    value = scene.environ.get("NVIDIA_VISIBLE_DEVICES")
    facts = {"NVIDIA_VISIBLE_DEVICES": value}
    if value is None:
        return passed("NVIDIA_VISIBLE_DEVICES is not set", **facts)
    if not runtimes(scene):
        return passed(
            f"NVIDIA_VISIBLE_DEVICES={value}: only container runtimes read it, and this is no container", **facts
        )
    if value.strip() in _GIVEN_NONE:
        advice = "start the container with its GPUs (docker: --gpus all, or -e NVIDIA_VISIBLE_DEVICES=all)"
        return warned(f"NVIDIA_VISIBLE_DEVICES={value!r}: no GPU was given to this container", advice, **facts)
    listed = len(report(scene).get("devices") or ())
    wanted = [entry for entry in value.split(",") if entry.strip()]
    if value != "all" and listed and len(wanted) > listed and ":" not in value:
        found = f"NVIDIA_VISIBLE_DEVICES={value} names {len(wanted)}, the driver lists {plural(listed, 'device')}"
        return warned(found, "restart the container: it may have lost devices", **facts)
    return passed(f"NVIDIA_VISIBLE_DEVICES={value}", **facts)


CHECKS = (
    Check("visible.cuda", "CUDA", look_at_cuda),
    Check("visible.container", "container", look_at_container),
)
