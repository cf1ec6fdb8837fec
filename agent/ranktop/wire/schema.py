"""Messages between agents, hub and viewers.

Every message is two frames, a header and a body, both msgpack. A hub needs only the header to route and keep a
message; bodies are decoded where they are used. Fields are added at the end with a default and never renamed; a
reader skips the fields that it does not know.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Plan
from ranktop.budget.terms import Memory
from ranktop.probes.reading import (
    AllocatorReading,
    Collectives,
    DeviceDetail,
    DeviceIdentity,
    DeviceReading,
    StepTimes,
)
from ranktop.wire.nodes import Door, Doors, Nodes
from ranktop.wire.progress import Progress as Progress

LOOK_SECONDS: Final = 0.25
"""Mean spacing of the looks at the collectives' positions, which ranks of one node take at the same times
(``look_times``)."""

SCHEMA_VERSION: Final = 1
"""Rises when an older reader would misread a message; both sides must have the same."""

MAX_MESSAGE: Final = 4 * 1024 * 1024
"""Bytes; a larger frame is counted and dropped unread."""


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Routes a message; the first frame of each."""

    kind: str
    """``card``, ``sample``, ``device``, ``stack``, ``box``, ``end`` from agents; ``history``, ``mark``, ``nodes`` by
    the hub; ``doors`` from an agent to its own node's hub, which keeps them to itself."""
    rank: int
    """-1 for the job as a whole."""
    pid: int
    restart: int
    """Elastic restart count of the process: (rank, restart) names one life of a rank."""
    seq: int
    """Counted per process from 0; a gap means that messages were dropped."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a job, the same on all its ranks."""

    id: str
    """Short hexadecimal name, kept over elastic restarts."""
    name: str
    """Script's name without folder and ending."""
    world_size: int
    launcher: str = ""
    """``torchrun``, ``deepspeed``, ``mpirun``, ``srun`` or ``python``."""
    run_id: str = ""


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of what a rank runs; empty when it is not loaded."""

    ranktop: str = ""
    python: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    deepspeed: str = ""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says of itself: at the start, and again whenever it changed."""

    job: Job
    rank: int
    local_rank: int = 0
    node: str = ""
    """Host name."""
    pid: int = 0
    restart: int = 0
    revision: int = 0
    """Rises with every new card of the same process."""
    device: DeviceIdentity = DeviceIdentity()
    versions: Versions = Versions()
    backend: str = ""
    """Backend of the default process group, e.g. ``nccl``."""
    model: str = ""
    """Class name of the root module; empty until a model has been seen."""
    inventory: Inventory | None = None
    plan: Plan | None = None
    script: str = ""
    simulated: bool = False
    notes: tuple[str, ...] = ()
    """What the agent could not do or see, in words."""
    pids: tuple[int, ...] = ()
    """This process's ids in the PID namespaces that it can see, the outermost first (``NSpid`` of proc(5))."""
    code: str = ""
    """Eight hexadecimal digits of the SHA-256 of the script's bytes; empty when it could not be read."""
    local_size: int = 0
    """Ranks on this rank's node, by the launcher's word; 0 where it does not tell."""
    node_rank: int = 0
    """The node's place among the job's, which tells two of one name apart; 0 where the launcher does not tell."""
    trainer: str = ""
    """What drives the training loop, e.g. ``transformers 5.24.0 Trainer``; empty when nothing known does."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Memory at the moments of the last finished step."""

    step: int
    first: bool = False
    """The step's optimizer made its state during this step."""
    moments: dict[str, Memory] = {}
    """moment -> bytes by category; a moment that was not seen is absent."""
    age: float = 0.0
    """Seconds from the end of that step to the sample."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent itself costs and loses."""

    cpu_s: float = 0.0
    """CPU seconds of the agent's threads for the previous sample."""
    hook_s: float = 0.0
    """Seconds the agent's hooks took in the training thread since the previous sample."""
    dropped: int = 0
    """Messages dropped since the start because the hub was not reading."""
    errors: int = 0
    """Failures inside the agent since the start, each swallowed."""


