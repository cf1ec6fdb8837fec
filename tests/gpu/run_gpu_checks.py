"""Checks of everything that reads a device, on a machine with an NVIDIA GPU; takes under five minutes.

Run it in an environment that has ranktop and a CUDA build of torch, with the GPU otherwise idle::

    python tests/gpu/run_gpu_checks.py

It prints a table, one line a check, and exits 0 when all passed, 1 when one failed, 2 when there is no CUDA device.
What the probes say is compared with ``nvidia-smi``, NVML, CUDA's driver and torch's own statistics. ``--dry-run`` runs
what needs no GPU: the readers of nvidia-smi's text, the jobs on the CPU, and the programs as far as to compile them.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time

import budget_checks
import gpu_allocator_checks as allocators
import gpu_cost_checks as cost
import gpu_device_checks as devices
import gpu_dry_checks
import gpu_job_checks as jobs
import torch
from gpu_table import Check, Group, run_groups, verdict

from ranktop.probes.cuda_clock import CudaClock
from ranktop.probes.device import open_device
from ranktop.probes.reading import DeviceProbe


def phase_events(device: torch.device) -> list[Check]:
    """Compare the time between two events with the wall clock around the same synchronised work."""
    clock = CudaClock(device)
    block = torch.randn(4096, 4096, device=device)
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


def on_a_gpu(device: torch.device, probe: DeviceProbe) -> list[tuple[str, Group]]:
    """Return the groups of checks, those first that want the device idle."""
    return [
        ("identity", lambda: devices.identity(probe)),
        ("what CUDA shows", jobs.visible_devices),
        ("values", lambda: devices.values(probe)),
        ("memory", lambda: devices.memory(probe)),
        ("processes and contexts", lambda: devices.processes(probe)),
        ("allocators", allocators.kinds_of_allocators),
        ("out of memory", allocators.out_of_memory),
        ("several devices", allocators.several_devices),
        ("only looking", allocators.only_looking),
        ("calls to the driver", cost.driver_calls),
        ("phase events", lambda: phase_events(device)),
        ("budget", lambda: [Check(*found) for found in budget_checks.checks(device)]),
        ("strategies", lambda: jobs.strategies(str(device))),
        ("status", lambda: jobs.whole_pipe(probe.identity().uuid)),
        ("overhead", lambda: cost.overhead(device)),
    ]


def main() -> int:
    """Run the checks and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="only what needs no GPU")
    dry = parser.parse_args().dry_run
    began = time.monotonic()
    if dry:
        code = verdict(run_groups(gpu_dry_checks.groups()))
    elif not torch.cuda.is_available():
        print("no CUDA device: nothing was checked (--dry-run runs what needs none)")
        return 2
    else:
        device = torch.device("cuda", 0)
        torch.zeros(1, device=device)
        name = torch.cuda.get_device_properties(device).name
        print(f"{name}, torch {torch.__version__} (CUDA {torch.version.cuda}), Python {platform.python_version()}")
        probe = open_device(device)
        code = verdict(run_groups(on_a_gpu(device, probe)))
        probe.close()
    print(f"{time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
