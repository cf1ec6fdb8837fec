"""Devices of the stand-in library as real hardware looks through NVML."""

from __future__ import annotations

from typing import Any

GIB = 1 << 30
MIB = 1 << 20
NO_NUMBER_64 = (1 << 64) - 1
"""Where a driver has no number (``NVML_VALUE_NOT_AVAILABLE``)."""
Settings = dict[str, Any]


def device_uuid(number: int) -> str:
    """Return the UUID of device ``number``."""
    return f"GPU-{number:08x}-0000-0000-0000-{number:012x}"


def mig_uuid(number: int) -> str:
    """Return the UUID of device ``number``, a MIG instance."""
    return f"MIG-{number:08x}-1111-5111-8111-{number:012x}"


def device(number: int, **changes: object) -> Settings:
    """Return the settings of an H100 that differ from those of every other, with ``changes`` (None: not supported)."""
    total, used = 80 * GIB, (10 + number % 60) * GIB
    settings: Settings = {
        **_identity(number),
        "total": total,
        "reserved": 600 * MIB,
        "used": used,
        "free": total - 600 * MIB - used,
        "procs": "",
        "graphics_procs": "",
        "mps_procs": "",
        **_activity(number),
        **_limits(),
        **_bus(number),
        **_health(number),
        "mig_mode": 0,
        "gpm": 1,
        "gpm2": 71.5,
        "gpm3": 33.25,
        "gpm5": 41.0,
        "gpm10": 52.75,
    }
    settings.update(changes)
    return settings


def _identity(number: int) -> Settings:
    return {
        "uuid": device_uuid(number),
        "name": f"NVIDIA Test {number}",
        "index": number,
        "minor": number,
        # In a domain that no machine has: where the kernel knows the device, its NUMA node is taken from there.
        "pci": f"00007E57:{0x10 + number:02X}:00.0",
        "numa": number // 4,
    }


def _activity(number: int) -> Settings:
    return {
        "util": (50 + number) % 101,
        "memutil": (20 + number) % 101,
        "power": 300_000 + number,
        "energy": 5_000_000_000 + number,
        "temp": 60 + number % 20,
        "mem_temp": 70 + number % 20,
        "sm": 1980 - number,
        "mem": 2619,
        "graphics": 1980 - number,
        "video": 1500,
        "reasons": 0,
        "pstate": 0,
    }


def _limits() -> Settings:
    return {
        "limit": 700_000,
        "limit_min": 200_000,
        "limit_max": 700_000,
        "limit_default": 700_000,
        "t_shutdown": 92,
        "t_slowdown": 89,
        "t_mem_max": 95,
        "t_gpu_max": 87,
        "max_sm": 1980,
        "max_mem": 2619,
        "max_graphics": 1980,
        "max_video": 1545,
        "persistence": 1,
        "compute_mode": 0,
    }


def _bus(number: int) -> Settings:
    return {
        "pcie_gen": 5,
        "pcie_max_gen": 5,
        "pcie_width": 16,
        "pcie_max_width": 16,
        "pcie_tx": 120_000 + number,
        "pcie_rx": 80_000 + number,
        "pcie_replays": 0,
        "nvlinks": 18,
        "nvlink_state": 1,
    }


def _health(number: int) -> Settings:
    return {
        "ecc": 1,
        "ecc_volatile_corrected": number,
        "ecc_volatile_uncorrected": 0,
        "ecc_aggregate_corrected": 10 + number,
        "ecc_aggregate_uncorrected": 0,
        "remap_corrected": 0,
        "remap_uncorrected": 0,
        "remap_pending": 0,
        "remap_failed": 0,
        "recovery": 0,
    }


def mig(parent: int, first: int, indexes: tuple[int, ...] = (0, 2, 5), **changes: object) -> list[Settings]:
    """Return a parent with MIG on (device ``parent``) and its instances (devices ``first`` and on) of 10 GiB each.

    The parent's own list of processes and its memory are of all instances; its utilization is not supported.
    """
    settings = device(parent, mig_mode=1, mig_max=7, util=None, memutil=None, **changes)
    return [settings, *(instance(parent, first + n, index) for n, index in enumerate(indexes))]


