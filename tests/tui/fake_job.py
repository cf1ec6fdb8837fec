"""A deterministic job for tests and pictures: messages as a hub would give them, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fake_device import CONTEXT, HOST_ALLOCATOR, h100_detail
from fake_findings import usual_findings

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Batch, Forward, Fsdp, Layout, OptimizerPlan, Plan, Precision, State
from ranktop.budget.terms import MOMENTS, Memory
from ranktop.probes.reading import (
    AllocatorReading,
    Collectives,
    DeviceDetail,
    DeviceIdentity,
    DeviceProcess,
    DeviceReading,
    GroupPosition,
    StepTimes,
)
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.source import Link, Received, Reset
from ranktop.wire.schema import (
    Body,
    Box,
    Card,
    Cost,
    Device,
    End,
    Header,
    History,
    Job,
    Mark,
    Point,
    Sample,
    Stack,
    Table,
    Versions,
)

GIB = 1024**3
MIB = 1024**2
H100 = 85_520_809_984
"""Bytes that NVML gives as the total of an H100 80GB."""

H100_VERSIONS = Versions(
    ranktop="0.1.0", python="3.12.4", torch="2.13.0+cu128", cuda="12.8", nccl="2.27.5"
)  # fmt: skip


class FakeClock:
    """A monotonic clock that only moves when told to."""

    def __init__(self, now: float = 10_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def llama_8b() -> Inventory:
    """The parameters of an 8-billion-parameter Llama in the order of its modules, stored in fp32."""

    def kind(*shape: int, unit: int) -> Kind:
        return Kind(shape=shape, dtype="float32", unit=unit)

    parameters = [kind(128256, 4096, unit=0)]
    for layer in range(1, 33):
        parameters += [kind(4096, 4096, unit=layer), kind(1024, 4096, unit=layer), kind(1024, 4096, unit=layer)]
        parameters += [kind(4096, 4096, unit=layer), kind(14336, 4096, unit=layer), kind(4096, 14336, unit=layer)]
        parameters += [kind(14336, 4096, unit=layer), kind(4096, unit=layer), kind(4096, unit=layer)]
    parameters += [kind(4096, unit=0), kind(128256, 4096, unit=0)]
    return Inventory.of(parameters)


def small_gpt() -> Inventory:
    """A GPT of a demo's size: 4 layers of width 256 and a vocabulary of 4096."""
    parameters = [Kind((4096, 256), "float32"), Kind((256, 256), "float32")]
    for layer in range(1, 5):
        shapes: list[tuple[int, ...]] = [
            (768, 256),
            (768,),
            (256, 256),
            (256,),
            (1024, 256),
            (1024,),
            (256, 1024),
            (256,),
        ]
        parameters += [Kind(shape, "float32", unit=layer) for shape in [*shapes, (256,), (256,), (256,), (256,)]]
    return Inventory.of([*parameters, Kind((256,), "float32"), Kind((256,), "float32")])


@dataclass(frozen=True)
class Spec:
    """What one rank measures at its peak, in bytes; the rest of a step follows from it."""

    states: tuple[int, int, int]
    activations: int
    buffers: int
    cache: int
    runtime: int
    other: int
    total: int
    utilization: int | None = 96
    power: float | None = 660.0
    temperature: int | None = 61
    step_s: float = 2.31
    forward_share: float = 1.0
    """Share of the activations that the end of forward has: a loss outside of the model comes later."""
    resting: int = 68_222_976
    """Activations between the steps: a batch's tokens, libraries' workspaces."""


