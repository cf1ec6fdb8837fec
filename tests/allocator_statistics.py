"""What ``torch._C._cuda_memoryStats`` and ``torch.cuda.memory_snapshot`` return, by allocator and version of torch.

The keys are those of ``THCPModule_memoryStats`` and ``THCPModule_memorySnapshot`` (torch/csrc/cuda/Module.cpp); the
numbers are what the allocator's source (c10/cuda) makes of the blocks that each function's docstring lists.
"""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
_ARRAYS = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip


def stat(current: int = 0, peak: int | None = None) -> dict[str, int]:
    """Return one ``Stat``: now, the highest so far, and what was taken and given back over time."""
    peak = current if peak is None else peak
    return {"current": current, "peak": peak, "allocated": peak, "freed": peak - current}


def pools(current: int = 0, peak: int | None = None) -> dict[str, dict[str, int]]:
    """Return one ``StatArray``, all of it in the pool of large blocks."""
    return {"all": stat(current, peak), "small_pool": stat(), "large_pool": stat(current, peak)}


def torch_2_4(**values: dict[str, dict[str, int]] | int) -> dict[str, Any]:
    """Return the statistics of torch 2.4 to 2.9, zero but for ``values``."""
    counters = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
    stats: dict[str, Any] = {**dict.fromkeys(counters, 0), "max_split_size": -1}
    stats.update({name: pools() for name in _ARRAYS})
    stats.update(oversize_allocations=stat(), oversize_segments=stat())
    assert set(values) <= set(stats)
    return {**stats, **values}


def torch_2_13(**values: dict[str, dict[str, int]] | int) -> dict[str, Any]:
    """Return those of torch 2.13: the same and two more; one private pool of 128 MiB."""
    pool = {(0, 7): pools(128 * MIB)}
    return {**torch_2_4(**values), "num_oom_rejections": 0, "reserved_bytes_by_private_pools": pool}


def native_values() -> dict[str, Any]:
    """Three segments of 512, 192 and 128 MiB: 600 MiB in three tensors, 8 MiB still used by a stream, the rest free."""
    return {
        "allocation": pools(3, 9),
        "segment": pools(3, 4),
        "active": pools(4, 9),
        "inactive_split": pools(2, 5),
        "allocated_bytes": pools(600 * MIB, 900 * MIB),
        "reserved_bytes": pools(832 * MIB, 1088 * MIB),
        "active_bytes": pools(608 * MIB, 900 * MIB),
        "inactive_split_bytes": pools(96 * MIB, 300 * MIB),
        "requested_bytes": pools(599 * MIB + 1000, 899 * MIB),
        "num_alloc_retries": 2,
        "num_ooms": 1,
        "num_device_alloc": 5,
        "num_device_free": 2,
    }


def expandable() -> dict[str, Any]:
    """The same tensors in one expandable segment: no segment and no split block is counted."""
    return torch_2_13(
        **{**native_values(), "segment": pools(), "inactive_split": pools(), "inactive_split_bytes": pools()}
    )


def cuda_malloc_async() -> dict[str, Any]:
    """600 MiB in use of a pool of 832 MiB: three sums are set, active being the same as allocated."""
    in_use, pool = pools(600 * MIB, 900 * MIB), pools(832 * MIB, 1088 * MIB)
    only_all = {name: {**pools(), "all": value["all"]} for name, value in (("in_use", in_use), ("pool", pool))}
    stats = torch_2_13(
        allocated_bytes=only_all["in_use"], active_bytes=only_all["in_use"], reserved_bytes=only_all["pool"]
    )
    return {**stats, "max_split_size": 0, "reserved_bytes_by_private_pools": {}}


def flat(stats: dict[str, Any], prefix: str = "") -> dict[str, int]:
    """Return what ``torch.cuda.memory_stats`` makes of it."""
    found: dict[str, int] = {}
    for key, value in stats.items():
        name = "_".join(str(part) for part in key) if isinstance(key, tuple) else key
        found.update(flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value})
    return found


def segment(
    device: int, *blocks: tuple[str, int], pool: tuple[int, int] = (0, 0), expand: bool = False
) -> dict[str, Any]:
    """Return one segment of ``torch.cuda.memory_snapshot()`` made of (state, bytes)."""
    listed, address = [], 0x7F0000000000
    for state, size in blocks:
        requested = size if state == "active_allocated" else 0
        listed.append({"address": address, "size": size, "requested_size": requested, "state": state, "frames": []})
        address += size
    in_use = sum(size for state, size in blocks if state == "active_allocated")
    return {
        "device": device,
        "address": 0x7F0000000000,
        "total_size": sum(size for _, size in blocks),
        "allocated_size": in_use,
        "active_size": sum(size for state, size in blocks if state != "inactive"),
        "requested_size": in_use,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": pool,
        "is_expandable": expand,
        "frames": [],
        "blocks": listed,
    }


def native_segments(device: int = 0) -> list[dict[str, Any]]:
    """The blocks behind ``native_values``; the last 128 MiB are a private pool's and free."""
    used, pending, free = "active_allocated", "active_pending_free", "inactive"
    return [
        segment(device, (used, 300 * MIB), (free, 52 * MIB), (used, 160 * MIB)),
        segment(device, (used, 140 * MIB), (pending, 8 * MIB), (free, 44 * MIB)),
        segment(device, (free, 128 * MIB), pool=(0, 7)),
    ]
