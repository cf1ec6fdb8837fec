"""A process with one allocator, chosen by its environment; prints as JSON what the probe and what torch say of it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from ranktop.probes.allocator import CudaAllocator, open_allocator
from ranktop.probes.device import open_device
from ranktop.probes.reading import AllocatorReading

MIB = 1 << 20
DEVICE = torch.device("cuda", 0)


def read(probe: CudaAllocator) -> AllocatorReading:
    """Read on a thread like the agent's: from the main one nothing is looked for in the cache."""
    found: list[AllocatorReading] = []
    thread = threading.Thread(target=lambda: found.append(probe.read()))
    thread.start()
    thread.join()
    return found[0]


def both(probe: CudaAllocator) -> dict[str, Any]:
    """Return the probe's reading beside torch's own statistics and blocks of the same moment."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(100):
        probe.quick()
    cost = (time.perf_counter() - began) / 100
    began = time.perf_counter()
    reading = read(probe)  # With a look at the other devices and, where that is cheap, at the blocks.
    first = time.perf_counter() - began
    began = time.perf_counter()
    read(probe)
    answer = {
        "reading": asdict(reading),
        "read_seconds": (first, time.perf_counter() - began),
        "quick": probe.quick(),
        "stats": {
            name: value for name, value in torch.cuda.memory_stats(DEVICE).items() if "all" in name or "." not in name
        },
        "allocated": torch.cuda.memory_allocated(DEVICE),
        "reserved": torch.cuda.memory_reserved(DEVICE),
        "backend": torch.cuda.get_allocator_backend(),
        "quick_seconds": cost,
    }
    if answer["backend"] == "native":
        answer["blocks"] = [
            [segment["segment_pool_id"], block["state"], block["size"]]
            for segment in torch.cuda.memory_snapshot()
            for block in segment["blocks"]
        ]
    return answer


def pattern() -> dict[str, Any]:
    """Some memory in use, some cached in pieces, and a private pool with a free block of its own."""
    keep = [torch.ones(size * MIB // 4, device=DEVICE) for size in (1, 60, 35, 80, 2, 128)]
    del keep[1], keep[2]
    if hasattr(torch.cuda, "MemPool") and torch.cuda.get_allocator_backend() == "native":
        pool = torch.cuda.MemPool()
        try:
            with torch.cuda.use_mem_pool(pool):
                torch.ones(200 * MIB // 4, device=DEVICE)
        except (RuntimeError, AttributeError):
            pass  # Pools and expandable segments don't go together in every version.
        keep.append(pool)  # type: ignore[arg-type]
    probe = open_allocator(DEVICE)
    assert isinstance(probe, CudaAllocator)
    return both(probe)


def oom() -> dict[str, Any]:
    """Run out of memory on purpose, and train on."""
    probe = open_allocator(DEVICE)
    assert isinstance(probe, CudaAllocator)
    weight = torch.ones(256, 256, device=DEVICE, requires_grad=True)
    before = asdict(read(probe))
    message = ""
    try:
        torch.empty(torch.cuda.get_device_properties(DEVICE).total_memory * 2, dtype=torch.uint8, device=DEVICE)
    except torch.cuda.OutOfMemoryError as error:
        message = str(error).splitlines()[0]
    (weight @ weight).sum().backward()
    return {**both(probe), "before": before, "message": message, "gradient": float(weight.grad.sum())}  # type: ignore[union-attr]


def elsewhere() -> dict[str, Any]:
    """Hold memory on the second device, which is not the probe's."""
    probe = open_allocator(DEVICE)
    assert isinstance(probe, CudaAllocator)
    torch.ones(1, device=DEVICE)
    first = read(probe).elsewhere
    has_context: Any = vars(torch._C)["_cuda_hasPrimaryContext"]
    context = has_context(1)  # Looking must not have made one.
    probe = CudaAllocator(0)  # A fresh one looks at once.
    stray = torch.ones(64 * MIB // 4, device="cuda:1")
    answer = {"elsewhere": read(probe).elsewhere, "reserved": torch.cuda.memory_reserved(1), "bytes": stray.nbytes}
    return {**answer, "first": first, "context": context}


def untouched() -> dict[str, Any]:
    """Only look, in a process that has not used CUDA."""
    device, probe = open_device(DEVICE), open_allocator(DEVICE)
    assert isinstance(probe, CudaAllocator)
    answer = {"device": asdict(device.read()), "reading": asdict(read(probe)), "quick": probe.quick()}
    device.close()
    return {**answer, "initialized": torch.cuda.is_initialized()}


PROGRAMS: dict[str, Callable[[], dict[str, Any]]] = {
    "pattern": pattern,
    "oom": oom,
    "elsewhere": elsewhere,
    "untouched": untouched,
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
