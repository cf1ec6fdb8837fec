"""The allocator probe against torch's own statistics, under each allocator that a job may choose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from gpu_table import MIB, Check, in_a_process, last_lines

SETTINGS = {
    "native": "backend:native",
    "expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
KEYS = {
    "allocated": "allocated_bytes.all.current",
    "reserved": "reserved_bytes.all.current",
    "peak_allocated": "allocated_bytes.all.peak",
    "active": "active_bytes.all.current",
    "requested": "requested_bytes.all.current",
    "segments": "segment.all.current",
    "inactive_split": "inactive_split_bytes.all.current",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
}
UNKNOWN = {
    "native": set[str](),
    "expandable segments": {"segments", "inactive_split"},
    "cudaMallocAsync": {"requested", "segments", "inactive_split", "retries", "ooms"},
}
"""What each of them does not count."""


def run(program: str, setting: str) -> dict[str, Any] | str:
    """Return what the program prints under a setting of the allocator, or how it failed."""
    done = in_a_process(["gpu_allocator_program.py", program], PYTORCH_CUDA_ALLOC_CONF=setting)
    if done.returncode:
        return last_lines(done)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def counters(name: str, answer: Mapping[str, Any]) -> list[Check]:
    """Compare every counter with torch's; what the allocator does not count must be unknown, with a reason."""
    reading, stats = answer["reading"], answer["stats"]
    wanted = {field: None if field in UNKNOWN[name] else stats[key] for field, key in KEYS.items()}
    mine = {field: reading[field] for field in KEYS}
    wrong = {field: (mine[field], wanted[field]) for field in KEYS if mine[field] != wanted[field]}
    unnamed = [field for field in KEYS if mine[field] is None and not reading["reasons"].get(field)]
    expandable = name == "expandable segments"
    told = (reading["backend"], reading["expandable"]) == (answer["backend"], expandable)
    cost, (first, later) = answer["quick_seconds"], answer["read_seconds"]
    return [
        Check(f"{name}: counters", not wrong, f"(probe, torch) differ: {wrong}" if wrong else str(mine)),
        Check(f"{name}: reasons", not unnamed, str(unnamed or reading["reasons"])),
        Check(f"{name}: named", told, f"{reading['backend']}, expandable {reading['expandable']}"),
        Check(
            f"{name}: quick",
            tuple(answer["quick"]) == (answer["allocated"], answer["reserved"]) and cost < 100e-6,
            f"{answer['quick']}, {cost * 1e6:.1f} microseconds",
        ),
        Check(f"{name}: read", later < 1e-3, f"{first * 1e3:.2f} ms the first time, {later * 1e3:.2f} ms after it"),
    ]


def largest_free(name: str, answer: Mapping[str, Any]) -> Check:
    """Compare with the blocks of ``torch.cuda.memory_snapshot()``."""
    mine, why = answer["reading"]["largest_free"], answer["reading"]["reasons"].get("largest_free", "")
    if "blocks" not in answer:
        return Check(f"{name}: largest free block", mine is None and bool(why), why)
    free = [size for pool, state, size in answer["blocks"] if state == "inactive" and tuple(pool) == (0, 0)]
    private = [size for pool, state, size in answer["blocks"] if state == "inactive" and tuple(pool) != (0, 0)]
    largest = max(free, default=0)
    detail = f"{mine} bytes, in the snapshot {largest}; in private pools {max(private, default=0)}"
    return Check(f"{name}: largest free block", mine == largest, detail)


def kinds_of_allocators() -> list[Check]:
    """Read each allocator in a process of its own."""
    checks = []
    for name, setting in SETTINGS.items():
        answer = run("pattern", setting)
        if isinstance(answer, str):
            checks.append(Check(name, False, answer))
        else:
            checks += [*counters(name, answer), largest_free(name, answer)]
    return checks


def out_of_memory() -> list[Check]:
    """An allocation that can't be served is counted, and the job goes on."""
    answer = run("oom", "backend:native")
    if isinstance(answer, str):
        return [Check("out of memory", False, answer)]
    before, after, stats = answer["before"], answer["reading"], answer["stats"]
    counted = (
        after["ooms"] == stats["num_ooms"] == before["ooms"] + 1 and after["retries"] == stats["num_alloc_retries"]
    )
    return [
        Check("out of memory: raised", bool(answer["message"]), answer["message"]),
        Check(
            "out of memory: counted", counted, f"ooms {before['ooms']} -> {after['ooms']}, retries {after['retries']}"
        ),
        Check("out of memory: trains on", answer["gradient"] == 2 * 256**3, f"sum of gradients {answer['gradient']}"),
    ]


def several_devices() -> list[Check]:
    """What a process holds on another device than its own."""
    if torch.cuda.device_count() < 2:
        return [Check("memory on another device", None, "one device only")]
    answer = run("elsewhere", "backend:native")
    if isinstance(answer, str):
        return [Check("memory on another device", False, answer)]
    right = answer["elsewhere"] == {"1": answer["reserved"]} and answer["reserved"] >= answer["bytes"] == 64 * MIB
    untouched = not answer["first"] and not answer["context"]
    return [
        Check("memory on another device", right, str(answer)),
        Check("looking there makes no context", untouched, f"before: {answer['first']}, context {answer['context']}"),
    ]


def only_looking() -> list[Check]:
    """A process that only looks has no context after it."""
    answer = run("untouched", "backend:native")
    if isinstance(answer, str):
        return [Check("looking makes no context", False, answer)]
    reading = answer["reading"]
    nothing = reading["backend"] == "" and not any(reading[field] for field in KEYS) and answer["quick"] == [0, 0]
    state = answer["device"]["state"]
    untouched = not answer["initialized"] and nothing and state in ("pending", "unavailable")
    return [Check("looking makes no context", untouched, f"device {state}, allocator {reading['allocated']} bytes")]
