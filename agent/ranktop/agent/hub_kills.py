"""Whether a process that died by SIGKILL was ended by the kernel's OOM killer: nothing of it is in its exit status.

The kernel counts whom it kills, per memory cgroup and per machine, before the victim is gone. The counters are looked
at now and then and again when a process has died; each rise is good for as many deaths as it counted.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import Final

from ranktop.agent.hub_watch import Gone
from ranktop.probes.cgroup import MemoryGroups, Read, group_counts, machine_kills

WINDOW: Final = 10.0
"""Seconds from a rise to the death that it stands for: a large process takes its time to go."""

_EVERY: Final = 2.0
_MOST: Final = 64
"""Kills remembered per counter."""

_TOPS: Final = frozenset({"/sys/fs/cgroup", "/sys/fs/cgroup/memory"})
"""Folders of the cgroups that all others are within."""

KILLED: Final = "SIGKILL by the kernel's OOM killer"
MAYBE: Final = "SIGKILL, and the kernel's OOM killer ran on this node at that time"


@dataclass(slots=True)
class _Counter:
    """One of the kernel's counts of kills."""

    count: int | None = None
    hits: int | None = None
    limit: int | None = None
    open: list[float] = field(default_factory=list)
    """When each kill was seen that no death has been put down to yet."""
    hit_at: float | None = None
    """When the limit was last seen to have been in the way."""

    def update(self, now: float, kills: int | None, hits: int | None = None, limit: int | None = None) -> None:
        if kills is not None and self.count is not None and kills > self.count:
            self.open = [*self.open, *[now] * min(kills - self.count, _MOST)][-_MOST:]
        if hits is not None and self.hits is not None and hits > self.hits:
            self.hit_at = now
        self.count, self.hits, self.limit = kills, hits, limit
        self.open = [at for at in self.open if now - at <= WINDOW]

    def claim(self) -> bool:
        """Put a death down to the oldest kill that is open; False when there is none."""
        taken, self.open = self.open[:1], self.open[1:]
        return bool(taken)

    def hit(self, now: float) -> bool:
        return self.hit_at is not None and now - self.hit_at <= WINDOW


class KernelKills:
    """The OOM killer's counters around the processes that a hub watches."""

    def __init__(self, read: Read | None = None) -> None:
        """``read`` stands in for reading the machine's own files."""
        self._read = read
        self._folders: dict[int, tuple[str, ...]] = {}
        self._groups: dict[str, _Counter] = {}
        self._machine = _Counter()
        self._next = 0.0

    def __contains__(self, pid: int) -> bool:
        return pid in self._folders

    def join(self, pid: int, now: float) -> None:
        """Count for a process from now on."""
        self._folders[pid] = MemoryGroups(self._read, pid).folders
        self._look(now)

    def look(self, now: float) -> None:
        """Look at the counters when that is due; a process may have been put into another cgroup meanwhile."""
        if now < self._next or not self._folders:
            return
        for pid in self._folders:
            folders = MemoryGroups(self._read, pid).folders
            # A process on its way out is said to be in the top (v1): its own is the last one that was told.
            if len(folders) >= len(self._folders[pid]) or not _TOPS.issuperset(folders):
                self._folders[pid] = folders
        self._look(now)

    def explain(self, gone: Gone, now: float) -> Gone:
        """Return how a process ended, in better words where the OOM killer ended it; it is no longer counted for."""
        folders = self._folders.pop(gone.pid, ())
        if gone.how != "signal" or gone.code != signal.SIGKILL:
            return gone
        self._look(now, folders)
        groups = [group for folder in folders if (group := self._groups[folder]).count is not None]
        if groups:
            # The innermost that is still there: the process's own, or what is around one that went with it.
            if not groups[0].claim():
                return gone
            limits = [group.limit for group in groups if group.limit is not None and group.hit(now)]
            return replace(gone, detail=f"{KILLED}: its cgroup's limit is {_size(min(limits))}" if limits else KILLED)
        return replace(gone, detail=MAYBE) if self._machine.claim() else gone

    def _look(self, now: float, more: tuple[str, ...] = ()) -> None:
        self._next = now + _EVERY
        wanted = {*more, *(folder for folders in self._folders.values() for folder in folders)}
        self._groups = {folder: self._groups.get(folder, _Counter()) for folder in sorted(wanted)}
        for folder, group in self._groups.items():
            counts = group_counts(folder, self._read)
            group.update(now, counts.kills, counts.hits, counts.limit)
        self._machine.update(now, machine_kills(self._read))


def _size(count: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            return f"{count / (1 << power):.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} bytes"
