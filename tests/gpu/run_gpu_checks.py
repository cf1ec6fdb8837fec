"""Checks of the device and allocator probes on a machine with an NVIDIA GPU; takes about a minute.

Run it in an environment that has ranktop and a CUDA build of torch, with the GPU otherwise idle::

    python tests/gpu/run_gpu_checks.py

It prints a table, one line a check, and exits 0 when all passed, 1 when one failed, 2 when there is no
CUDA device. What the probes say is compared with ``nvidia-smi`` and with torch's own statistics. pytest
does not collect this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import budget_checks
import torch

from ranktop.probes.allocator import CudaAllocator, open_allocator
from ranktop.probes.cuda_clock import CudaClock
from ranktop.probes.device import open_device
from ranktop.probes.identity import compose
from ranktop.probes.reading import DeviceProbe, DeviceReading, Resident

MIB = 1 << 20
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")

UNTOUCHED = """
import torch
from ranktop.probes.allocator import open_allocator
from ranktop.probes.device import open_device
device = torch.device("cuda", 0)
reading, allocator = open_device(device).read(), open_allocator(device).read()
assert not torch.cuda.is_initialized()
assert allocator.allocated == 0, allocator
assert reading.state == "unavailable", reading
"""
"""A process that only looks."""

ANOTHER_ALLOCATOR = """
import json, torch
from dataclasses import asdict
from ranktop.probes.allocator import open_allocator
device = torch.device("cuda", 0)
block = torch.ones(64 << 20, dtype=torch.uint8, device=device)
torch.cuda.synchronize()
print(json.dumps(asdict(open_allocator(device).read())))
"""


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    passed: bool
    detail: str


def smi(query: str, *columns: str) -> list[dict[str, str]]:
    """Return ``nvidia-smi``'s rows for ``--query-gpu`` or ``--query-compute-apps``; memory is in MiB."""
    command = ["nvidia-smi", f"--query-{query}={','.join(columns)}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [dict(zip(columns, row, strict=True)) for row in rows]


def settled(device: DeviceProbe, seconds: float = 20.0) -> DeviceReading:
    """Return a reading made after this call."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        reading = device.read()
        if reading.state == "ok" and reading.age < time.monotonic() - started:
            return reading
        time.sleep(0.05)
    return device.read()


def in_a_process(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program by itself."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def identity(device: DeviceProbe) -> list[Check]:
    """Compare UUID, index, name and total."""
    settled(device)
    mine = device.identity()
    rows = [row for row in smi("gpu", "uuid", "index", "name", "memory.total") if row["uuid"] == mine.uuid]
    if (mine.uuid or "").startswith("MIG-"):
        return [Check("identity", True, f"{mine.uuid}: a MIG instance, which this nvidia-smi query does not list")]
    if not rows:
        return [Check("identity", False, f"nvidia-smi knows no {mine.uuid}")]
    row = rows[0]
    total_off = abs((mine.total or 0) - int(row["memory.total"]) * MIB)
    return [
        Check("found by UUID", int(row["index"]) == mine.nvml_index, f"{mine.uuid}, NVML index {mine.nvml_index}"),
        Check("name", row["name"] == mine.name, mine.name),
        Check("total", total_off < MIB, f"{mine.total} bytes, nvidia-smi {row['memory.total']} MiB"),
    ]


def allocator_numbers() -> list[Check]:
    """Compare the counters with torch's own, while some memory is in use and some is cached."""
    keep = [torch.ones(size, device=DEVICE) for size in (1, 1000, 33 * MIB)]
    del keep[1]
    torch.cuda.synchronize()
    probe = open_allocator(DEVICE)
    assert isinstance(probe, CudaAllocator)
    stats, reading = torch.cuda.memory_stats(DEVICE), probe.read()
    pairs = {
        "allocated": stats["allocated_bytes.all.current"],
        "reserved": stats["reserved_bytes.all.current"],
        "peak_allocated": stats["allocated_bytes.all.peak"],
        "inactive_split": stats["inactive_split_bytes.all.current"],
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
    }
    mine = {name: getattr(reading, name) for name in pairs}
    quick = (torch.cuda.memory_allocated(DEVICE), torch.cuda.memory_reserved(DEVICE))
    started = time.perf_counter()
    for _ in range(100):
        probe.quick()
    cost = (time.perf_counter() - started) / 100
    return [
        Check("allocator counters", mine == pairs, str(mine)),
        Check("quick counters", probe.quick() == quick, str(quick)),
        Check("quick cost", cost < 100e-6, f"{cost * 1e6:.1f} microseconds"),
    ]


def memory_adds_up(device: DeviceProbe) -> list[Check]:
    """Compare the memory by category with the sizes of tensors, nvidia-smi and the total."""
    parameters = [torch.ones(25 * MIB, device=DEVICE) for _ in range(4)]
    held = sum(block.untyped_storage().nbytes() for block in parameters)
    torch.cuda.synchronize()
    reading = settled(device)
    memory, reasons = compose(open_allocator(DEVICE).read(), Resident(held, 0, 0, 0), reading)
    total = sum(size or 0 for size in memory.by_category().values())
    row = next(iter(smi("gpu", "uuid", "memory.used", "memory.free")))
    for other in smi("gpu", "uuid", "memory.used", "memory.free"):
        row = other if other["uuid"] == device.identity().uuid else row
    free_off = abs((memory.free or 0) - int(row["memory.free"]) * MIB)
    checks = [
        Check("categories add up", total == memory.total, str(memory.as_dict())),
        Check("free", free_off < 64 * MIB, f"{memory.free} bytes, nvidia-smi {row['memory.free']} MiB"),
    ]
    apps = [app for app in smi("compute-apps", "pid", "used_memory") if app["pid"] == str(os.getpid())]
    if apps and apps[0]["used_memory"].isdigit() and reading.process_used is not None:
        off = abs(reading.process_used - int(apps[0]["used_memory"]) * MIB)
        checks.append(Check("this process", off < 2 * MIB, f"{reading.process_used} bytes, {apps[0]}"))
        checks.append(Check("runtime", 50 * MIB < (memory.runtime or 0) < 2048 * MIB, f"{memory.runtime} bytes"))
    else:
        named = memory.runtime is None and bool(reasons.get("runtime"))
        checks.append(Check("this process (not told here)", named, reasons.get("runtime", "no reason")))
    return checks


def other_allocators() -> list[Check]:
    """Look without touching, and read the allocators that a job may choose."""
    checks = []
    run = in_a_process(UNTOUCHED)
    checks.append(Check("looking makes no context", run.returncode == 0, run.stderr.strip()[-200:] or "untouched"))
    for name, setting in (
        ("cudaMallocAsync", "backend:cudaMallocAsync"),
        ("expandable segments", "expandable_segments:True"),
    ):
        run = in_a_process(ANOTHER_ALLOCATOR, PYTORCH_CUDA_ALLOC_CONF=setting)
        reading = json.loads(run.stdout) if run.returncode == 0 else {}
        passed = (
            reading.get("allocated") is not None
            and 64 * MIB <= reading["allocated"] <= 80 * MIB
            and reading["reserved"] >= reading["allocated"]
            and reading["inactive_split"] is None
        )
        checks.append(Check(name, passed, str(reading) if reading else run.stderr.strip()[-200:]))
    return checks


def phase_events() -> list[Check]:
    """Compare the time between two events with the wall clock around the same synchronised work."""
    clock = CudaClock(torch.device(DEVICE))
    block = torch.randn(4096, 4096, device=DEVICE)
    block @ block
    torch.cuda.synchronize()
    wall, start = time.perf_counter(), clock.mark()
    for _ in range(50):
        block @ block
    end = clock.mark()
    early = clock.between(start, end)
    torch.cuda.synchronize()
    wall = time.perf_counter() - wall
    seconds = clock.between(start, end)
    close = seconds is not None and 0.5 * wall < seconds <= 1.05 * wall
    return [Check("phase events", close, f"device {seconds} s, wall {wall:.4f} s, at once {early}")]


def driver_values(device: DeviceProbe) -> list[Check]:
    """Show every value of the device, and that each unknown one has its reason."""
    reading = settled(device)
    unnamed = [name for name, value in asdict(reading).items() if value is None and not reading.reasons.get(name)]
    return [Check("device values", not unnamed and reading.state == "ok", str(asdict(reading)))]


def budget() -> list[Check]:
    """Hold the expected side against a model's steps."""
    return [Check(*found) for found in budget_checks.checks(DEVICE)]


def guarded(group: Callable[[], list[Check]]) -> list[Check]:
    """Run some checks; an error fails them and leaves the others alone."""
    try:
        return group()
    except Exception as error:
        return [Check(group.__name__, False, f"{type(error).__name__}: {error}")]


def main() -> int:
    """Run all checks and print the table."""
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was checked")
        return 2
    torch.zeros(1, device=DEVICE)
    device = open_device(DEVICE)
    groups: list[Callable[[], list[Check]]] = [
        lambda: identity(device),
        allocator_numbers,
        lambda: memory_adds_up(device),
        lambda: driver_values(device),
        phase_events,
        budget,
        other_allocators,
    ]
    checks: list[Check] = []
    for group in groups:
        checks += guarded(group)
    device.close()
    for check in checks:
        print(f"{'pass' if check.passed else 'FAIL'}  {check.name:30}  {check.detail}")
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
