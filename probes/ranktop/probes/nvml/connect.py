"""Finds a device by its names and gets the handles through which it is asked."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ranktop.probes.nvml.codes import (
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    OTHER_VERSION,
    PARENT_REFUSED,
    code_of,
    explain,
)
from ranktop.probes.nvml.getter import Subject
from ranktop.probes.nvml.library import Library
from ranktop.probes.visible import Seen, resolve

_MOST_GPUS = 256
_BARE = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_FULL_NAME = re.compile(f"(GPU|MIG)-{_BARE}")


@dataclass(frozen=True, slots=True)
class Variables:
    """What tells a process's devices where its framework does not: the environment."""

    visible: str | None
    """``CUDA_VISIBLE_DEVICES``; None: not set."""
    order: str | None
    """``CUDA_DEVICE_ORDER``."""
    framework: str = "torch"
    """Its name and version, to say what does not tell."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which device to read, and what the framework already knows of it."""

    uuids: tuple[str, ...] = ()
    """Names to try, e.g. ``GPU-...`` and ``MIG-...`` of the same bytes; the beginning of one is enough where no other
    device's name begins so."""
    index: int | None = None
    """NVML's index, only where a person chose the device by it."""
    name: str = ""
    total: int | None = None
    """Bytes."""
    torch_index: int | None = None
    integrated: bool | None = None
    """Whether the device has no memory of its own, as far as CUDA tells."""
    visible: Variables | None = None
    """Only where there are no ``uuids``: by what to find the device ``torch_index``."""

    @property
    def key(self) -> str:
        """What names the device to all processes of the host before it has been found; empty where nothing does."""
        # The first: it is the one that names a MIG instance surely.
        bare = re.sub(r"^(GPU|MIG)-", "", self.uuids[0]) if self.uuids else ""
        return bare.lower() if re.fullmatch(_BARE, bare) else ""


def connect(nvml: Library, target: Target) -> Subject:
    """Return the device of ``target`` with its handles; raises NVMLError or LookupError."""
    handle, uuid = _find(nvml, target)
    subject = Subject(nvml, handle, handle, uuid=uuid, integrated=target.integrated)
    if uuid.startswith("MIG-"):
        subject.mig = True
        subject.whole = None
        try:
            subject.whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        except Exception as error:
            refused = code_of(error) == NO_PERMISSION
            subject.whole_problem = PARENT_REFUSED if refused else f"the whole GPU can't be found: {explain(error)}"
    return subject


def _find(nvml: Library, target: Target) -> tuple[Any, str]:
    if target.index is not None:
        handle = _numbered(nvml, target.index)
        return handle, nvml.text("nvmlDeviceGetUUID", handle)
    if target.visible is not None and target.torch_index is not None:
        return _by_variables(nvml, target.visible, target.torch_index)
    problem: Exception = LookupError("the device has no UUID")
    for uuid in target.uuids:
        handle, missing = _named(nvml, uuid)
        if missing is None:
            return handle, uuid
        problem = missing
    if target.uuids and not target.key:
        return _by_beginning(nvml, target.uuids, problem)
    raise problem


def _numbered(nvml: Library, index: int) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        if code_of(error) != INVALID_ARGUMENT:
            raise
        # NVML's word for an index beyond the last.
        raise LookupError(
            f"there is no GPU with NVML index {index} (nvidia-smi -L lists them): {explain(error)}"
        ) from error


def _named(nvml: Library, uuid: str) -> tuple[Any, Exception | None]:
    """Return (handle, None), or (None, error) where there is no such device."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid), None
    except Exception as error:
        if code_of(error) not in (NOT_FOUND, INVALID_ARGUMENT):
            raise
        return None, error


def _by_beginning(nvml: Library, beginnings: tuple[str, ...], problem: Exception) -> tuple[Any, str]:
    found = [
        (handle, uuid)
        for handle, uuid in _all(nvml)
        if any(uuid.lower().startswith(beginning.lower()) for beginning in beginnings)
    ]
    if len(found) > 1:
        names = ", ".join(uuid for _, uuid in found)
        raise LookupError(f"{len(found)} devices have a name that begins with {beginnings[0]}: {names}")
    if not found:
        raise problem
    return found[0]


def _by_variables(nvml: Library, variables: Variables, ordinal: int) -> tuple[Any, str]:
    """Return the device that CUDA numbers ``ordinal``, where that is certain."""
    first = (variables.visible or "").split(",")[0]
    if ordinal == 0 and _FULL_NAME.fullmatch(first):
        # There is a cuda:0, so this is it; the GPU of a MIG instance may not be asked from a container.
        return nvml.nvmlDeviceGetHandleByUUID(first), first
    untold = f"{variables.framework} does not tell the device's UUID (2.4 and newer do)"
    found = resolve(variables.visible, variables.order, [_seen(nvml, index) for index in range(_count(nvml))])
    device, notes = found.at(ordinal), "; ".join(found.notes)
    if device is None:
        raise LookupError(f"{untold}, and by CUDA_VISIBLE_DEVICES there is no cuda:{ordinal}: {notes or 'no such GPU'}")
    if not device.certain or (device.device.mig_enabled and device.mig is None):
        raise LookupError(f"{untold}, and by CUDA_VISIBLE_DEVICES it is not certain: {notes}")
    return nvml.nvmlDeviceGetHandleByUUID(device.uuid), device.uuid


def _seen(nvml: Library, index: int) -> Seen:
    """Describe a GPU; one that does not tell what it is leaves the others' numbers unknown, so it raises."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    mig, ids = [], []
    enabled = _mig_enabled(nvml, handle)
    for instance, uuid in _instances(nvml, handle) if enabled else ():
        mig.append(uuid)
        with contextlib.suppress(Exception):
            ids.append((int(nvml.nvmlDeviceGetGpuInstanceId(instance)), nvml.nvmlDeviceGetComputeInstanceId(instance)))
    return Seen(
        nvml_index=index,
        uuid=nvml.text("nvmlDeviceGetUUID", handle),
        pci_bus_id=str(nvml.nvmlDeviceGetPciInfo(handle).busId),
        name=nvml.text("nvmlDeviceGetName", handle),
        mig=tuple(mig),
        instances=tuple(ids) if len(ids) == len(mig) else (),
        mig_enabled=enabled,
    )


def _mig_enabled(nvml: Library, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except Exception as error:
        if code_of(error) not in (NOT_SUPPORTED, *OTHER_VERSION):
            raise
        return False


def _count(nvml: Library) -> int:
    return min(_MOST_GPUS, int(nvml.nvmlDeviceGetCount()))


def _all(nvml: Library) -> Iterator[tuple[Any, str]]:
    """Yield (handle, UUID) of every GPU and MIG instance that can be seen; one that fails hides no other."""
    for index in range(_count(nvml)):
        with contextlib.suppress(Exception):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            yield handle, nvml.text("nvmlDeviceGetUUID", handle)
            yield from _instances(nvml, handle)


def _instances(nvml: Library, gpu: Any) -> Iterator[tuple[Any, str]]:
    """Yield (handle, UUID) of every MIG instance of a GPU; indexes have gaps."""
    for place in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu))):
        with contextlib.suppress(Exception):
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
            yield instance, nvml.text("nvmlDeviceGetUUID", instance)
