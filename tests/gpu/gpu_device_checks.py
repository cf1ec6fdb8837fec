"""The device probe against ``nvidia-smi``, NVML itself and CUDA: which device it is, its memory, its processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import nvidia_smi
import pynvml
import torch
from gpu_table import MIB, Check, settled, until
from nvidia_smi import mebibytes

from ranktop.probes.allocator import open_allocator
from ranktop.probes.identity import compose
from ranktop.probes.reading import DeviceProbe, DeviceReading, Resident

STRAY = """
import sys, torch
block = torch.ones(int(sys.argv[1]) // 4, device="cuda:0")
torch.cuda.synchronize()
print(torch.cuda.memory_reserved(0), open("/proc/self/status").read().split("NSpid:")[1].split("\\n")[0], flush=True)
sys.stdin.readline()
"""
"""Holds memory on the first device until it is told to end."""


def bus(text: str | None) -> tuple[int, ...]:
    """Return a PCI bus id as numbers: its domain has four digits with some and eight with others."""
    return tuple(int(part, 16) for part in (text or "").replace(".", ":").split(":") if part)


def identity(device: DeviceProbe) -> list[Check]:
    """Compare UUID, index, name, PCI bus id, MIG instance, total and versions with ``nvidia-smi -L`` and ``-q``."""
    settled(device)
    mine = device.identity()
    gpus, log = nvidia_smi.listing(nvidia_smi.ask("-L")), nvidia_smi.query(nvidia_smi.ask("-q"))
    named = [gpu for gpu in gpus if gpu.uuid == mine.uuid or any(mig.uuid == mine.uuid for mig in gpu.mig)]
    if len(named) != 1:
        return [Check("identity", False, f"nvidia-smi -L knows no {mine.uuid}")]
    gpu = named[0]
    section = next(part for part in log.all("GPU") if part.find("GPU UUID") == gpu.uuid)
    slices = [mig for mig in gpu.mig if mig.uuid == mine.uuid]
    checks = [
        Check("found by UUID", mine.nvml_index == gpu.index, f"{mine.uuid}: NVML index {mine.nvml_index}, {gpu.index}"),
        Check("PCI bus id", bus(mine.pci_bus_id) == bus(section.value), f"{mine.pci_bus_id}, {section.value}"),
        Check("driver", mine.driver == log.find("Driver Version"), f"{mine.driver}, {log.find('Driver Version')}"),
        Check("CUDA", mine.cuda_driver == log.find("CUDA Version"), f"{mine.cuda_driver}, {log.find('CUDA Version')}"),
    ]
    if slices:
        told = mine.mig is not None and (mine.mig.parent_uuid, mine.mig.index) == (gpu.uuid, slices[0].index)
        return [*checks, Check("MIG instance", told, f"{mine.mig}, {slices[0]}")]
    total = mebibytes(section.find("FB Memory Usage", "Total"))
    return [
        *checks,
        Check("name", mine.name == gpu.name, f"{mine.name}, {gpu.name}"),
        Check("not MIG", mine.mig is None, str(mine.mig)),
        Check("total", mine.total is not None and mine.total // MIB == total, f"{mine.total} bytes, {total} MiB"),
    ]


def handle(device: DeviceProbe) -> Any:
    """Return NVML's handle, reached past the probe."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(device.identity().uuid)


def memory(device: DeviceProbe) -> list[Check]:
    """The memory by category adds up to the byte, and its parts are NVML's, nvidia-smi's and torch's."""
    here = torch.device("cuda", 0)
    parameters = [torch.ones(25 * MIB, device=here) for _ in range(4)]
    held = sum(block.untyped_storage().nbytes() for block in parameters)
    torch.cuda.synchronize()
    reading = settled(device)
    raw = pynvml.nvmlDeviceGetMemoryInfo(handle(device), version=pynvml.nvmlMemory_v2)
    allocator = open_allocator(here).read()
    by_category, reasons = compose(allocator, Resident(held, 0, 0, 0), reading)
    sizes = by_category.by_category()
    total = sum(size or 0 for size in sizes.values())
    allocated = sum(getattr(by_category, name) or 0 for name in ("parameters", "activations"))
    free, cuda_total = torch.cuda.mem_get_info(here)
    off = (reading.free or 0) - free
    checks = [
        Check("categories add up", total == by_category.total == reading.total, f"{sizes}, reasons {reasons}"),
        Check("... to allocated", allocated == torch.cuda.memory_allocated(here), f"{allocated}"),
        Check("... and to reserved", allocated + (by_category.cache or 0) == torch.cuda.memory_reserved(here), ""),
        Check("used + free = total", (reading.used or 0) + (reading.free or 0) == reading.total, f"{reading.used}"),
        Check(
            "NVML's own numbers",
            (reading.total, reading.reserved) == (raw.total, raw.reserved)
            and abs((reading.free or 0) - raw.free) < 64 * MIB,
            f"{raw.total} total, {raw.reserved} reserved, {raw.free} free; probe {reading.reserved}, {reading.free}",
        ),
        Check("CUDA's free", abs(off) < 64 * MIB, f"cudaMemGetInfo {free} of {cuda_total}, the probe {off:+d} bytes"),
    ]
    return [*checks, *smi_memory(device, reading)]


def smi_memory(device: DeviceProbe, reading: DeviceReading) -> list[Check]:
    """Compare with ``nvidia-smi --query-gpu``, which rounds to MiB and counts what is reserved apart from used."""
    columns = ("memory.total", "memory.used", "memory.free", "memory.reserved")
    found = [row for row in nvidia_smi.ask_rows("gpu", "uuid", *columns) if row["uuid"] == device.identity().uuid]
    if not found:
        return [Check("nvidia-smi's memory", None, "a MIG instance, which this query does not list")]
    total, used, free, reserved = (mebibytes(found[0][name]) for name in columns)
    mine = ((reading.used or 0) - (reading.reserved or 0)) / MIB
    close = (
        used is not None and free is not None and abs(mine - used) < 64 and abs((reading.free or 0) / MIB - free) < 64
    )
    exact = (reading.total or 0) // MIB == total and abs((reading.reserved or 0) / MIB - (reserved or 0)) <= 1
    return [
        Check("nvidia-smi's memory", close and exact, f"{found[0]}; the probe's used {mine:.0f} MiB beside reserved")
    ]


@contextmanager
def stray_process(size: int = 128 * MIB) -> Iterator[tuple[subprocess.Popen[str], int, set[int]]]:
    """Yield a second process on the device, its reserved bytes, and its ids in all PID namespaces."""
    process = subprocess.Popen(
        [sys.executable, "-c", STRAY, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        reserved, *pids = process.stdout.readline().split()
        yield process, int(reserved), {int(pid) for pid in pids}
    finally:
        process.communicate("\n", timeout=60)


def processes(device: DeviceProbe) -> list[Check]:
    """This process and a second one are in the list, by pid where the container shows the driver's, and it ends."""
    reading = settled(device)
    with open("/proc/self/status", encoding="ascii") as status:
        mine = {int(pid) for pid in status.read().split("NSpid:")[1].split("\n")[0].split()}
    listed = {process.pid: process.bytes for process in reading.processes or ()}
    reserved = torch.cuda.memory_reserved(0)
    found = reading.process_pid is not None and (reading.process_used or 0) >= reserved
    why = reading.reasons.get("process_used", "")
    checks = [
        Check(
            "this process",
            found or bool(why),
            f"pid {reading.process_pid} of {sorted(mine)}, {reading.process_used}; {why}",
        ),
        Check("listed processes", reading.processes is not None, f"{listed}; {reading.reasons.get('processes', '')}"),
    ]
    rows = nvidia_smi.ask_rows("compute-apps", "pid", "used_memory")
    checks.append(Check("nvidia-smi's processes", {int(row["pid"]) for row in rows} == set(listed), str(rows)))
    before, used = set(listed), reading.used or 0
    with stray_process() as (_, bytes_reserved, pids):
        came = until(lambda: set(now_listed(device)) - before != set(), 15.0)
        after = settled(device)
        new = {pid: size for pid, size in now_listed(device).items() if pid not in before}
        grown = (after.used or 0) - used
        whose = bool(set(new) & pids) or not mine & set(listed)
        sized = len(new) == 1 and all(size is None or size >= bytes_reserved for size in new.values())
        checks.append(Check("a second context appears", came and whose and sized, f"{new}, its own ids {sorted(pids)}"))
        checks += context(bytes_reserved, grown, next(iter(new.values()), None))
    checks.append(Check("... and is gone again", until(lambda: set(now_listed(device)) == before, 15.0), str(before)))
    return checks


def now_listed(device: DeviceProbe) -> dict[int, int | None]:
    """Return the processes of a fresh reading."""
    return {process.pid: process.bytes for process in settled(device).processes or ()}


def context(reserved: int, grown: int, listed: int | None) -> list[Check]:
    """What a context takes beside torch's cache, by the device's used bytes and by the process list."""
    by_device = grown - reserved
    if listed is None:
        return [
            Check("size of a context", None, f"{by_device} bytes by the device; the driver does not tell a process's")
        ]
    by_list = listed - reserved
    near = 50 * MIB < by_list < 2048 * MIB and abs(by_list - by_device) < 128 * MIB
    return [Check("size of a context", near, f"{by_list} bytes by the process list, {by_device} by the device")]


def values(device: DeviceProbe) -> list[Check]:
    """Every value is there or has its reason."""
    reading = settled(device)
    unnamed = [name for name, value in asdict(reading).items() if value is None and not reading.reasons.get(name)]
    return [Check("device values", not unnamed and reading.state == "ok", str(unnamed or asdict(reading)))]
