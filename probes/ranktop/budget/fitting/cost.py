"""Seconds of a step that a plan spends beside its computation: sending, copying, computing again, waiting.

Nothing is taken to overlap, and every speed is an assumption that is told: the numbers rank plans, they predict none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ranktop.budget.collective import Collective
from ranktop.budget.inventory import Inventory
from ranktop.budget.model import Model
from ranktop.budget.models.tensors import count, sections
from ranktop.budget.plan import Layout, Plan
from ranktop.budget.terms import DTYPE_BYTES

ASSUMED_LINK: Final = 50e9
"""Bytes per second that a GPU is taken to send between nodes where nobody says: 400 Gbit/s."""

ASSUMED_NODE_LINK: Final = 300e9
"""The same within a node: NVLink of an A100."""

ASSUMED_HOST_LINK: Final = 25e9
"""Bytes per second between a GPU and host memory: PCIe 4 x16, as it is reached."""

ASSUMED_HOST_MEMORY: Final = 25e9
"""Bytes per second of host memory that one GPU's optimizer on the CPU has for itself: 200 GB/s for eight."""

ASSUMED_DISK: Final = 3e9
"""Bytes per second that one GPU has of the node's NVMe."""

ASSUMED_FLOPS: Final = 200e12
"""Operations per second that a GPU is taken to reach."""

ASSUMED_HOST_SEND: Final = 1e9
"""Bytes per second that a rank on CPUs is taken to send: gloo through one machine's memory or 10 Gbit/s, whichever."""

ASSUMED_HOST_FLOPS: Final = 50e9
"""Operations per second that a rank on CPUs is taken to reach: a few cores."""

REACHED: Final = 0.4
"""Share of the data sheet's 16-bit speed that training is taken to reach."""

_PEAKS: Final = {
    "b200": 2250e12, "h200": 989e12, "h100": 989e12, "h100-pcie": 756e12, "a100-80": 312e12, "a100-40": 312e12,
    "v100-32": 125e12, "v100-16": 125e12, "l40s": 362e12, "l40": 181e12, "a40": 150e12, "a6000": 155e12,
    "rtx-6000-ada": 364e12, "l4": 121e12, "a10": 125e12, "a10g": 70e12, "t4": 65e12, "rtx-5090": 209e12,
    "rtx-4090": 165e12, "rtx-3090": 71e12, "mi300x": 1307e12,
}  # fmt: skip
"""Operations per second of dense 16-bit matrix products with 32-bit sums, as the vendors' data sheets have them."""

SELECTIVE: Final = 0.1
"""Share of a block's forward that selective checkpointing is taken to compute again: all but the matrix products."""

