"""Reads the small files in which Linux tells of processes and of itself (``/proc``, ``/sys``).

By system calls alone: what Python's own files bring along costs several times what the kernel needs to answer, and the
agent's thread reads a few of them every second.
"""

from __future__ import annotations

import os
from typing import Final

_OPEN: Final = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PIECE: Final = 1 << 16


def text_of(name: str) -> str:
    """Return a file's text, what is not UTF-8 replaced; raises OSError when it cannot be read.

    It is opened anew each time: a script may close every descriptor that it did not open.
    """
    file = os.open(name, _OPEN)
    try:
        data = b""
        while piece := os.read(file, _PIECE):
            data += piece
    finally:
        os.close(file)
    return data.decode("utf-8", "replace")


def text_or_none(name: str) -> str | None:
    """Return a file's text, None when it cannot be read."""
    try:
        return text_of(name)
    except OSError:
        return None


def machine_memory() -> tuple[int, int]:
    """Return the machine's RAM and what programs can still have of it without swapping, in bytes.

    Raises OSError or ValueError where that cannot be read.
    """
    sizes: dict[str, int] = {}
    try:
        for line in text_of("/proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemFree", "MemAvailable"):
                sizes[name] = int(rest.removesuffix("kB")) * 1024
                if len(sizes) == 3:
                    break
        total, available = sizes["MemTotal"], sizes["MemAvailable"]
    except (FileNotFoundError, KeyError):
        total = available = 0
    if not available:
        # No Linux, one from before 2014, or one that gives 0 for what can be estimated: rare enough to be imported
        # only then.
        import psutil

        memory = psutil.virtual_memory()
        return int(memory.total), int(memory.available)
    # Some containers are shown more available than they have.
    return total, available if available <= total else sizes.get("MemFree", total)


def resident_bytes() -> int:
    """Return the resident set size of this process in bytes; raises OSError or ValueError where it cannot be read."""
    return int(text_of("/proc/self/statm").split(None, 2)[1]) * _PAGE


def cpu_ticks() -> tuple[int, int]:
    """Return the ticks that all CPUs together were busy since the start, and that there were (``proc_stat(5)``).

    Raises OSError or ValueError where that cannot be read.
    """
    user, nice, system, idle, *rest = map(int, text_of("/proc/stat").split("\n", 1)[0].split()[1:])
    # Guest time, the ninth and tenth, is counted within user and nice as well.
    waiting, serving = sum(rest[:1]), sum(rest[1:4])
    busy = user + nice + system + serving
    return busy, busy + idle + waiting


def started(pid: int) -> str:
    """Return when a process has started, so that no later one of that number has the same; empty when it is gone.

    A sandbox may not tell which boot it is; the time since it began is told all the same.
    """
    try:
        ticks = text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
    return f"{(text_or_none('/proc/sys/kernel/random/boot_id') or '').strip()}:{ticks}"
