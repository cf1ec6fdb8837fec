"""What the probes return: plain frozen facts, ``None`` for what could not be read and a reason beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class MigInstance:
    """Which slice of a GPU a MIG device is. Numbers are NVML's; None where they could not be read."""

    parent_uuid: str | None = None
    index: int | None = None
    """Within the parent; indexes may have gaps."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    profile: str = ""
    """E.g. ``1g.10gb``, from the device's name."""


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
    """The whole GPU's, also for a MIG instance."""
    pci_bus_id: str | None = None
    """As ``0000:81:00.0``, the whole GPU's also for a MIG instance."""
    mig: MigInstance | None = None
    numa_node: int | None = None
    unified: bool = False
    """The device has no memory of its own: total, used and free are the host's."""
    driver: str = ""
    """Version of the driver, e.g. ``570.86.15``."""
    cuda_driver: str = ""
    """The newest CUDA that the driver can serve, e.g. ``12.8``."""
    note: str = ""
    """How the device was chosen when that was not the plain way (``RANKTOP_DEVICE``)."""
    reasons: dict[str, str] = field(default_factory=dict)
    """field -> why it could not be had, in words."""


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """One process with a context on a device, as the driver lists it."""

    pid: int
    """In the driver's PID namespace, which need not be this process's."""
    bytes: int | None = None
    """On this device; None where the driver does not tell."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What the device says of itself at one time. Units: bytes, percent, watts, degrees Celsius, MHz."""

    total: int | None = None
    used: int | None = None
    """In use by anybody, driver-reserved bytes included: total - free."""
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
    """One of ``DEVICE_STATES``."""
    reserved: int | None = None
    """Held back by the driver for itself, a part of ``used``; None where the driver counts it as used (v1)."""
    throttle: tuple[str, ...] | None = None
    """Why the clocks are not higher, in words (``nvmlClocksEventReasons``); empty: for no reason."""
    processes: tuple[DeviceProcess, ...] | None = None
    """With a compute context on the device, of anybody; empty: none. At most 64."""
    process_pid: int | None = None
    """This process as the driver's list has it."""
    ages: dict[str, float] = field(default_factory=dict)
    """field -> seconds since it was read, for those that are not as old as ``age``."""


DEVICE_STATES: Final = ("ok", "pending", "no answer", "lost", "reset required", "unavailable")
"""``pending``: not asked yet, the job is on its way there. ``reset required``, ``lost``, ``unavailable``: by what NVML
answers. ``no answer``: a call has not returned within its deadline, or all are so slow that no whole answer comes.
``reasons["device"]`` says more unless ``ok``."""


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink of a device. Counters run since the driver was loaded or the link was reset."""

    link: int
    up: bool | None = None
    replay: int | None = None
    recovery: int | None = None
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceDetail:
    """What changes slowly or is asked seldom. Units: bytes, bytes/s, percent, watts, joules, degrees Celsius, MHz.

    None is unknown, with its reason under the field's name in ``reasons``. Of a MIG instance what the driver tells only
    of the whole GPU is the whole GPU's (``of_parent``).
    """

    memory_utilization: int | None = None
    """Percent of the time in which memory was read or written: the bus, not how full it is."""
    performance_state: int | None = None
    """0 is the fastest (P0)."""
    memory_temperature: int | None = None
    temperature_slowdown: int | None = None
    temperature_shutdown: int | None = None
    temperature_max: int | None = None
    """Highest at which the device runs as specified."""
    temperature_memory_max: int | None = None
    power_min_limit: float | None = None
    power_max_limit: float | None = None
    power_default_limit: float | None = None
    max_sm_clock: int | None = None
    max_memory_clock: int | None = None
    energy: float | None = None
    """Joules since the driver was loaded."""
    fan: int | None = None
    persistence: bool | None = None
    compute_mode: str | None = None
    """``default``, ``exclusive process``, ``exclusive thread`` or ``prohibited``."""
    pcie_generation: int | None = None
    pcie_max_generation: int | None = None
    pcie_width: int | None = None
    pcie_max_width: int | None = None
    pcie_tx: int | None = None
    """Bytes a second, from the device."""
    pcie_rx: int | None = None
    pcie_replays: int | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    """Links that exist; empty: the device has none."""
    ecc_enabled: bool | None = None
    ecc_corrected: int | None = None
    """Volatile: since the driver was loaded."""
    ecc_uncorrected: int | None = None
    ecc_aggregate_corrected: int | None = None
    """Over the device's life."""
    ecc_aggregate_uncorrected: int | None = None
    remapped_corrected: int | None = None
    """Rows of memory replaced because of errors."""
    remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    """A row waits to be replaced by a reset."""
    remap_failed: bool | None = None
    recovery: str | None = None
    """What the driver asks for: ``none``, ``reset``, ``reboot``, ``drain P2P``, ``drain and reset``."""
    graphics_processes: tuple[DeviceProcess, ...] | None = None
    mps_processes: tuple[DeviceProcess, ...] | None = None
    gpm_sm: float | None = None
    """Percent, like all of GPM; asked only with ``RANKTOP_GPM=1``."""
    gpm_occupancy: float | None = None
    gpm_tensor: float | None = None
    gpm_dram: float | None = None
    of_parent: tuple[str, ...] = ()
    """Fields of this and of DeviceReading that are the whole GPU's though the device is a MIG instance."""
    reasons: dict[str, str] = field(default_factory=dict)
    ages: dict[str, float] = field(default_factory=dict)
    """field -> seconds since it was read."""


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
    backend: str = ""
    """``native``, ``cudaMallocAsync``, ``pluggable`` or ``malloc``; empty before CUDA is initialised."""
    expandable: bool = False
    """Segments are expandable."""
    active: int | None = None
    """Allocated, or freed but still in use by a stream."""
    requested: int | None = None
    """As asked for, before rounding."""
    segments: int | None = None
    """Number of blocks taken from the driver."""
    largest_free: int | None = None
    """Largest free block in the cache; read only while that is cheap."""
    elsewhere: dict[int, int] = field(default_factory=dict)
    """Other CUDA device of this process (torch's index) -> bytes reserved there."""


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
    tokens: int | None = None
    """What the step's micro-batches held, as their inputs tell it: tokens, or samples where there is no sequence; None
    when no input told. Not padded tokens apart: shapes are all that is looked at."""


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

    def detail(self) -> DeviceDetail | None:
        """Return what is asked seldom as far as it is known; None before the first of it, and for a host."""
        ...

    def close(self) -> None:
        """Stop asking; never waits for a call in flight."""
        ...


class AllocatorProbe(Protocol):
    """Reads the allocator of this process."""

    def read(self) -> AllocatorReading:
        """Return all counters (for the sampling thread)."""
        ...

    def look_again(self) -> None:
        """Have the next ``read`` repeat nothing of an earlier one: the process is at its end."""
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
