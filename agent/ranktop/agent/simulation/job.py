"""Which job it is: its model and plan, and the card of each rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ranktop.agent.simulation.faults import Fault
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Batch, Ddp, Forward, Fsdp, Layout, OptimizerPlan, Plan, Precision, State
from ranktop.budget.terms import MOMENTS
from ranktop.probes.reading import DeviceIdentity
from ranktop.wire.schema import Card, Job, Versions

STRATEGIES: Final = ("fsdp2", "ddp")

PREFIX: Final = "simulated-"
"""How the name of every simulated job begins."""

H100: Final = 85_520_809_984
"""Bytes that NVML gives as the total of an H100 80GB."""

FIRST_PID: Final = 100_000
"""Process id of rank 0 in the driver's list; the others count on."""

ADAMW: Final = OptimizerPlan(
    name="AdamW",
    count=1,
    states=(
        State(name="step", like="scalar", dtype="float32", on_device=False),
        State(name="exp_avg"),
        State(name="exp_avg_sq"),
    ),
)


@dataclass(frozen=True, slots=True)
class Llama:
    """Sizes of a Llama-like model, and what one rank feeds it."""

    name: str
    vocabulary: int
    width: int
    layers: int
    keys: int
    """Width of keys and values."""
    inner: int
    micro_batch: int
    sequence: int

    def inventory(self) -> Inventory:
        """Return its parameters in the order of its modules, stored in fp32."""
        width, keys, inner = self.width, self.keys, self.inner
        layer = [(width, width), (keys, width), (keys, width), (width, width), (inner, width), (width, inner)]
        layer += [(inner, width)]
        parameters = [Kind((self.vocabulary, width), "float32")]
        for unit in range(1, self.layers + 1):
            parameters += [Kind(shape, "float32", unit=unit) for shape in layer]
            parameters += [Kind((width,), "float32", unit=unit)] * 2
        return Inventory.of([*parameters, Kind((width,), "float32"), Kind((self.vocabulary, width), "float32")])


LARGE: Final = Llama("llama-8b", 128256, 4096, 32, 1024, 14336, 1, 4096)
SMALL: Final = Llama("llama-1b", 32000, 2048, 22, 256, 5632, 4, 2048)
"""For what holds the whole model on every rank."""


@dataclass(frozen=True)
class Setup:
    """What is simulated."""

    ranks: int = 8
    local: int = 8
    """Ranks of one node."""
    strategy: str = "fsdp2"
    seconds: float = 1.0
    """Of a healthy step."""
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    """Each with its rank (``faults.placed``)."""
    id: str = "simulated"

    def of(self, rank: int) -> tuple[Fault, ...]:
        """Return the faults of a rank, everyone's included."""
        return self._faults.get(rank, self._faults[-1])

    def has(self, name: str) -> Fault | None:
        """Return the first fault of that name."""
        return next((fault for fault in self.faults if fault.name == name), None)

    @cached_property
    def _faults(self) -> dict[int, tuple[Fault, ...]]:
        everyone = tuple(fault for fault in self.faults if fault.rank < 0)
        ranks = {fault.rank for fault in self.faults if fault.rank >= 0}
        own = {rank: (*everyone, *(fault for fault in self.faults if fault.rank == rank)) for rank in ranks}
        return {**own, -1: everyone}

    @cached_property
    def model(self) -> Llama:
        """The model: the large one unless every rank holds it whole."""
        whole = self.strategy == "ddp" or self.has("unsharded") or self.has("no_sync")
        return SMALL if whole else LARGE

    @cached_property
    def inventory(self) -> Inventory:
        """The model's parameters."""
        return self.model.inventory()

    @cached_property
    def job(self) -> Job:
        """Identity of the job."""
        name = f"{PREFIX}{self.model.name}"
        return Job(id=self.id, name=name, world_size=self.ranks, launcher="torchrun", run_id=self.id)

    def plan(self, rank: int) -> Plan:
        """Return the plan as the agent of a rank would see it."""
        plan = self._plan
        if self.strategy == "ddp":
            return replace(plan, layout=replace(plan.layout, replicate_rank=rank))
        return replace(plan, layout=replace(plan.layout, shard_rank=rank))

    @cached_property
    def _plan(self) -> Plan:
        model = self.model
        waiting = self.has("no_sync") is not None
        plan = Plan(
            strategy="fsdp2",
            layout=Layout(world_size=self.ranks, shard=self.ranks),
            fsdp=Fsdp(version=2),
            precision=Precision(parameters="float32", compute="bfloat16", reduce="float32"),
            optimizer=ADAMW,
            batch=Batch(
                micro_batch=model.micro_batch, sequence_length=model.sequence, accumulation=8 if waiting else 1
            ),
            checkpointing="none",
            gradients_at=MOMENTS,
            unsharded_gradients_at=("step_start", "forward_end", "backward_start", "backward_end") if waiting else (),
            loss="hf",
            forward=Forward(
                heads=32,
                output_bytes=model.micro_batch * model.sequence * model.vocabulary * 2 + 4,
                loss_inside=True,
            ),
        )
        if self.strategy == "ddp":
            precision = Precision(parameters="float32", autocast="bfloat16")
            layout = Layout(world_size=self.ranks, replicate=self.ranks)
            plan = replace(
                plan, strategy="ddp", layout=layout, fsdp=None, ddp=Ddp(), precision=precision,
                unsharded_gradients_at=(),
            )  # fmt: skip
        return plan

    def node(self, rank: int) -> str:
        """Return the name of a rank's node."""
        return f"node{rank // self.local + 1}"

    def neighbours(self, rank: int) -> range:
        """Return the ranks of a rank's node, itself included."""
        first = rank - rank % self.local
        return range(first, min(first + self.local, self.ranks))

    def card(self, rank: int, pid: int, restart: int = 0) -> Card:
        """Return the card of a rank."""
        names = {fault.name for fault in self.of(rank)}
        torch = "2.12.1+cu128" if "version" in names else "2.13.0+cu128"
        return Card(
            job=self.job,
            rank=rank,
            local_rank=rank % self.local,
            node=self.node(rank),
            pid=pid,
            restart=restart,
            device=device(rank, self.local),
            versions=Versions(python="3.12.4", torch=torch, cuda="12.8", nccl="2.27.5"),
            backend="nccl",
            model="LlamaForCausalLM",
            inventory=self.inventory,
            plan=self.plan(rank),
            script="train.py",
            simulated=True,
            pids=(FIRST_PID + rank,),
            code="9b1f04d7" if "code" in names else "5e2c71aa",
            local_size=len(self.neighbours(rank)),
        )


def device(rank: int, local: int) -> DeviceIdentity:
    """Return which device a rank is on."""
    index = rank % local
    return DeviceIdentity(
        kind="cuda",
        uuid=f"GPU-{rank:08x}-0000-4000-8000-000000000000",
        name="NVIDIA H100 80GB HBM3",
        total=H100,
        torch_index=index,
        nvml_index=index,
        pci_bus_id=f"0000:{(0x19 + 0x10 * index) % 256:02x}:00.0",
        numa_node=index // 4,
        driver="570.86.15",
        cuda_driver="12.8",
    )
