"""Memory of a device: the newer request, the older one, or the host's memory where the two share it."""

from __future__ import annotations

from typing import Any, Final

from ranktop.probes.kernel_files import machine_memory
from ranktop.probes.nvml.codes import INVALID_ARGUMENT, NOT_SUPPORTED, OTHER_VERSION, UNKNOWN, Absent, code_of
from ranktop.probes.nvml.getter import Subject, Values, first
from ranktop.probes.nvml.limits import NO_NUMBER_64

UNIFIED: Final = "unified"
"""Among the values: the device has no memory of its own, and they are the host's."""

_V1: Final = Absent("this driver's memory info (v1) counts what it reserves as used")
_SHARED: Final = Absent("the device shares the host's memory: the driver holds nothing back for itself")
_TRY_V1: Final = (*OTHER_VERSION, INVALID_ARGUMENT, NOT_SUPPORTED, UNKNOWN)
"""Drivers under WSL have had the newer request and answered it with 999 while the older one worked."""


def ask_memory(subject: Subject) -> Values:
    """Return total, used, free and reserved; used = total - free is the same of both versions."""
    nvml, handle = subject.nvml, subject.handle
    try:
        version, info = first(
            subject,
            "memory",
            (
                lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2),
                lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
            ),
            _TRY_V1,
        )
    except Exception as error:
        if code_of(error) == NOT_SUPPORTED and _may_share(subject):
            return _of_host()
        raise
    if int(info.total) == 0 and _may_share(subject):
        return _of_host()
    return _own(subject, info, version == 0)


def _own(subject: Subject, info: Any, newer: bool) -> Values:
    total, free = int(info.total), int(info.free)
    if total == 0:
        raise Absent("the driver says that the device has no memory (0 bytes)")
    if NO_NUMBER_64 in (total, free) or free > total:
        raise Absent(f"the driver says {free} bytes free of {total}")
    subject.had_memory = True
    reserved: int | Absent = _V1
    if newer:
        reserved = int(info.reserved)
        if reserved > total:
            reserved = Absent(f"the driver says {reserved} bytes of {total}")
    return {"total": total, "used": total - free, "free": free, "reserved": reserved}


def _may_share(subject: Subject) -> bool:
    """Whether a device without memory is one that uses the host's (GB10, Thor, Orin), not one that is ill."""
    return not subject.mig and not subject.had_memory and subject.integrated is not False


def _of_host() -> Values:
    total, free = machine_memory()
    return {"total": total, "used": total - free, "free": free, "reserved": _SHARED, UNIFIED: True}
