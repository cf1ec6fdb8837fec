"""Opens the device that a rank computes on."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ranktop.probes.allocator import cuda_index
from ranktop.probes.host import HostDevice
from ranktop.probes.nvml import NvmlDevice, Target
from ranktop.probes.reading import DeviceProbe

if TYPE_CHECKING:
    import torch


def open_device(torch_device: torch.device | None) -> DeviceProbe:
    """Return the probe of ``torch_device``: a CUDA device by the UUID that torch reports, else this host.

    Never raises and never touches CUDA first: until the job has initialised it, and where there is no
    driver or no such device, the probe's readings say so in ``reasons``.

    The environment variable ``RANKTOP_DEVICE`` overrides the choice: ``host``, ``nvml:<uuid>`` (as
    nvidia-smi -L prints it), or ``nvml:local_rank`` (the device whose NVML index is LOCAL_RANK). Another
    value is ignored, and the readings say so.
    """
    override = os.environ.get("RANKTOP_DEVICE", "").strip()
    if override == "host":
        return HostDevice(note="RANKTOP_DEVICE=host")
    kind, _, which = override.partition(":")
    if kind == "nvml" and which == "local_rank":
        return NvmlDevice(_by_local_rank)
    if kind == "nvml" and which:
        return NvmlDevice(lambda: Target(uuids=(which,)))
    if torch_device is not None and torch_device.type == "cuda":
        index = cuda_index(torch_device)
        return NvmlDevice(lambda: locate(index))
    note = f"RANKTOP_DEVICE={override} is not understood" if override else ""
    if not note and torch_device is not None and torch_device.type not in ("cpu", "meta"):
        note = f"{torch_device.type} devices can't be read yet"
    return HostDevice(note=note)


def locate(index: int) -> Target | str:
    """Return torch's CUDA device ``index`` by UUID, or why it can't be told (yet)."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return "CUDA is not initialised in this process yet"
    if getattr(torch.version, "hip", None):
        return "a ROCm device: only NVIDIA's can be read yet"
    properties = torch.cuda.get_device_properties(index)
    uuids = uuid_names(getattr(properties, "uuid", None), index, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    if not uuids:
        return f"torch {torch.__version__} does not tell the device's UUID (2.4 and newer do)"
    return Target(
        uuids=uuids,
        name=str(properties.name),
        total=int(properties.total_memory),
        torch_index=index,
    )


def uuid_names(uuid: object, index: int, visible: str) -> tuple[str, ...]:
    """Return NVML's possible names of a device, best first.

    ``uuid`` is what torch reports: the bare bytes in hexadecimal, of the MIG instance where there is one.
    Without it (None) only a full name within ``visible`` (``CUDA_VISIBLE_DEVICES``) helps.

    >>> uuid_names("3a4f", 0, "")
    ('GPU-3a4f', 'MIG-3a4f')
    """
    entries = [entry.strip() for entry in visible.split(",")]
    named = entries[index] if index < len(entries) else ""
    names: list[str] = []
    if named.startswith("MIG-"):
        names.append(named)
    if uuid is not None:
        bare = str(uuid).strip()
        for prefix in ("GPU-", "MIG-"):
            bare = bare.removeprefix(prefix)
        names += [f"GPU-{bare}", f"MIG-{bare}"]
    elif named.startswith("GPU-"):
        names.append(named)
    return tuple(dict.fromkeys(names))


def _by_local_rank() -> Target | str:
    text = os.environ.get("LOCAL_RANK", "0")
    return Target(index=int(text)) if text.isdigit() else f"LOCAL_RANK={text} is no number"
