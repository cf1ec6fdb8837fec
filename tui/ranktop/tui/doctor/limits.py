"""What this machine lets a process have: RAM, shared memory, open files, locked memory."""

from __future__ import annotations

import os
import resource
from typing import Final

from ranktop.tui.doctor.check import Check, Result, failed, passed, skipped, warned
from ranktop.tui.doctor.container import memory_field, runtimes
from ranktop.tui.doctor.scene import Scene, size

SHM_FREE: Final = 1 << 30
"""Bytes of shared memory under which data loaders and NCCL run into trouble."""
SHM_DOCKER: Final = 64 << 20
"""Docker's default size."""
FILES: Final = 4096
"""Open files that a rank with many peers, loaders and checkpoints may need."""
RAM_FREE: Final = 0.05


def look_at_ram(scene: Scene) -> Result:
    """Tell the machine's RAM and what is left of it."""
    total, free = memory_field(scene, "MemTotal"), memory_field(scene, "MemAvailable")
    if total is None or free is None:
        return skipped("/proc/meminfo does not tell", total=total, free=free)
    found = f"{size(free)} free of {size(total)}"
    if free < RAM_FREE * total:
        return warned(found, "end what uses it, or the kernel will: see `ps aux --sort=-rss`", total=total, free=free)
    return passed(found, total=total, free=free)


def look_at_shared_memory(scene: Scene) -> Result:
    """Tell the size of /dev/shm: data loaders' workers and NCCL pass memory through it."""
    path = scene.path("/dev/shm")
    try:
        status = os.statvfs(path)
    except OSError as error:
        return failed(f"/dev/shm: {error.strerror}", "sudo mount -t tmpfs tmpfs /dev/shm", total=None, free=None)
    return shared_memory(
        status.f_frsize * status.f_blocks,
        status.f_frsize * status.f_bavail,
        os.access(path, os.W_OK),
        runtimes(scene),
    )


def shared_memory(total: int, free: int, writable: bool, inside: list[str]) -> Result:
    """Judge a /dev/shm of that size in bytes, in the containers named."""
    facts = {"total": total, "free": free}
    if not writable:
        return failed("/dev/shm may not be written to", "sudo chmod 1777 /dev/shm", **facts)
    found = f"{size(free)} free of {size(total)}"
    more = "sudo mount -o remount,size=50% /dev/shm"
    if "kubernetes" in inside:
        more = "mount an emptyDir with medium: Memory at /dev/shm"
    elif inside:
        more = "start the container with --ipc=host or --shm-size=16g"
    if total <= SHM_DOCKER:
        return warned(f"{found}: DataLoader workers and NCCL will end with a bus error", more, **facts)
    if free < SHM_FREE:
        advice = more if total < 2 * SHM_FREE else "remove what dead jobs left: ls -l /dev/shm"
        return warned(f"{found}: little for DataLoader workers and NCCL", advice, **facts)
    return passed(found, **facts)


def look_at_files(scene: Scene) -> Result:
    """Tell how many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    facts = {"soft": _limit(soft), "hard": _limit(hard)}
    if 0 <= soft < FILES:
        reach = "ulimit -n 65536" if hard < 0 or hard >= 65536 else f"ulimit -n {hard}"
        return warned(
            f"{soft} open files: few for many ranks and DataLoader workers", f"{reach} before the job", **facts
        )
    return passed(f"{_words(soft)} open files", **facts)


def look_at_locked(scene: Scene) -> Result:
    """Tell how much memory may be locked: RDMA pins its buffers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return locked(soft, hard, _rdma(scene))


def locked(soft: int, hard: int, adapters: list[str]) -> Result:
    """Judge a limit of locked memory in bytes (-1: none) beside the RDMA adapters named."""
    facts = {"soft": _limit(soft), "hard": _limit(hard), "rdma": adapters}
    if soft < 0:
        return passed("locked memory without limit", **facts)
    if adapters:
        found = f"{size(soft)} of locked memory, but {', '.join(adapters[:3])} (RDMA) needs more"
        return warned(found, "ulimit -l unlimited (docker: --ulimit memlock=-1) before the job", **facts)
    return passed(f"{size(soft)} of locked memory; no RDMA adapter that needs more", **facts)


def _rdma(scene: Scene) -> list[str]:
    try:
        return sorted(entry.name for entry in scene.path("/sys/class/infiniband").iterdir())
    except OSError:
        return []


def _limit(value: int) -> int | None:
    return None if value < 0 else value


def _words(value: int) -> str:
    return "any number of" if value < 0 else str(value)


CHECKS = (
    Check("container.ram", "RAM", look_at_ram),
    Check("container.shm", "/dev/shm", look_at_shared_memory),
    Check("container.nofile", "open files", look_at_files),
    Check("container.memlock", "locked mem", look_at_locked),
)