def instance(parent: int, number: int, index: int, **changes: object) -> Settings:
    """Return device ``number``, the MIG instance ``index`` of ``parent``; the rest is refused as drivers do."""
    settings: Settings = {
        "uuid": mig_uuid(number),
        "name": f"NVIDIA Test {parent} MIG 1g.10gb",
        "parent": parent,
        "mig_index": index,
        "gi": 7 + index,
        "ci": 0,
        "sms": 16,
        "slices": 1,
        "total": 10 * GIB,
        "reserved": 16 * MIB,
        "used": (1 + index) * GIB,
        "free": 9 * GIB - 16 * MIB - index * GIB,
        "procs": "",
        "graphics_procs": "",
        "mps_procs": "",
        "gpm2": 60.5 + index,
        "gpm3": 30.5,
        "gpm5": 20.5,
        "gpm10": 10.5,
    }
    settings.update(changes)
    return settings


_REFUSED_IN_CONTAINER = (
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)


def not_permitted(settings: Settings) -> Settings:
    """Return a MIG parent as a container sees it that was given an instance: its own numbers are refused."""
    return settings | {f"{name}.ret": 4 for name in _REFUSED_IN_CONTAINER}


_NO_LINKS = ("nvlinks", "nvlink_state", "ecc", "remap_corrected", "pcie_tx", "pcie_rx", "t_mem_max")
"""What consumer, unified and virtual devices lack alike."""


def gb10(number: int = 0, *, memory: str = "refused", **changes: object) -> Settings:
    """Return a GB10: memory shared with the host (``refused`` with 3, or ``zero``: total 0), no NVLink, no ECC."""
    absent = ("limit", "limit_min", "limit_max", "limit_default", "mem_temp", "mem", "max_mem", "mig_mode", *_NO_LINKS)
    sizes = dict.fromkeys(("total", "reserved", "used", "free"), None if memory == "refused" else 0)
    settings: Settings = {**dict.fromkeys(absent), **sizes, "name": "NVIDIA GB10", "power": 42_000, "gpm": 0}
    return device(number, **(settings | changes))


def wsl(number: int = 0, pids: tuple[int, ...] = (), **changes: object) -> Settings:
    """Return a GPU under WSL: the memory of processes and the utilization are not told, the bus id is 0."""
    processes = ",".join(f"{pid}:{NO_NUMBER_64}" for pid in pids)
    absent = dict.fromkeys(("util", "memutil", "energy", "numa", "mig_mode", *_NO_LINKS))
    settings: Settings = {**absent, "pci": "00000000:00:00.0", "procs": processes, "gpm": 0}
    return device(number, **(settings | changes))


def vgpu(number: int = 0, **changes: object) -> Settings:
    """Return a vGPU in a guest: no power, temperature, fan, clocks' reasons, bus or links."""
    power = ("power", "limit", "limit_min", "limit_max", "limit_default", "energy", "reasons", "recovery")
    heat = ("temp", "mem_temp", "t_shutdown", "t_slowdown", "t_mem_max", "t_gpu_max")
    settings: Settings = {**dict.fromkeys((*power, *heat, *_NO_LINKS)), "name": "GRID H100-20C", "gpm": 0}
    return device(number, **(settings | changes))


def b300(number: int = 0, **changes: object) -> Settings:
    """Return a GPU of 1400 W and 288 GiB."""
    total = 288 * GIB
    settings: Settings = {
        "name": "NVIDIA B300 SXM6 AC",
        "power": 1_387_500,
        "limit": 1_400_000,
        "limit_max": 1_400_000,
        "limit_default": 1_400_000,
        "total": total,
        "used": 200 * GIB,
        "free": total - 200 * GIB - 600 * MIB,
        "pcie_gen": 6,
        "pcie_max_gen": 6,
    }
    return device(number, **(settings | changes))
