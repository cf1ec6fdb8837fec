"""The machine's RAM, or what a container or batch job may have of it, as a device for jobs that compute on CPUs."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil

from ranktop.probes.cgroup import MemoryGroups
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
        self._process = psutil.Process()
        self._name = cpu_name()
        self._groups = MemoryGroups()
        self._ram: int = psutil.virtual_memory().total
        self._cpu: tuple[float, float] | None = None

    def identity(self) -> DeviceIdentity:
        """Return the CPU's model name and the RAM that there is for this process."""
        limit = self._groups.tightest()
        if limit is None or limit.limit >= self._ram:
            return DeviceIdentity(kind="host", name=self._name, total=self._ram, note=self._note)
        note = f"memory limited by a cgroup: {_gib(limit.limit)} of the machine's {_gib(self._ram)}"
        note = f"{self._note}; {note}" if self._note else note
        return DeviceIdentity(kind="host", name=self._name, total=limit.limit, note=note)

    def read(self) -> DeviceReading:
        """Return the values of now; each that can't be read is None with its reason."""
        reasons = dict.fromkeys(_DEVICES_OWN, _NOT_ON_A_HOST)
        total = free = used = resident = None
        try:
            memory = psutil.virtual_memory()
            total, free = self._bounds(int(memory.total), int(memory.available))
            used = total - free
        except (OSError, RuntimeError, ValueError) as error:
            reasons.update(dict.fromkeys(("total", "used", "free"), f"{type(error).__name__}: {error}"))
        try:
            resident = int(self._process.memory_info().rss)
        except (psutil.Error, OSError) as error:
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
        if limit is None or limit.limit >= total:
            return total, free
        left = limit.limit if limit.used is None else max(0, limit.limit - limit.used)
        return limit.limit, min(free, left)

    def detail(self) -> None:
        """Return nothing: what a host could tell besides is not read."""

    def close(self) -> None:
        """Do nothing: reading a host holds nothing."""

    def _utilization(self, reasons: dict[str, str]) -> int | None:
        # Not psutil.cpu_percent: its "since the last call" is kept per process, and the script may use it
        # too.
        try:
            times = psutil.cpu_times()
        except (OSError, RuntimeError) as error:
            reasons["utilization"] = f"{type(error).__name__}: {error}"
            return None
        # Guest time is counted within user and nice as well (proc_stat(5)).
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        before, self._cpu = self._cpu, (busy, total)
        if before is None or total <= before[1]:
            reasons["utilization"] = "takes two readings"
            return None
        share = float((busy - before[0]) / (total - before[1]))
        return max(0, min(100, round(100 * share)))


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
