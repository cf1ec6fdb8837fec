"""Which entry of a driver's process list is this process, where its own ids are not among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace

from ranktop.probes.reading import AllocatorReading, DeviceReading


def is_alive(pid: int) -> bool:
    """Tell whether there is such a process in this PID namespace, of whomever (``kill(2)`` with signal 0)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def own(
    reading: DeviceReading,
    allocator: AllocatorReading,
    pids: Collection[int],
    alive: Callable[[int], bool] = is_alive,
) -> DeviceReading:
    """Return the reading with this process's bytes where only one entry of the driver's list can be this process.

    In a container that does not share the host's PID namespace the driver names processes by ids that mean nothing
    here. An entry can be ours when it holds at least what our allocator has reserved; when it is the only such one and
    no other process here has its id, it is taken, and ``reasons["process_used"]`` says so. Else nothing is claimed.
    ``pids`` are this process's own ids, whatever namespace they are of.
    """
    listed, reserved = reading.processes, allocator.reserved
    if reading.process_used is not None or not listed:
        return reading
    if allocator.backend == "malloc" or not reserved or any(process.pid in pids for process in listed):
        # Nothing says that this process has a context there; or the driver has named it, but not its bytes.
        return reading
    able = [process for process in listed if process.bytes is None or process.bytes >= reserved]
    if not able:
        return _with(reading, "no process in the driver's list holds as much as this one's allocator")
    only = able[0]
    if len(able) > 1:
        return _with(reading, f"{len(able)} processes in the driver's list may be this one: their ids are not ours")
    if only.bytes is None or (only.pid > 0 and alive(only.pid)):
        return _with(reading, f"this process is not in the driver's list, or it is there as {only.pid}")
    words = f"taken to be process {only.pid} of the driver's list, the only one there that can be this one"
    return replace(_with(reading, words), process_used=only.bytes, process_pid=only.pid)


def _with(reading: DeviceReading, words: str) -> DeviceReading:
    return replace(reading, reasons={**reading.reasons, "process_used": words})
