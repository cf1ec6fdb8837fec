"""What a device is: asked when it is found, and again in turn as long as something of it is missing."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ranktop.probes.nvml.codes import NO_PERMISSION, PARENT_REFUSED, Absent, code_of, explain
from ranktop.probes.nvml.getter import Subject, first
from ranktop.probes.nvml.library import Library
from ranktop.probes.reading import DeviceIdentity, MigInstance

_MOST_INSTANCES: Final = 8


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that a device is."""

    name: str
    """The NVML function."""
    field: str
    """Of DeviceIdentity."""
    known: Callable[[DeviceIdentity], bool]
    ask: Callable[[Subject, DeviceIdentity], DeviceIdentity]
    calls: int = 1
    """At most, when asked anew."""


def describe(fact: Fact, subject: Subject, identity: DeviceIdentity) -> DeviceIdentity:
    """Return the identity with one more fact, or with the reason why it can't be had."""
    if fact.known(identity):
        return identity
    reasons = {name: reason for name, reason in identity.reasons.items() if name != fact.field}
    identity = replace(identity, reasons=reasons)
    try:
        return fact.ask(subject, identity)
    except Exception as error:
        return _without(identity, fact.field, subject, error)


def _without(identity: DeviceIdentity, field: str, subject: Subject, error: Exception) -> DeviceIdentity:
    refused = subject.mig and code_of(error) == NO_PERMISSION
    return replace(identity, reasons={**identity.reasons, field: PARENT_REFUSED if refused else explain(error)})


def pci_bus_id(text: str) -> str:
    """Return NVML's bus id as Linux writes it.

    >>> pci_bus_id("00000000:81:00.0")
    '0000:81:00.0'
    """
    found = re.fullmatch(r"(?:([0-9a-fA-F]+):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?", text.strip("\0 "))
    if found is None:
        raise Absent(f"the driver says {text!r}")
    domain, bus, device = (int(part or "0", 16) for part in found.groups()[:3])
    if not (domain or bus or device):
        raise Absent("the driver says 0000:00:00.0, which is no GPU's (WSL hides it)")
    return f"{domain:04x}:{bus:02x}:{device:02x}.{found.group(4) or 0}"


def _name(subject: Subject, identity: DeviceIdentity) -> DeviceIdentity:
    return replace(identity, name=subject.nvml.text("nvmlDeviceGetName", subject.handle))


def _index(subject: Subject, identity: DeviceIdentity) -> DeviceIdentity:
    return replace(identity, nvml_index=int(subject.nvml.nvmlDeviceGetIndex(subject.gpu())))


def _pci(subject: Subject, identity: DeviceIdentity) -> DeviceIdentity:
    info = subject.nvml.nvmlDeviceGetPciInfo(subject.gpu())
    return replace(identity, pci_bus_id=pci_bus_id(str(info.busId)))


def _numa(subject: Subject, identity: DeviceIdentity) -> DeviceIdentity:
    # The kernel's is the node that is near to the device; NVML's is the node that the device's own memory is,
    # where it is one, so it is asked last.
    if identity.pci_bus_id is not None:
        try:
            node = int(Path(f"/sys/bus/pci/devices/{identity.pci_bus_id}/numa_node").read_text(encoding="ascii"))
        except (OSError, ValueError):
            pass
        else:
            if node < 0:
                raise Absent("the system assigns the device to no NUMA node")
            return replace(identity, numa_node=node)
    node = int(subject.nvml.nvmlDeviceGetNumaNodeId(subject.gpu()))
    if not 0 <= node < 1 << 16:
        raise Absent(f"the driver says node {node}")
    return replace(identity, numa_node=node)


def _driver(subject: Subject, identity: DeviceIdentity) -> DeviceIdentity:
    return replace(identity, driver=subject.nvml.text("nvmlSystemGetDriverVersion"))


def _cuda(subject: Subject, identity: DeviceIdentity) -> DeviceIdentity:
    nvml = subject.nvml
    ways = (lambda: nvml.nvmlSystemGetCudaDriverVersion_v2(), lambda: nvml.nvmlSystemGetCudaDriverVersion())
    return replace(identity, cuda_driver=cuda_version(int(first(subject, "cuda", ways)[1])))


def cuda_version(number: int) -> str:
    """Return NVML's number of a CUDA version as people write it; raises Absent where it is none.

    >>> cuda_version(12080)
    '12.8'
    """
    if number < 1000:
        raise Absent(f"the driver says {number}")
    return f"{number // 1000}.{number % 1000 // 10}"


