"""What the probes return: plain frozen facts, ``None`` for what could not be read and a reason beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """Which device a rank computes on."""

    kind: str = "host"
    """``cuda`` or ``host`` (a CPU job: the device is the machine's RAM)."""
    uuid: str | None = None
    """As torch and NVML print it (``GPU-...`` / ``MIG-...``); None for a host."""
    name: str = ""
    total: int | None = None
    """Bytes."""
    torch_index: int | None = None
    nvml_index: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What the device says of itself at one time. Units: bytes, percent, watts, degrees Celsius, MHz."""

    total: int | None = None
    used: int | None = None
    """In use by anybody, driver-reserved bytes included."""
    free: int | None = None
    process_used: int | None = None
    """In use by this process (NVML's process list; resident set size on a host)."""
    utilization: int | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: int | None = None
    sm_clock: int | None = None
    memory_clock: int | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    """field -> why it is None, in words."""
    age: float = 0.0
    """Seconds since the values were read; grows while the driver does not answer."""
    state: str = "ok"
    """``ok``, ``no answer``, ``lost``, ``unavailable``."""


@dataclass(frozen=True, slots=True)
class AllocatorReading:
    """Counters of the memory allocator of this process on its device, in bytes."""

    allocated: int | None = None
    reserved: int | None = None
    peak_allocated: int | None = None
    """Running peak; read, never reset."""
    inactive_split: int | None = None
    retries: int | None = None
    ooms: int | None = None
    baseline: int = 0
    """Bytes in ``allocated`` that were there before the script ran (host only): they count as runtime."""
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes on the device by what holds them, each storage counted once."""

    parameters: int | None = None
    gradients: int | None = None
    optimizer: int | None = None
    buffers: int | None = None
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MomentReading:
    """The allocator and the resident categories at one moment of a step."""

    allocated: int | None
    reserved: int | None
    resident: Resident


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One finished step. Seconds; ``None`` for a phase that was not seen."""

    index: int
    """Counted from 1 by the agent; the script may count otherwise."""
    seconds: float | None = None
    data: float | None = None
    """From the end of the previous step to the first forward."""
    forward: float | None = None
    backward: float | None = None
    """From the end of forward (the loss included) to the optimizer."""
    optimizer: float | None = None
    micro_batches: int = 1
    clock: str = "host"
    """``host`` (wall clock) or ``device`` (CUDA events)."""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """How far one process group has come, in collectives."""

    name: str
    description: str = ""
    size: int | None = None
    enqueued: int | None = None
    completed: int | None = None


@dataclass(frozen=True, slots=True)
class Collectives:
    """Positions of all process groups of this rank, or the reason why they are unknown."""

    groups: tuple[GroupPosition, ...] = ()
    reason: str | None = None


class DeviceProbe(Protocol):
    """Reads one device. ``read`` returns the last answer and its age; it never blocks beyond a few milliseconds."""

    def identity(self) -> DeviceIdentity:
        """Return which device this is."""
        ...

    def read(self) -> DeviceReading:
        """Return the newest values that the device has given."""
        ...

    def close(self) -> None:
        """Stop asking; never waits for a call in flight."""
        ...


class AllocatorProbe(Protocol):
    """Reads the allocator of this process."""

    def read(self) -> AllocatorReading:
        """Return all counters (for the sampling thread)."""
        ...

    def quick(self) -> tuple[int | None, int | None]:
        """Return (allocated, reserved) as cheaply as possible (for the training thread)."""
        ...


@dataclass(frozen=True, slots=True)
class StepTable:
    """The moments of one finished step."""

    index: int
    first: bool
    """True while this step was the first to run its optimizer: optimizer state appeared during it."""
    moments: dict[str, MomentReading]