@dataclass
class FakeJob:
    """Ranks with their specs; what happens to them is scripted through ``ends``, ``silent`` and ``lost``."""

    job: Job
    inventory: Inventory
    plan: Plan
    specs: dict[int, Spec]
    node: Callable[[int], str] = lambda rank: "node1"
    device: Callable[[int], DeviceIdentity] = lambda rank: DeviceIdentity()
    model: str = "LlamaForCausalLM"
    backend: str = "nccl"
    first_step: int = 1204
    versions: Versions = H100_VERSIONS
    notes: tuple[str, ...] = ()
    history_seconds: int = 120
    ends: dict[int, End] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    no_answer: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    details: Callable[[int], DeviceDetail | None] = lambda rank: None
    contexts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Rank -> other ranks with a context of ``CONTEXT`` bytes on its device."""
    processes: dict[int, tuple[DeviceProcess, ...]] = field(default_factory=dict)
    """Rank -> processes of others on its device."""
    reading_changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Rank -> fields of its DeviceReading that are otherwise, e.g. ``{3: {"state": "reset required"}}``."""
    detail_changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    allocator_changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    """What the dashboard's rules are made to say (``fake_findings``)."""
    boxes: dict[int, Box] = field(default_factory=dict)
    stacks: dict[int, Stack] = field(default_factory=dict)

    def card(self, rank: int) -> Card:
        plan = replace(self.plan, layout=replace(self.plan.layout, shard_rank=rank % max(1, self.plan.layout.shard)))
        return Card(
            job=self.job, rank=rank, local_rank=rank % 8, node=self.node(rank), pid=48_109 + rank,
            device=self.device(rank), versions=self.versions, backend=self.backend, model=self.model,
            inventory=self.inventory, plan=plan, script="train.py", notes=self.notes, pids=(48_109 + rank,),
        )  # fmt: skip

    def memory(self, rank: int, moment: str) -> Memory:
        spec = self.specs[rank]
        share = {"forward_end": spec.forward_share, "backward_start": 1.0, "now": 0.55}.get(moment, 0.0)
        parameters, gradients, optimizer = spec.states
        activations = int(spec.activations * share) or spec.resting
        cache = spec.cache + spec.activations - activations
        used = parameters + gradients + optimizer + activations + spec.buffers + cache + spec.runtime + spec.other
        return Memory(
            parameters=parameters, gradients=gradients, optimizer=optimizer, activations=activations,
            buffers=spec.buffers, cache=cache, runtime=spec.runtime, other=spec.other,
            free=spec.total - used, total=spec.total,
        )  # fmt: skip

    def step_times(self, rank: int, index: int) -> StepTimes:
        seconds = self.specs[rank].step_s * (1 + 0.02 * ((index * 7 + rank * 3) % 5 - 2))
        data, forward, optimizer = 0.017 * seconds, 0.307 * seconds, 0.048 * seconds
        return StepTimes(
            index=index, seconds=seconds, data=data, forward=forward, optimizer=optimizer,
            backward=seconds - data - forward - optimizer, micro_batches=self.plan.batch.accumulation or 1,
            clock="device",
        )  # fmt: skip

    def sample(self, rank: int, elapsed: float) -> Sample:
        spec = self.specs[rank]
        step = self.first_step + int(elapsed / spec.step_s)
        now = self.memory(rank, "now")
        jitter = (rank * 37 + int(elapsed) * 11) % 5 - 2
        state = "lost" if rank in self.lost else "no answer" if rank in self.no_answer else "ok"
        device = DeviceReading(
            total=spec.total, used=now.used(), free=now.free, process_used=(now.used() or 0) - spec.other,
            utilization=None if spec.utilization is None else min(100, spec.utilization + jitter),
            power=None if spec.power is None else spec.power + 6 * jitter,
            temperature=spec.temperature, state=state, age=12.0 if state != "ok" else 0.0,
            **self.gpu_reading(rank, now, jitter),
        )  # fmt: skip
        device = replace(device, **self.reading_changes.get(rank, {}))
        table = Table(step=step, moments={moment: self.memory(rank, moment) for moment in MOMENTS}, age=0.4)
        position = step * 226 + 113
        return Sample(
            rank=rank, uptime=3600 + elapsed, now=now, table=table, device=device, step=step, step_age=0.4,
            peak_allocated=int(1.02 * sum(spec.states) + spec.activations + spec.buffers),
            steps=tuple(self.step_times(rank, index) for index in range(step - 3, step + 1)), phase="backward",
            collectives=Collectives((GroupPosition("0", "default", len(self.specs), position, position - 1),)),
            cost=Cost(cpu_s=0.0004), reasons=self.reasons, retries=0, ooms=0, inactive_split=96 * MIB,
        )  # fmt: skip

    def gpu_reading(self, rank: int, now: Memory, jitter: int) -> dict[str, Any]:
        """What a GPU's reading has beyond a host's."""
        if self.device(rank).kind != "cuda":
            return {}
        pid, own = 48_109 + rank, (now.used() or 0) - self.specs[rank].other
        extra = tuple(DeviceProcess(48_109 + other, CONTEXT) for other in self.contexts.get(rank, ()))
        return {
            "power_limit": 700.0, "sm_clock": 1755 + 15 * jitter, "memory_clock": 2619, "throttle": (),
            "reserved": 0, "process_pid": pid,
            "processes": (DeviceProcess(pid, own), *extra, *self.processes.get(rank, ())),
        }  # fmt: skip

    def described(self, rank: int) -> Device:
        """The device message of a rank."""
        detail, spec = self.details(rank), self.specs[rank]
        if detail is None:
            allocator = AllocatorReading(
                spec.activations, spec.activations + spec.cache, backend="malloc", reasons=HOST_ALLOCATOR
            )  # fmt: skip
            return Device(rank=rank, allocator=replace(allocator, **self.allocator_changes.get(rank, {})))
        held = sum(spec.states) + spec.activations + spec.buffers
        allocator = AllocatorReading(
            allocated=held, reserved=held + spec.cache, peak_allocated=int(1.02 * held), inactive_split=96 * MIB,
            retries=0, ooms=0, backend="native", active=held + 4 * MIB, requested=held - 7 * MIB, segments=412,
            largest_free=spec.cache // 3,
        )  # fmt: skip
        return Device(
            rank=rank, detail=replace(detail, **self.detail_changes.get(rank, {})),
            allocator=replace(allocator, **self.allocator_changes.get(rank, {})),
        )  # fmt: skip

    def history(self, rank: int) -> History:
        spec = self.specs[rank]
        points = []
        for second in range(-self.history_seconds, 0):
            memory = self.memory(rank, "backward_start")
            grown = 1 - 0.03 * ((second // 5) % 4)
            points.append(
                Point(
                    t=5_000.0 + second, step=self.first_step + int(second / spec.step_s),
                    step_s=self.step_times(rank, second + 100_000).seconds, used=int((memory.used() or 0) * grown),
                    states=sum(spec.states), activations=spec.activations,
                    reserved=sum(spec.states) + spec.activations + spec.cache, utilization=spec.utilization,
                    power=spec.power, temperature=spec.temperature,
                )
            )  # fmt: skip
        return History(rank=rank, points=tuple(points))


class FakeSource:
    """Plays a fake job: a snapshot first, then a sample of every rank each second of its clock."""

    def __init__(self, job: FakeJob, clock: Callable[[], float]) -> None:
        self.script, self.clock = job, clock
        self.started = clock()
        self.sent = -1
        self.state = Link(state="live", detail="", age=0.2)
        self.extra: list[Received | Reset] = []
        self.closed = False
        self._number = 0
        self._told: set[int] = set()
        self._left: set[tuple[str, int]] = set()

    def message(self, rank: int, body: Body, kind: str, age: float = 0.0, restart: int = 0) -> Received:
        self._number += 1
        pid = 0 if rank < 0 else 48_109 + rank + 1000 * restart
        return Received(Header(kind, rank, pid, restart, self._number), body, age, self._number)

    def drain(self) -> list[Received | Reset]:
        script, out = self.script, self.extra
        self.extra = []
        if self.sent < 0:
            out.append(Reset(script.job, "hub-1", False))
            for rank in sorted(script.specs):
                if rank not in script.absent:
                    out.append(self.message(rank, script.card(rank), "card"))
                    out.append(self.message(rank, script.history(rank), "history"))
        elapsed = int(self.clock() - self.started)
        if self.sent < 0 or self.sent // 10 != elapsed // 10:
            for rank in sorted(script.specs):
                if rank not in script.absent | script.silent | self._told:
                    out.append(self.message(rank, script.described(rank), "device"))
        for second in range(max(self.sent + 1, elapsed - 3), elapsed + 1):
            age = self.clock() - self.started - second
            for rank in sorted(script.specs):
                if rank not in script.absent | script.silent | self._told:
                    out.append(self.message(rank, script.sample(rank, second), "sample", age))
        self.sent = elapsed
        for rank, box in script.boxes.items():
            if ("box", rank) not in self._left:
                self._left.add(("box", rank))
                out.append(self.message(rank, box, "box"))
        for rank, stack in script.stacks.items():
            if ("stack", rank) not in self._left:
                self._left.add(("stack", rank))
                out.append(self.message(rank, stack, "stack"))
        for rank, end in script.ends.items():
            if rank not in self._told:
                self._told.add(rank)
                out.append(self.message(rank, end, "end"))
        return out

    def mark(self, what: str, detail: str = "") -> None:
        self.extra.append(self.message(-1, Mark(what=what, detail=detail), "mark"))

    def link(self) -> Link:
        return self.state

    def close(self) -> None:
        self.closed = True


ADAMW = OptimizerPlan(
    name="AdamW", count=1,
    states=(
        State(name="step", like="scalar", dtype="float32", on_device=False), State(name="exp_avg"),
        State(name="exp_avg_sq"),
    ),
)  # fmt: skip


def fsdp_job(ranks: int = 8) -> FakeJob:
    """A fine-tuning on H100s: rank 3 over in activations, rank 6 over in what the runtime holds."""
    inventory = llama_8b()
    shard = inventory.numel // ranks * 4
    specs = {}
    for rank in range(ranks):
        activations = 31_748_908_032 + 50 * MIB * (rank * 5 % 4)
        runtime = int((2.35 + 0.01 * rank) * GIB)
        if rank % 8 == 3:
            activations = int(40.8 * GIB)
        if rank % 8 == 6:
            runtime = int(8.4 * GIB)
        specs[rank] = Spec(
            states=(shard, shard, 2 * shard), activations=activations, buffers=0,
            cache=int((1.2 + 0.25 * (rank * 3 % 5)) * GIB), runtime=runtime, other=0, total=H100,
            utilization=95 + rank % 4, power=620.0 + 10 * (rank * 7 % 8), temperature=58 + rank * 3 % 7,
        )  # fmt: skip
    plan = Plan(
        strategy="fsdp2", layout=Layout(world_size=ranks, shard=ranks), fsdp=Fsdp(version=2),
        precision=Precision(parameters="float32", compute="bfloat16", reduce="float32"), optimizer=ADAMW,
        batch=Batch(micro_batch=1, sequence_length=4096, accumulation=1), checkpointing="none",
        gradients_at=MOMENTS, loss="hf",
        forward=Forward(heads=32, output_bytes=4096 * 128256 * 2 + 4, loss_inside=True),
    )  # fmt: skip

    def device(rank: int) -> DeviceIdentity:
        return DeviceIdentity(
            kind="cuda", uuid=f"GPU-{rank:08x}", name="NVIDIA H100 80GB HBM3", total=H100,
            torch_index=rank % 8, nvml_index=(rank % 8 + 2) % 8, pci_bus_id=f"0000:{0x19 + 0x10 * (rank % 8):02x}:00.0",
            numa_node=rank % 8 // 4, driver="570.86.15", cuda_driver="12.8",
        )  # fmt: skip

    job = Job(id="5f2c9a", name="llama8b-sft", world_size=ranks, launcher="torchrun")
    return FakeJob(
        job, inventory, plan, specs, node=lambda rank: f"node{rank // 8 + 1}", device=device, details=h100_detail,
        findings=usual_findings(ranks),
    )  # fmt: skip


def host_job() -> FakeJob:
    """The demo on a machine without a GPU: two ranks of a small model in 24 GiB of RAM."""
    inventory = small_gpt()
    shard = inventory.numel // 2 * 4
    total = 24 * GIB
    specs = {
        rank: Spec(
            states=(shard, shard, 2 * shard + 4 * len(inventory)), activations=107_468_080 + rank * MIB, buffers=0,
            cache=6 * MIB, runtime=318 * MIB, other=5 * GIB, total=total, utilization=None, power=None,
            temperature=None, step_s=0.042, forward_share=0.845, resting=42_800,
        )
        for rank in range(2)
    }  # fmt: skip
    plan = Plan(
        strategy="fsdp2", layout=Layout(world_size=2, shard=2), fsdp=Fsdp(version=2), optimizer=ADAMW,
        batch=Batch(micro_batch=8, sequence_length=128, accumulation=1), gradients_at=MOMENTS, host=True,
        forward=Forward(heads=8, output_bytes=8 * 128 * 4096 * 4, loss_inside=False),
    )  # fmt: skip

    def device(rank: int) -> DeviceIdentity:
        return DeviceIdentity(kind="host", name="24 GiB of RAM", total=total)

    job = Job(id="a01", name="demo", world_size=2, launcher="torchrun")
    return FakeJob(
        job, inventory, plan, specs, node=lambda rank: "laptop", device=device, model="GPT", backend="gloo",
        first_step=310, versions=Versions(ranktop="0.1.0", python="3.11.7", torch="2.13.0"),
        notes=("host memory: malloc also holds Python's own objects, so activations are approximate",),
        reasons={}, history_seconds=60,
    )  # fmt: skip
