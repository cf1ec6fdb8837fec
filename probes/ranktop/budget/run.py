"""What is asked of the planner, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ranktop.budget.activations.saved import Activations
from ranktop.budget.collective import Collective
from ranktop.budget.inventory import Inventory
from ranktop.budget.model import Model
from ranktop.budget.plan import Ddp, Fsdp, Lora, OptimizerPlan, Plan, Zero
from ranktop.budget.terms import Amount, Budget

STRATEGIES: Final = (
    "single", "dp", "ps", "ddp", "zero1", "zero2", "zero3", "zero1-offload", "zero2-offload", "zero3-offload",
    "zero-infinity", "fsdp-full", "fsdp-grad-op", "fsdp-hybrid", "tp", "pp-gpipe", "pp-1f1b", "3d",
)  # fmt: skip
"""Names of the strategies that can be compared, in the order of the table."""

PRECISIONS: Final = ("fp32", "amp-fp16", "amp-bf16", "bf16", "bf16-master", "fp16-master", "fp8")
"""``amp-*``: autocast over fp32 weights; ``*-master``: 16-bit weights with fp32 master copies."""

CHECKPOINTING: Final = ("none", "selective", "full")
"""Of activations: ``selective`` recomputes what is cheap to, ``full`` whole blocks."""

WITHOUT_PEAK: Final = "backward"
"""What is shown when the peak is unknown: inside backward parameters, gradients and optimizer state are all alive, as
the papers count them (ZeRO, arXiv:1910.02054, table 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run as its user describes it; None = not said, the strategy decides."""

    model: Model
    world_size: int = 1
    gpus_per_node: int = 8
    data: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    context: int = 1
    expert: int = 1
    precision: str = "bf16-master"
    """One of PRECISIONS."""
    optimizer: OptimizerPlan = field(default_factory=lambda: OptimizerPlan(name="AdamW", count=1))
    micro_batch: int = 1
    sequence_length: int = 0
    """Tokens per sample; 0 = the model's own ``positions``."""
    accumulation: int = 1
    checkpointing: str = "none"
    """One of CHECKPOINTING."""
    checkpoint_every: int = 1
    attention: str = "sdpa"
    loss: str = "upcast"
    """As ``Plan.loss``, or ``auto``: what the model's own library or the strategy computes."""
    stack: str = "torch"
    sequence_parallel: str = ""
    virtual: int = 1
    """Pipeline chunks per rank."""
    lora: Lora | None = None
    zero: Zero | None = None
    """Options for the ZeRO strategies (a DeepSpeed JSON); None = DeepSpeed's defaults."""
    fsdp: Fsdp | None = None
    ddp: Ddp | None = None
    device_memory: int | None = None
    """Bytes of one device; None = nothing is said about fitting."""
    link: float | None = None
    """Bytes per second that one GPU can send to others; None = no times."""
    host: bool = False
    """The devices are the machine's RAM."""
    activations: Callable[[Model, Plan], Activations] | None = None
    """Speaks for activations instead of the closed forms: a trace, or a running job's measurement."""
    inventory: Inventory | None = None
    """The parameters of a running job, for a model whose architecture is not known."""
    runtime: Amount | None = None
    """Measured context, libraries and workspaces; None = the rule's."""
    running: Plan | None = None
    """The plan of a running job: its own strategy keeps from it what the other fields have no word for."""
    schedule: str = "1f1b"
    """Pipeline schedule of the strategies that do not name one, as ``Pipeline.schedule``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBudget:
    """The budget of ranks whose place in the layout makes no difference."""

    ranks: tuple[int, ...]
    """Global ranks, in order; their number is what counts when there are many."""
    stage: int
    """Pipeline stage."""
    plan: Plan
    budget: Budget

    @property
    def total(self) -> int | None:
        """Bytes at the rank's peak moment; None when unknown."""
        peak = self.budget.peak()
        return None if peak is None else self.budget.total(peak)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One strategy's answer to a run."""

    strategy: str
    refused: str = ""
    """Why the strategy cannot run this (one line); then nothing else is filled."""
    ranks: tuple[RankBudget, ...] = ()
    worst: int = 0
    """Index into ``ranks`` of the one that needs the most device memory."""
    collectives: tuple[Collective, ...] = ()
    """Of one step on the rank that sends the most."""
    fits: bool | None = None
    headroom: int | None = None
    """Device memory minus the worst rank's total, bytes; negative = what is missing."""
    max_micro_batch: int | None = None
    """Largest micro-batch that fits; 0 = not even one; None = unknown or no capacity given."""
    assumptions: tuple[str, ...] = ()
    """What was taken for granted, one line each."""

    @property
    def rank(self) -> RankBudget | None:
        """The rank that needs the most."""
        return self.ranks[self.worst] if self.ranks else None

    @property
    def sent(self) -> int:
        """Bytes that the busiest GPU sends per optimizer step, ring terms."""
        return sum(one.sent for one in self.collectives)

    def amounts(self) -> dict[str, Amount]:
        """Return the worst rank's amounts at its peak moment, or at ``WITHOUT_PEAK`` when that is unknown."""
        rank = self.rank
        if rank is None:
            return {}
        return rank.budget.at(rank.budget.peak() or WITHOUT_PEAK)