class Look(msgspec.Struct, array_like=True, frozen=True):
    """How many collectives this rank had enqueued at one time."""

    slot: int
    """``floor(CLOCK_MONOTONIC / LOOK_SECONDS)``: ranks of one node that name the same slot looked at the same time."""
    positions: tuple[int | None, ...] = ()
    """``enqueued`` of each group of the sample's ``collectives``, in its order."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says every interval."""

    rank: int
    uptime: float = 0.0
    """Seconds since the agent started, by a monotonic clock."""
    interval: float = 1.0
    """Seconds to the next sample."""
    now: Memory = Memory()
    table: Table | None = None
    reasons: dict[str, str] = {}
    """category -> why it is None in ``now`` and in the table."""
    device: DeviceReading = DeviceReading()
    peak_allocated: int | None = None
    """The allocator's running peak in bytes."""
    inactive_split: int | None = None
    retries: int | None = None
    ooms: int | None = None
    step: int = 0
    """Steps finished since the start."""
    step_age: float | None = None
    """Seconds since the last step finished; None before the first."""
    steps: tuple[StepTimes, ...] = ()
    """The steps finished since the previous sample, oldest first, the last 16 at most; where none was, the last one
    again: who counts steps goes by their ``index``."""
    phase: str = ""
    """``data``, ``forward``, ``backward``, ``optimizer`` or ``eval``: what the training thread is in; else empty."""
    collectives: Collectives = Collectives()
    cost: Cost = Cost()
    looks: tuple[Look, ...] = ()
    """Since the previous sample, oldest first."""
    starved: float | None = None
    """Share of the last interval in which the training thread was ready to run and had no CPU (``schedstat``), 0 to 1;
    None where the kernel does not tell."""
    progress: Progress | None = None
    """None while nothing has been told."""
    activity: str = ""
    """What the script says that the training thread does (``agent.annotate``): ``validation``, ``save``, or a word of
    its own; empty while it says nothing."""


