"""Runs every getter x every return code once, on one GPU of eight read by one process, and keeps what was told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nvml_stub.build import NvmlStub
from nvml_stub.client import difference
from nvml_stub.hardware import GIB, device, device_uuid
from nvml_stub.remote import PROMPT, Client

CODES: Final = (1, 2, 3, 4, 6, 7, 10, 12, 13, 15, 16, 18, 19, 25, 27, 999, 4242)
WORDS: Final = {
    1: "not initialised", 2: "invalid argument", 3: "not supported", 4: "not permitted", 6: "not found",
    7: "did not fit", 10: "timed out", 12: "libnvidia-ml", 13: "too old", 15: "lost", 16: "reset", 18: "version",
    19: "in use", 25: "another version", 27: "not ready", 999: "no reason", 4242: "not known",
}  # fmt: skip
"""Code -> a part of what is said of it."""
CURES: Final = {15: "Xid 79", 16: "nvidia-smi --gpu-reset", 18: "reboot", 999: "container", 4: "container", 10: "dmesg"}
"""Code -> a part of what to do."""
SICK: Final = 3
COUNT: Final = 8

P: Final = "nvmlDeviceGet"
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    f"{P}MemoryInfo_v2": ("total", "used", "free", "reserved"),
    f"{P}ComputeRunningProcesses_v3": ("processes", "process_used", "process_pid"),
    f"{P}UtilizationRates": ("utilization", "memory_utilization"),
    f"{P}PowerUsage": ("power",),
    f"{P}Temperature": ("temperature",),
    f"{P}ClockInfo": ("sm_clock", "memory_clock"),
    f"{P}CurrentClocksEventReasons": ("throttle",),
    f"{P}EnforcedPowerLimit": ("power_limit",),
    f"{P}FieldValues": ("memory_temperature", "recovery", "nvlinks"),
    f"{P}TotalEccErrors": (
        "ecc_corrected", "ecc_uncorrected", "ecc_aggregate_corrected", "ecc_aggregate_uncorrected",
    ),
    f"{P}RemappedRows": ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed"),
    f"{P}TotalEnergyConsumption": ("energy",),
    f"{P}PerformanceState": ("performance_state",),
    f"{P}CurrPcieLinkGeneration": ("pcie_generation",),
    f"{P}CurrPcieLinkWidth": ("pcie_width",),
    f"{P}MaxPcieLinkGeneration": ("pcie_max_generation",),
    f"{P}MaxPcieLinkWidth": ("pcie_max_width",),
    f"{P}PcieReplayCounter": ("pcie_replays",),
    f"{P}PcieThroughput": ("pcie_tx", "pcie_rx"),
    f"{P}GraphicsRunningProcesses_v3": ("graphics_processes",),
    f"{P}MPSComputeRunningProcesses_v3": ("mps_processes",),
    f"{P}FanSpeed": ("fan",),
    f"{P}EccMode": ("ecc_enabled",),
    f"{P}TemperatureThreshold": (
        "temperature_slowdown", "temperature_shutdown", "temperature_max", "temperature_memory_max",
    ),
    f"{P}PowerManagementLimitConstraints": ("power_min_limit", "power_max_limit"),
    f"{P}PowerManagementDefaultLimit": ("power_default_limit",),
    f"{P}MaxClockInfo": ("max_sm_clock", "max_memory_clock"),
    f"{P}PersistenceMode": ("persistence",),
    f"{P}ComputeMode": ("compute_mode",),
    "nvmlGpmSampleGet": ("gpm_sm", "gpm_occupancy", "gpm_tensor", "gpm_dram"),
    "nvmlGpmMetricsGet": ("gpm_sm", "gpm_occupancy", "gpm_tensor", "gpm_dram"),
}  # fmt: skip
"""Function -> the fields that only it fills."""
OTHER_FORM: Final = (13, 25)
OLDER: Final[dict[str, tuple[str, ...]]] = {
    f"{P}MemoryInfo": (f"{P}MemoryInfo_v2",),
    f"{P}ComputeRunningProcesses_v2": (f"{P}ComputeRunningProcesses_v3",),
    f"{P}ComputeRunningProcesses": (f"{P}ComputeRunningProcesses_v3", f"{P}ComputeRunningProcesses_v2"),
    f"{P}GraphicsRunningProcesses_v2": (f"{P}GraphicsRunningProcesses_v3",),
    f"{P}GraphicsRunningProcesses": (f"{P}GraphicsRunningProcesses_v3", f"{P}GraphicsRunningProcesses_v2"),
    f"{P}MPSComputeRunningProcesses_v2": (f"{P}MPSComputeRunningProcesses_v3",),
    f"{P}MPSComputeRunningProcesses": (f"{P}MPSComputeRunningProcesses_v3", f"{P}MPSComputeRunningProcesses_v2"),
    f"{P}CurrentClocksThrottleReasons": (f"{P}CurrentClocksEventReasons",),
    f"{P}TemperatureV": (f"{P}Temperature",),
}
"""Form of a request that is used where the driver has none of the newer ones -> those, the newest first."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One getter with one code, as the sick device and the others told it."""

    getter: str
    code: int
    fields: tuple[str, ...]
    """That should have no value; empty where an older form answers in the getter's place."""
    met: bool
    seconds: float
    told: dict[str, dict[str, Any]]
    before: dict[str, dict[str, Any]]
    others: dict[str, Any]
    """Number of another device -> what has changed of it."""
    after: dict[str, Any]
    """What was not as before when the code was gone."""
    called: frozenset[str]
    """Functions that the sick device was asked by."""

    @property
    def name(self) -> str:
        return f"{self.getter} -> {self.code}"