_ZERO_BUBBLE: Final = ("interleaved-zero-bubble", "zbv", "dualpipe-v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What seconds are reckoned with; bytes and operations per second of one GPU."""

    link: float = ASSUMED_LINK
    node_link: float = ASSUMED_NODE_LINK
    host_link: float = ASSUMED_HOST_LINK
    flops: float = ASSUMED_FLOPS
    device: str = ""
    """The GPU that link, host and operations are of; empty when they are assumed."""
    host: bool = False
    """The ranks compute on CPUs."""

    def words(self, several_nodes: bool) -> str:
        """Return the assumptions in one line."""
        if self.host:
            guessed = f"{self.node_link / 1e9:.0f} GB/s between ranks and {self.flops / 1e9:.0f} GFLOP/s a rank"
            return f"{guessed}: guesses, the speeds of a CPU job are not known"
        between = f"{self.link * 8 / 1e9:.0f} Gb/s between nodes, " if several_nodes else ""
        of = f" ({self.device})" if self.device else ""
        return (
            f"{between}{self.node_link / 1e9:.0f} GB/s within a node, {self.host_link / 1e9:.0f} GB/s to the host, "
            f"{ASSUMED_DISK / 1e9:.0f} GB/s to NVMe, {self.flops / 1e12:.0f} TFLOP/s{of}"
        )


def speeds(link: float | None = None, device: str = "", several_nodes: bool = True, *, host: bool = False) -> Speeds:
    """Return the speeds of a GPU by name, and of the ``link`` that was given: between nodes, when there are several.

    A name that is not known gives the assumed ones; ``host``: the ranks compute on CPUs.
    """
    if host:
        sent = ASSUMED_HOST_SEND if link is None else link
        return Speeds(link=sent, node_link=sent, host_link=ASSUMED_HOST_MEMORY, flops=ASSUMED_HOST_FLOPS, host=True)
    from ranktop.budget.devices import find
    from ranktop.budget.model import BadInput

    try:
        known = find(device) if device else None
    except BadInput:
        known = None
    node = known.link if known is not None else ASSUMED_NODE_LINK
    if link is not None and not several_nodes:
        node = link
    return Speeds(
        link=link if link is not None and several_nodes else min(node, ASSUMED_LINK),
        node_link=node,
        host_link=0.8 * known.pcie if known is not None else ASSUMED_HOST_LINK,
        flops=REACHED * _PEAKS[known.name] if known is not None and known.name in _PEAKS else ASSUMED_FLOPS,
        device=known.name if known is not None else "",
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of one token's forward."""

    blocks: float
    whole: float
    """With the output head."""
    layers: int = 0
    """Blocks, over which pipelines share it out."""


def work(model: Model, tokens: int) -> Work:
    """Return the operations per token: two per weight that it passes, and attention over half of ``tokens``.

    Source: Kaplan et al. 2020 (arXiv:2001.08361), section 2.1. Of routed experts only those count that a token is sent
    to. A bare count of parameters is all blocks.
    """
    if not model.family:
        flops = 2.0 * count(model)
        return Work(flops, flops)
    blocks = head = 0.0
    active = model.experts_per_token / model.experts if model.experts else 1.0
    for section in sections(model):
        numel = sum(
            tensor.numel * (active if tensor.expert else 1.0)
            for tensor in section.tensors
            if tensor.role not in ("embedding", "positions")
        )
        if section.first is None:
            head += numel
        else:
            blocks += section.count * numel
    if model.tied:
        head += model.vocab * model.hidden
    width = model.heads * (model.head_dim or model.hidden // max(1, model.heads))
    attention = 2.0 * tokens * width * model.layers
    return Work(2 * blocks + attention, 2 * (blocks + head) + attention, model.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds per step of the busiest rank, nothing overlapped."""

    sending: float = 0.0
    copying: float = 0.0
    """Between device, host and disk because of offloading, and the optimizer's step on the CPU."""
    recomputing: float = 0.0
    waiting: float = 0.0
    """For the other stages of a pipeline."""

    @property
    def total(self) -> float:
        """Seconds per step beyond the computation that every plan has."""
        return self.sending + self.copying + self.recomputing + self.waiting


def sending(plan: Plan, collectives: Iterable[Collective], at: Speeds, per_node: int) -> float:
    """Return the seconds that one rank sends, at least: no link is ever idle, and none is slower than it could be."""
    return sum(one.sent / _speed(plan.layout, one, at, per_node) for one in collectives)


def _speed(layout: Layout, one: Collective, at: Speeds, per_node: int) -> float:
    """Return the bytes per second at which a rank of a group can send.

    Within a node that is the node's speed. A group of several nodes leaves each of them by the links of all its ranks
    there, as NCCL's rings and trees do; what goes to one other rank has its own link alone.
    """
    span = _span(layout, one.axis)
    if span <= per_node:
        return at.node_link
    inside = max(1, per_node * one.group // span)
    if one.axis == "pipeline":
        # Where several stages share a node the one at its end sends only one way over the link.
        shared = layout.world_size // layout.pipeline < per_node
        return at.node_link if shared and one.phase != "forward" else at.link
    if one.kind == "p2p":
        return at.link
    if one.kind == "all_to_all":
        return min(at.node_link, at.link * (one.group - 1) / max(1, one.group - inside))
    return min(at.node_link, at.link * inside)


def _span(layout: Layout, axis: str) -> int:
    """Return over how many neighbouring ranks a group of an axis stretches.

    Ranks count tensor parallel fastest, then context, shards, replicas, pipeline.
    """
    inner = layout.tensor * layout.context
    if axis == "tensor":
        return layout.tensor
    if axis == "context":
        return inner
    if axis == "expert":
        return inner * layout.expert
    if axis == "shard":
        return inner * layout.shard
    return layout.world_size if axis == "pipeline" else layout.world_size // layout.pipeline


def copying(plan: Plan, inventory: Inventory, at: Speeds) -> float:
    """Return the seconds of copies and of the optimizer's step on the CPU.

    Adam reads 16 bytes per parameter in fp32 (master, gradient, two moments) and writes 12, as DeepSpeed's CPUAdam and
    torch's do; on disk the same bytes are read and written. Gradients go down in every micro-batch, weights come up
    once (ZeRO-1 and 2), or for forward and again for backward of every micro-batch where they are offloaded too.
    """
    zero, fsdp = plan.zero, plan.fsdp
    optimizer = zero.offload_optimizer if zero is not None else "cpu" if fsdp is not None and fsdp.cpu_offload else ""
    if plan.host or optimizer in ("", "none"):
        return 0.0
    own = inventory.trainable_numel / plan.layout.shard
    item = DTYPE_BYTES[plan.precision.parameters]
    micro = plan.micro_batches
    weights = zero.offload_parameters if zero is not None else "cpu"
    down = item * own * (1 if zero is not None and zero.stage == 1 else micro)
    up = item * own
    if weights != "none":
        up *= micro * (1 if fsdp is not None and fsdp.sharding.endswith("grad-op") else 2)
    found = (down + up) / at.host_link + 28 * own / ASSUMED_HOST_MEMORY
    if optimizer == "nvme":
        found += 28 * own / ASSUMED_DISK
    if weights == "nvme" and zero is not None:
        found += max(0.0, own - zero.max_in_cpu) * item * 2 * micro / ASSUMED_DISK
    return found


def recomputing(plan: Plan, per_token: Work, samples: int, at: Speeds) -> float:
    """Return the seconds of forward that checkpointing repeats; ``samples`` of one data-parallel rank per step."""
    share = {"full": 1.0, "selective": SELECTIVE}.get(plan.checkpointing or "none", 0.0)
    return share * per_token.blocks * _tokens(plan, samples) / at.flops


def waiting(plan: Plan, per_token: Work, samples: int, at: Speeds) -> float:
    """Return the seconds that a stage is idle: (p - 1)/(m v) of its work, a third of it under zero-bubble schedules.

    Where some stages have a layer more, the others wait for that too. Sources: arXiv:2104.04473, section 2.2;
    arXiv:2401.10241.
    """
    pipeline = plan.pipeline
    if pipeline is None:
        return 0.0
    idle = (plan.layout.pipeline - 1) / (pipeline.micro_batches * pipeline.virtual)
    if pipeline.schedule in _ZERO_BUBBLE:
        idle /= 3
    chunks = plan.layout.pipeline * pipeline.virtual
    longest = -(-per_token.layers // chunks) * chunks / per_token.layers if per_token.layers else 1.0
    idle = (1 + idle) * longest - 1
    repeated = {"full": per_token.blocks, "selective": SELECTIVE * per_token.blocks}.get(plan.checkpointing or "", 0.0)
    return idle * (3 * per_token.whole + repeated) * _tokens(plan, samples) / at.flops


def _tokens(plan: Plan, samples: int) -> float:
    """Tokens per step whose whole forward one rank would compute in the same time."""
    axes = plan.layout
    return samples * (plan.batch.sequence_length or 1) / (axes.tensor * axes.pipeline * axes.context)