class Brief(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a hub reads of a sample of which it keeps no point: all else is skipped, and left to whoever shows it."""

    rank: int
    interval: float = 1.0
    step: int = 0


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's device says of itself more seldom than every interval; the hub keeps the newest."""

    rank: int
    detail: DeviceDetail = DeviceDetail()
    allocator: AllocatorReading = AllocatorReading()
    """All counters of the rank's allocator."""


class Call(msgspec.Struct, array_like=True, frozen=True):
    """One frame of a Python stack, without its source text: that may hold anything."""

    file: str
    """The script's or module's path without the folders above its package (``torch/nn/modules/module.py``)."""
    line: int
    function: str


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """Where the training thread is while its step takes much longer than usual. The hub keeps the newest of a life."""

    rank: int
    step: int
    """Steps finished when it was taken: with a newer step it is past."""
    waited: float
    """Seconds since the last step finished, when it was taken."""
    calls: tuple[Call, ...] = ()
    """Outermost first, at most 32, the innermost kept."""
    reason: str = ""
    """Why there are no calls, in words."""


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank leaves behind that ran out of memory. The hub keeps it, with the last samples, after its end."""

    rank: int
    error: str
    """Type and first line of the exception."""
    step: int = 0
    """Steps finished before."""
    phase: str = ""
    asked: int | None = None
    """Bytes of the allocation that failed, as the error tells them."""
    free: int | None = None
    """Bytes free on the device at that time."""
    limit: int | None = None
    """Bytes that the device, or the limit that was met, has in all."""
    memory: Memory = Memory()
    """By category when it happened (the last that could be told)."""
    allocator: AllocatorReading = AllocatorReading()
    collectives: Collectives = Collectives()
    inputs: tuple[str, ...] = ()
    """Inputs of the root module in that step, e.g. ``int64 [8, 1024]``."""
    calls: tuple[Call, ...] = ()
    """The traceback, outermost first, at most 32, the innermost kept."""
    reasons: dict[str, str] = {}


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank's process ended. Sent by the rank itself when it can, else made by the hub."""

    rank: int
    how: str
    """``exit`` (its own end), ``exception``, ``signal``, ``vanished`` (no trace but the end)."""
    code: int | None = None
    """Exit code, or the signal's number."""
    detail: str = ""
    """One line: exception type and message, signal name."""


class Point(msgspec.Struct, array_like=True, frozen=True):
    """One second of a rank's history in compact form. Bytes, seconds."""

    t: float
    """Seconds on the hub's monotonic clock."""
    step: int
    step_s: float | None
    used: int | None
    """In use on the device by anybody."""
    states: int | None
    """Parameters, gradients and optimizer at the peak moment."""
    activations: int | None
    reserved: int | None
    utilization: int | None
    power: float | None
    temperature: int | None
    after: int | None = None
    """Tensors of the process (states, activations, buffers) that the last step read left behind: at its end, or at the
    start of the next."""
    loss: float | None = None
    """The last that was told; None where that is no finite number."""
    learning_rate: float | None = None
    loss_step: int | None = None
    """Step that the loss belongs to: the trainer's count, or the rank's own where the trainer does not tell."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one rank, oldest first."""

    rank: int
    points: tuple[Point, ...] = ()


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to the stream itself, e.g. a hub that replaced a killed one."""

    what: str
    """``hub-replaced``, ``gap``, ``refused``, ``told``: the hub was told to go while its ranks lived. Of a rank
    ``process``: what its node says of it while it is silent, and ``life``: its present life began then (in a snapshot,
    after what is told of its former ones)."""
    detail: str = ""
    """Of ``process``: ``stopped`` (by a signal or a debugger), ``waiting for I/O`` (uninterruptible), ``sleeping``,
    ``running``; empty when it speaks again."""


Body = Card | Sample | Device | Stack | Box | End | History | Mark | Doors | Nodes

BODIES: Final[dict[str, type[Body]]] = {
    "card": Card,
    "sample": Sample,
    "device": Device,
    "stack": Stack,
    "box": Box,
    "end": End,
    "history": History,
    "mark": Mark,
    "doors": Doors,
    "nodes": Nodes,
}
"""Header kind -> type of the body."""


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """Hub to agent, for what it received: that the hub lives, and what it lacks."""

    hub: str
    """Identity of this hub process; another one means that the old hub is gone."""
    want_card: bool = False
    seq: int = -1
    """Number of the newest message that has arrived from this agent; -1 for one that could not be read."""
    door: Door | None = None
    """In answer to ``doors``: where this hub takes connections of the job's other hubs, for the job's store."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Viewer to hub: everything after ``since``, at once or as soon as there is something."""

    hub: str = ""
    """The hub that ``since`` refers to; empty or another one asks for a snapshot."""
    since: int = -1
    wait: float = 5.0
    """Seconds after which an empty batch is sent."""


class Item(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One message as the hub keeps it."""

    number: int
    """Position in the hub's stream."""
    t: float
    """Arrival, seconds on the hub's monotonic clock."""
    header: bytes
    body: bytes


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Hub to viewer, in answer to one Ask."""

    hub: str
    job: Job
    now: float
    """The hub's monotonic clock, seconds; ``now - item.t`` is a message's age."""
    snapshot: bool
    """True when this batch starts anew: forget what came before."""
    last: int
    """Number to ask from next time."""
    items: tuple[Item, ...] = ()
    lost: int = 0
    """Items after ``since`` that the hub no longer holds."""
    refused: int = 0
    """Messages the hub has dropped as unreadable since it started."""
    started: float = 0.0
    """Seconds on the hub's clock when it began to record."""
