"""The memory limit of a container or a batch job: what a process may use before the kernel kills it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

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


class MemoryGroups:
    """The memory cgroups around this process, v1 or v2; found once, read often."""

    def __init__(self, read: Read | None = None) -> None:
        """``read`` stands in for reading the machine's own files."""
        self._read = read or _text
        self._groups = _groups(self._read("/proc/self/cgroup") or "")

    def tightest(self) -> MemoryLimit | None:
        """Return the tightest limit of those that are set, None when none is."""
        found: tuple[int, str, int] | None = None
        for folder, version in self._groups:
            name = "memory.max" if version == 2 else "memory.limit_in_bytes"
            limit = self._number(f"{folder}/{name}")
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
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _text(name: str) -> str | None:
    try:
        return Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