def _mig_known(identity: DeviceIdentity) -> bool:
    mig = identity.mig
    return mig is not None and None not in (mig.parent_uuid, mig.index, mig.gpu_instance, mig.compute_instance)


def _mig(subject: Subject, identity: DeviceIdentity) -> DeviceIdentity:
    mig = identity.mig or MigInstance()
    for ask in (_parent, _ids, _place):
        mig, problem = _asked(ask, subject, mig)
        if problem is not None:
            identity = _without(identity, "mig", subject, problem)
    profile = mig.profile
    if not profile:
        found = re.search(r"\bMIG (\S+)$", identity.name)
        profile = found.group(1) if found else _profile(subject)
    subject.gpu_instance, subject.compute_instance = mig.gpu_instance, mig.compute_instance
    return replace(identity, mig=replace(mig, profile=profile))


def _asked(
    ask: Callable[[Subject, MigInstance], MigInstance], subject: Subject, mig: MigInstance
) -> tuple[MigInstance, Exception | None]:
    try:
        return ask(subject, mig), None
    except Exception as error:
        return mig, error


def _parent(subject: Subject, mig: MigInstance) -> MigInstance:
    if mig.parent_uuid is not None:
        return mig
    old = re.fullmatch(r"MIG-(GPU-[^/]+)/\d+/\d+", subject.uuid)
    if old:
        return replace(mig, parent_uuid=old.group(1))
    return replace(mig, parent_uuid=subject.nvml.text("nvmlDeviceGetUUID", subject.gpu()))


def _ids(subject: Subject, mig: MigInstance) -> MigInstance:
    nvml = subject.nvml
    if mig.gpu_instance is None:
        mig = replace(mig, gpu_instance=int(nvml.nvmlDeviceGetGpuInstanceId(subject.handle)))
    if mig.compute_instance is None:
        mig = replace(mig, compute_instance=int(nvml.nvmlDeviceGetComputeInstanceId(subject.handle)))
    return mig


def _place(subject: Subject, mig: MigInstance) -> MigInstance:
    """Look through the parent's instances, as far as calls are left; indexes may have gaps."""
    if mig.index is not None:
        return mig
    nvml, parent = subject.nvml, subject.gpu()
    most = most_instances(nvml, parent)
    while subject.mig_cursor < most and subject.left >= 2:
        index = subject.mig_cursor
        subject.mig_cursor += 1
        with contextlib.suppress(Exception):
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            if nvml.text("nvmlDeviceGetUUID", handle) == subject.uuid:
                return replace(mig, index=index)
    if subject.mig_cursor >= most:
        subject.mig_cursor = 0
    return mig


def most_instances(nvml: Library, gpu: Any) -> int:
    """Return how many indexes of MIG instances a GPU may have; those that it has may have gaps."""
    try:
        return int(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)) or _MOST_INSTANCES
    except Exception:
        return _MOST_INSTANCES


def _profile(subject: Subject) -> str:
    """Return the profile's name from what the instance has, e.g. ``1g.10gb``."""
    try:
        has = subject.nvml.nvmlDeviceGetAttributes(subject.handle)
        gpu, compute = int(has.gpuInstanceSliceCount), int(has.computeInstanceSliceCount)
        size = math.ceil(int(has.memorySizeMB) / 1024)
    except Exception:
        return ""
    if not gpu:
        return ""
    return f"{gpu}g.{size}gb" if compute in (0, gpu) else f"{compute}c.{gpu}g.{size}gb"


FACTS: Final = (
    Fact("nvmlDeviceGetName", "name", lambda identity: bool(identity.name), _name),
    Fact(
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "mig",
        lambda identity: not (identity.uuid or "").startswith("MIG-") or _mig_known(identity),
        _mig,
        calls=3,
    ),
    Fact("nvmlDeviceGetIndex", "nvml_index", lambda identity: identity.nvml_index is not None, _index),
    Fact("nvmlDeviceGetPciInfo", "pci_bus_id", lambda identity: identity.pci_bus_id is not None, _pci),
    Fact("nvmlDeviceGetNumaNodeId", "numa_node", lambda identity: identity.numa_node is not None, _numa),
    Fact("nvmlSystemGetDriverVersion", "driver", lambda identity: bool(identity.driver), _driver),
    Fact("nvmlSystemGetCudaDriverVersion", "cuda_driver", lambda identity: bool(identity.cuda_driver), _cuda),
)
