"""The memory limit of a container or a batch job: what a process may use before the kernel kills it, and its kills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from ranktop.probes.kernel_files import text_or_none

_NO_LIMIT: Final = 1 << 60
"""Bytes from which on a limit is none: cgroup v1 writes the largest number of whole pages for it."""

Read = Callable[[str], str | None]
"""Returns a file's text by its absolute name, None when it cannot be read."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit on memory and what counts against it, in bytes."""

    limit: int
    used: int | None
    """Without pages of files that nobody needs just now; None where the kernel does not tell."""


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """What the kernel has counted of one memory cgroup since that was made; None where it does not tell."""

    kills: int | None
    """Processes that the OOM killer has ended: of the cgroup itself (v1), of those within it as well (v2)."""
    hits: int | None
    """How often its limit was in the way: of any allocation (v1), so that nothing could be given out (v2)."""
    limit: int | None
    """Bytes; None without one."""


class MemoryGroups:
    """The memory cgroups around a process, v1 or v2; found once, read often."""

    def __init__(self, read: Read | None = None, pid: int | None = None) -> None:
        """``read`` stands in for reading the machine's own files; ``pid`` is another process than this one."""
        self._read = read or text_or_none
        self._groups = _groups(self._read(f"/proc/{'self' if pid is None else pid}/cgroup") or "")
        names = {1: "memory.limit_in_bytes", 2: "memory.max"}
        limits = [(f"{folder}/{names[version]}", folder, version) for folder, version in self._groups]
        self._limits = tuple(limit for limit in limits if self._read(limit[0]) is not None)
        """File, folder and version of those that can have a limit: where none is mounted none will be."""

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the cgroups, the process's own first; those that are not mounted here as well."""
        return tuple(folder for folder, _ in self._groups)

    def tightest(self) -> MemoryLimit | None:
        """Return the tightest limit of those that are set, None when none is."""
        found: tuple[int, str, int] | None = None
        for name, folder, version in self._limits:
            limit = self._number(name)
            if limit is not None and limit < _NO_LIMIT and (found is None or limit < found[0]):
                found = (limit, folder, version)
        if found is None:
            return None
        limit, folder, version = found
        used = self._number(f"{folder}/{'memory.current' if version == 2 else 'memory.usage_in_bytes'}")
        if used is not None:
            name = "inactive_file" if version == 2 else "total_inactive_file"
            used = max(0, used - _field(self._read(f"{folder}/memory.stat") or "", name))
        return MemoryLimit(limit, used)

    def _number(self, name: str) -> int | None:
        text = (self._read(name) or "").strip()
        return int(text) if text.isdigit() else None


def group_counts(folder: str, read: Read | None = None) -> GroupCounts:
    """Read the counters of a memory cgroup by its folder; all None where there is none."""
    read = read or text_or_none
    events, control = read(f"{folder}/memory.events"), read(f"{folder}/memory.oom_control")
    if events is not None:
        kills, hits = _counter(events, "oom_kill"), _counter(events, "oom")
        limit = read(f"{folder}/memory.max")
    elif control is not None:
        failures = (read(f"{folder}/memory.failcnt") or "").strip()
        kills, hits = _counter(control, "oom_kill"), int(failures) if failures.isdigit() else None
        limit = read(f"{folder}/memory.limit_in_bytes")
    else:
        return GroupCounts(None, None, None)
    limit = (limit or "").strip()
    return GroupCounts(kills, hits, int(limit) if limit.isdigit() and int(limit) < _NO_LIMIT else None)


def machine_kills(read: Read | None = None) -> int | None:
    """Return how many processes the kernel's OOM killer has ended on this machine since it started, None if unknown."""
    return _counter((read or text_or_none)("/proc/vmstat") or "", "oom_kill")


def _counter(text: str, name: str) -> int | None:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def _groups(text: str) -> tuple[tuple[str, int], ...]:
    """Return the folders of the memory cgroups around this process, its own first, with their version."""
    found: list[tuple[str, int]] = []
    for line in text.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            root, version = "/sys/fs/cgroup", 2
        elif "memory" in controllers.split(","):
            root, version = "/sys/fs/cgroup/memory", 1
        else:
            continue
        group = PurePosixPath("/", path.lstrip("/"))
        # Inside a container the path may be the host's, which is not mounted here: the top is.
        found += [(f"{root}{'' if str(part) == '/' else part}", version) for part in (group, *group.parents)]
    return tuple(found)


def _field(text: str, name: str) -> int:
    return _counter(text, name) or 0