@dataclass(slots=True)
class Sweep:
    """All pairs, and every function that the library was called for."""

    pairs: list[Pair] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    whole: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Code -> what is told of a device of which every function returns it."""


@contextmanager
def job(library: Path, folder: Path) -> Iterator[tuple[NvmlStub, Client]]:
    """Eight devices with everything that a device can have, and one client that reads them all."""
    stub = NvmlStub(library, folder)
    with_client = Client(stub, RANKTOP_GPM="1")
    pid = with_client.process.pid
    stub.devices(*(device(n, fan=30 + n, procs=f"{pid}:{3 * GIB},4000001:{n}", mps_procs="77:5") for n in range(COUNT)))
    try:
        for n in range(COUNT):
            with_client.open(device_uuid(n), **PROMPT)
        for n in range(COUNT):
            whole(with_client, n)
        yield stub, with_client
    finally:
        code, _, errors = with_client.end()
        assert (code, errors) == (0, "")


def whole(client: Client, probe: int) -> None:
    """Read until nothing is missing."""
    deadline = time.monotonic() + 10
    while True:
        told = client.told(probe)
        missing = {name: told[part]["reasons"] for part in told for name in ("reasons",) if told[part].get(name)}
        if told["detail"] and not missing and told["reading"]["state"] == "ok":
            return
        assert time.monotonic() < deadline, (missing, told["reading"]["state"])


def run_pair(stub: NvmlStub, client: Client, getter: str, code: int, fields: tuple[str, ...], before: Any) -> Pair:
    setting = f"d{SICK}.{getter}.ret"
    stub.update({setting: code})
    place = stub.calls_end()
    started = time.monotonic()
    says = {name: words_of(getter, code, name) for name in fields}
    condition: dict[str, Any] = {"says": says} if fields else {"fresh": True}
    seen = client.watch(SICK, **condition)
    seconds = time.monotonic() - started
    called = frozenset(name for _, name, number in stub.call_lines(place)[0] if number == SICK)
    stub.update({setting: None})
    after = client.watch(SICK, same=True)
    left = {} if after["met"] else difference(before, after["told"])
    return Pair(getter, code, fields, seen["met"], seconds, seen["told"], before, seen["changed"], left, called)


AT_START: Final = frozenset(
    {
        "nvmlInitWithFlags", f"{P}HandleByUUID", f"{P}Name", f"{P}Index", f"{P}PciInfo_v3", f"{P}NumaNodeId",
        "nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion",
        "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", f"{P}NvLinkState", f"{P}NvLinkErrorCounter",
    }
)  # fmt: skip
"""Asked when a device is found, or in place of others: not swept here."""


def words_of(getter: str, code: int, name: str) -> str:
    """What the reason of a field has to say."""
    if (getter, name) == (f"{P}FieldValues", "nvlinks") and code in (*OTHER_FORM, 2, 3):
        # There is another way to ask, which takes a call for each fact of each link.
        return "one link at a time"
    return f"(NVML {code})"


def fields_of(getter: str) -> tuple[str, ...]:
    return FIELDS[OLDER[getter][0] if getter in OLDER else getter]


def answered_by_older(getter: str, code: int) -> bool:
    """Whether there is another way to ask for the same, and the code says that there might be."""
    if getter == f"{P}MemoryInfo_v2":
        return code in (*OTHER_FORM, 2, 3, 999)
    has_older = getter in {names[0] for names in OLDER.values()} or getter.endswith("_v2")
    return code in OTHER_FORM and has_older


def run_all(library: Path, folder: Path) -> Sweep:
    """Run every pair once."""
    sweep = Sweep()
    with job(library, folder) as (stub, client):
        client.remember()
        for getter in (*FIELDS, *OLDER):
            hidden = {f"d{SICK}.{newer}.ret": 13 for newer in OLDER.get(getter, ())}
            stub.update(dict(hidden))
            client.watch(SICK, fresh=True)
            before = client.remember()[SICK]
            for code in CODES:
                fields = () if answered_by_older(getter, code) else fields_of(getter)
                sweep.pairs.append(run_pair(stub, client, getter, code, fields, before))
            stub.update(dict.fromkeys(hidden))
            client.watch(SICK, fresh=True)
        sweep.called = set(stub.counts())
        for code in CODES:
            stub.update({f"d{SICK}.*.ret": code})
            says = dict.fromkeys(("total", "power", "energy"), f"(NVML {code})")
            sweep.whole[code] = client.watch(SICK, says=says)["told"]
            stub.update({f"d{SICK}.*.ret": None})
            client.watch(SICK, same=True)
    print(f"\n{len(sweep.pairs)} (getter, code) pairs have run")
    return sweep
