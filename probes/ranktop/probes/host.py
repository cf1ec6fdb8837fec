"""The machine's RAM, or what a container or batch job may have of it, as a device for jobs that compute on CPUs."""

from __future__ import annotations

import platform
from pathlib import Path

from ranktop.probes.cgroup import MemoryGroups, MemoryLimit
from ranktop.probes.kernel_files import cpu_ticks, machine_memory, resident_bytes
from ranktop.probes.reading import DeviceIdentity, DeviceReading

_NOT_ON_A_HOST = "not read on a host"
_DEVICES_OWN = (
    "reserved",
    "power",
    "power_limit",
    "temperature",
    "sm_clock",
    "memory_clock",
    "throttle",
    "processes",
    "process_pid",
)


class HostDevice:
    """Reads this machine's memory and CPU: total = RAM, free = what programs can still have without swapping.

    Where a cgroup limits memory below that (a container, a batch job), the limit is the total, for at it the
    kernel kills; used is then what counts against the limit.

    ``process_used`` is this process's resident set size, ``utilization`` the share of all CPUs together
    that was busy since the previous reading, by whomever.
    """

    def __init__(self, note: str = "") -> None:
        """``note`` says why a job that could have had another device reports its host."""
        self._note = note
        self._name = cpu_name()
        self._groups = MemoryGroups()
        self._ram = machine_memory()[0]
        self._cpu: tuple[int, int] | None = None
        self._limit: int | None = None
        self._identity = DeviceIdentity(kind="host", name=self._name, total=self._ram, note=note)
        self._describe(self._groups.tightest())

    def identity(self) -> DeviceIdentity:
        """Return the CPU's model name and the RAM that there was for this process when it was last read."""
        return self._identity

    def _describe(self, found: MemoryLimit | None) -> None:
        limit = None if found is None or found.limit >= self._ram else found.limit
        if limit == self._limit:
            return
        self._limit, note = limit, self._note
        if limit is not None:
            words = f"memory limited by a cgroup: {_gib(limit)} of the machine's {_gib(self._ram)}"
            note = f"{note}; {words}" if note else words
        self._identity = DeviceIdentity(kind="host", name=self._name, total=limit or self._ram, note=note)

    def read(self) -> DeviceReading:
        """Return the values of now; each that can't be read is None with its reason."""
        reasons = dict.fromkeys(_DEVICES_OWN, _NOT_ON_A_HOST)
        total = free = used = resident = None
        try:
            total, free = self._bounds(*machine_memory())
            used = total - free
        except (OSError, RuntimeError, ValueError) as error:
            reasons.update(dict.fromkeys(("total", "used", "free"), f"{type(error).__name__}: {error}"))
        try:
            resident = resident_bytes()
        except (OSError, ValueError) as error:
            reasons["process_used"] = f"{type(error).__name__}: {error}"
        utilization = self._utilization(reasons)
        if self._note:
            reasons["device"] = self._note
        return DeviceReading(
            total=total,
            used=used,
            free=free,
            process_used=resident,
            utilization=utilization,
            reasons=reasons,
        )

    def _bounds(self, total: int, free: int) -> tuple[int, int]:
        """Return total and free within the limit of this process's cgroup, where one is set."""
        limit = self._groups.tightest()
        self._describe(limit)
        if limit is None or limit.limit >= total:
            return total, free
        left = limit.limit if limit.used is None else max(0, limit.limit - limit.used)
        return limit.limit, min(free, left)

    def detail(self) -> None:
        """Return nothing: what a host could tell besides is not read."""

    def close(self) -> None:
        """Do nothing: reading a host holds nothing."""

    def _utilization(self, reasons: dict[str, str]) -> int | None:
        try:
            busy, total = cpu_ticks()
        except (OSError, ValueError) as error:
            reasons["utilization"] = f"{type(error).__name__}: {error}"
            return None
        before, self._cpu = self._cpu, (busy, total)
        if before is None or total <= before[1]:
            reasons["utilization"] = "takes two readings"
            return None
        return max(0, min(100, round(100 * (busy - before[0]) / (total - before[1]))))


def cpu_name() -> str:
    """Return the CPU's model name, or the architecture where the system does not tell it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("model name", "hardware", "cpu model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
