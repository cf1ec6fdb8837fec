"""Processes with a context on a device, as the driver lists them, and which of them is this one."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ranktop.probes.nvml.codes import Absent
from ranktop.probes.nvml.getter import Getter, Subject, Values, first
from ranktop.probes.nvml.limits import NO_NUMBER
from ranktop.probes.reading import DeviceProcess

LISTED: Final = "listed"
"""Key of the raw list among the values of the compute processes."""
MOST: Final = 64
_MPS_REST: Final = 9
"""Rounds in which MPS is not looked at again after it had no client: one call less in nearly every round."""
_LARGEST: Final = 1 << 50
"""Bytes; more is what drivers put where they have no number (2^64-1, or 2^63 rounded)."""

_NOT_LISTED: Final = "this process is not in the driver's list (no CUDA context yet, or a container's own process ids)"


class Entry(NamedTuple):
    """One line of a driver's list; instances are None outside of MIG."""

    pid: int
    bytes: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class _First(ctypes.Structure):
    """``nvmlProcessInfo_v1_t``, for which pynvml has no function any more."""

    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


def own_pids() -> tuple[int, ...]:
    """Return this process's ids in the PID namespaces that it can see (proc(5), ``NSpid``)."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return tuple(int(word) for word in line.split()[1:])
    except (OSError, ValueError):
        pass
    return (os.getpid(),)


def listed(kind: str) -> Callable[[Subject], list[Entry]]:
    """Return the question for a list: ``kind`` is ``Compute``, ``Graphics`` or ``MPSCompute``."""
    name = f"nvmlDeviceGet{kind}RunningProcesses"

    def of(subject: Subject, handle: Any) -> list[Entry]:
        nvml = subject.nvml
        return [
            _entry(line)
            for line in first(
                subject,
                name,
                (
                    lambda: getattr(nvml, f"{name}_v3")(handle),
                    lambda: getattr(nvml, f"{name}_v2")(handle),
                    lambda: _oldest(subject, name, handle),
                ),
            )[1]
        ]

    def ask(subject: Subject) -> list[Entry]:
        try:
            return of(subject, subject.handle)
        except Exception:
            if not subject.mig or subject.whole is None:
                raise
            try:
                return _of_instance(subject, of(subject, subject.whole))
            except Absent:
                raise
            except Exception:
                pass
            raise

    return ask


def _of_instance(subject: Subject, entries: list[Entry]) -> list[Entry]:
    """Keep what the whole GPU's list has of this instance."""
    if subject.gpu_instance is None:
        raise Absent("the driver lists only the whole GPU's processes, and not which are of this instance")
    if entries and all(entry.gpu_instance is None for entry in entries):
        raise Absent("the driver lists the whole GPU's processes, and does not tell which are of this instance")
    mine = (subject.gpu_instance, subject.compute_instance)
    return [entry for entry in entries if (entry.gpu_instance, entry.compute_instance) == mine]


def _oldest(subject: Subject, name: str, handle: Any) -> Sequence[Any]:
    function = subject.nvml.symbol(name)
    count = ctypes.c_uint(MOST * 2)
    lines = (_First * count.value)()
    code = function(handle, ctypes.byref(count), lines)
    if code:
        raise subject.nvml.error(code)
    return lines[: min(count.value, MOST * 2)]


def _entry(line: Any) -> Entry:
    size = line.usedGpuMemory
    gpu, compute = (getattr(line, key, NO_NUMBER) for key in ("gpuInstanceId", "computeInstanceId"))
    return Entry(
        pid=int(line.pid),
        bytes=None if size is None or size > _LARGEST else int(size),
        gpu_instance=None if gpu == NO_NUMBER else int(gpu),
        compute_instance=None if compute == NO_NUMBER else int(compute),
    )


def shown(entries: Sequence[Entry], first_pid: int | None = None) -> tuple[DeviceProcess, ...]:
    """Return the largest entries, that of ``first_pid`` in any case."""
    chosen = sorted(entries, key=lambda entry: (entry.pid != first_pid, -(entry.bytes or 0), entry.pid))[:MOST]
    return tuple(DeviceProcess(entry.pid, entry.bytes) for entry in chosen)


def of_this_process(entries: Sequence[Entry], pids: Collection[int]) -> Values:
    """Return ``processes``, ``process_used`` and ``process_pid``; ``pids``: this process's ids."""
    mine = [entry for entry in entries if entry.pid in pids]
    if not mine:
        others = f"; it lists {len(entries)} other{'s' * (len(entries) > 1)}" if entries else ""
        unknown = Absent(_NOT_LISTED + others)
        return {"processes": shown(entries), "process_used": unknown, "process_pid": unknown}
    sizes = [entry.bytes for entry in mine if entry.bytes is not None]
    untold = Absent("the driver does not tell the memory of processes here (WSL does not)")
    return {
        "processes": shown(entries, mine[0].pid),
        "process_used": sum(sizes) if len(sizes) == len(mine) else untold,
        "process_pid": mine[0].pid,
    }


def _compute(subject: Subject) -> Values:
    entries = _listed_compute(subject)
    if subject.mps_rest:
        subject.mps_rest -= 1
    elif subject.pids and not any(entry.pid in subject.pids for entry in entries):
        # Clients of MPS are in a list of their own, and only there.
        subject.mps_rest = _MPS_REST
        with contextlib.suppress(Exception):
            known = {entry.pid for entry in entries}
            clients = _listed_mps(subject)
            entries += [entry for entry in clients if entry.pid not in known]
            subject.mps_rest = 0 if clients else _MPS_REST
    return {LISTED: entries}


def _seldom(kind: str, field: str) -> Getter:
    def ask(subject: Subject) -> Values:
        return {field: shown(listed(kind)(subject))}

    return Getter(f"nvmlDeviceGet{kind}RunningProcesses", (field,), ask, calls=2, of_whole=False)


_listed_compute, _listed_mps = listed("Compute"), listed("MPSCompute")

COMPUTE: Final = Getter(
    "nvmlDeviceGetComputeRunningProcesses",
    ("processes", "process_used", "process_pid"),
    _compute,
    calls=2,
    of_whole=False,
)
SELDOM: Final = (_seldom("Graphics", "graphics_processes"), _seldom("MPSCompute", "mps_processes"))
