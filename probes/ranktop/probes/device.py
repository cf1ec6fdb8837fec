"""Opens the device that a rank computes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ranktop.probes.allocator import cuda_index
from ranktop.probes.host import HostDevice
from ranktop.probes.nvml import NvmlDevice, Target, Variables
from ranktop.probes.reading import DeviceProbe
from ranktop.probes.visible import LEGACY_MIG

if TYPE_CHECKING:
    import torch


def open_device(torch_device: torch.device | None, *, interval: float = 1.0, share: Path | None = None) -> DeviceProbe:
    """Return the probe of ``torch_device``: a CUDA device by the UUID that torch reports, else this host.

    Never raises and never touches CUDA first: until the job has initialised it, and where there is no driver or no such
    device, the probe's readings say so in ``reasons``. ``interval``: seconds between two readings. ``share``: folder
    in which the ranks of this host share one reading of a device.

    The environment variable ``RANKTOP_DEVICE`` overrides the choice: ``host``, ``nvml:<uuid>`` (as nvidia-smi -L prints
    it, or the beginning of it), ``nvml:<index>`` (NVML's) or ``nvml:local_rank`` (the device whose NVML index is
    LOCAL_RANK). Another value is ignored, and the identity says so.
    """
    override = os.environ.get("RANKTOP_DEVICE", "").strip()
    if override == "host":
        return HostDevice(note="RANKTOP_DEVICE=host")
    open_nvml = partial(NvmlDevice, gap=0.95 * interval, share=share)
    chosen = chosen_by(override)
    if chosen is not None:
        return open_nvml(chosen, note=f"RANKTOP_DEVICE={override}")
    note = f"RANKTOP_DEVICE={override} is not understood" if override else ""
    if torch_device is not None and torch_device.type == "cuda":
        index = cuda_index(torch_device)
        return open_nvml(lambda: locate(index), note=note)
    if not note and torch_device is not None and torch_device.type not in ("cpu", "meta"):
        note = f"{torch_device.type} devices can't be read yet"
    return HostDevice(note=note)


def chosen_by(override: str) -> Callable[[], Target | str] | None:
    """Return how to find the NVML device that a value of ``RANKTOP_DEVICE`` names; None when it names none."""
    kind, _, which = override.partition(":")
    if kind != "nvml" or not which:
        return None
    if which == "local_rank":
        return _by_local_rank
    if which.isascii() and which.isdigit():
        return lambda: Target(index=int(which))
    return lambda: Target(uuids=(which,))


def locate(index: int) -> Target | str:
    """Return torch's CUDA device ``index`` by UUID, or why it can't be told yet; raises LookupError if it never can."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return "CUDA is not initialised in this process yet"
    if getattr(torch.version, "hip", None):
        raise LookupError("a ROCm device: only NVIDIA's can be read yet")
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    visible, order = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
    integrated = getattr(properties, "is_integrated", None)
    return Target(
        uuids=() if uuid is None else uuid_names(uuid, index, visible or ""),
        visible=None if uuid is not None else Variables(visible, order, f"torch {torch.__version__}"),
        name=str(properties.name),
        total=int(properties.total_memory),
        torch_index=index,
        integrated=None if integrated is None else bool(integrated),
    )


def uuid_names(uuid: object, index: int, visible: str) -> tuple[str, ...]:
    """Return NVML's possible names of a device, best first.

    ``uuid`` is what torch reports: the bare bytes in hexadecimal, of the MIG instance where there is one. It decides:
    ``visible`` (``CUDA_VISIBLE_DEVICES``) may have changed since CUDA was initialised. Only a name of the form in which
    drivers before R470 call instances, which has no bytes of its own, is tried after it.

    >>> uuid_names("3a4f", 0, "")
    ('GPU-3a4f', 'MIG-3a4f')
    """
    bare = str(uuid).strip()
    for prefix in ("GPU-", "MIG-"):
        bare = bare.removeprefix(prefix)
    entries = [entry.strip() for entry in visible.split(",")]
    named = entries[index] if index < len(entries) else ""
    older = (named,) if LEGACY_MIG.fullmatch(named) else ()
    return (f"GPU-{bare}", f"MIG-{bare}", *older)


def _by_local_rank() -> Target | str:
    text = os.environ.get("LOCAL_RANK", "0")
    if not (text.isascii() and text.isdigit()):
        raise LookupError(f"LOCAL_RANK={text} is no number")
    return Target(index=int(text))
