"""Training as Megatron Core does it: what a rank holds, moment by moment.

16-bit weights, gradients in fp32 in one buffer that is never freed, fp32 masters with Adam's two states: 18 bytes a
parameter, 6 + 12/d with the distributed optimizer. Published readings of 60 jobs (mem-allocated-bytes of the last rank)
agree within 1 % in the median once the libraries' workspaces are added (``workspaces``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget import experts, pipeline
from ranktop.budget.activations.saved import Activations
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.optimizers.states import Piece, optimizer_amount
from ranktop.budget.plan import Layout, Plan
from ranktop.budget.runtime import CUBLAS_WORKSPACE, CUBLAS_WORKSPACE_BEFORE, MIB
from ranktop.budget.terms import ALL_MOMENTS, DTYPE_BYTES, STATES, Amount, Part

TE_WORKSPACE: Final = 32 * MIB
"""TransformerEngine's cuBLAS workspace on compute capability 9 and later (``get_cublas_workspace_size_bytes``)."""

TE_WORKSPACE_BEFORE: Final = 4 * MIB
TE_GROUPED_STREAMS: Final = 4
"""Streams that TransformerEngine's grouped GEMM runs on, each with a workspace of its own."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Parameters that the same ranks hold."""

    pieces: tuple[Piece, ...]
    bytes: int
    trained: int
    """Elements that require a gradient."""
    copied: int
    """Those of them that have an fp32 master."""
    shards: int
    """Ranks over which the distributed optimizer splits them."""


_AT_WORK: Final = 3
"""Boundary tensors on their way while an interleaved schedule runs: one sent, one received, one received ahead. Read
off published peaks with 3 and 8 chunks a rank; 1F1B has the first two."""


def shards_of(layout: Layout, expert: bool = False) -> int:
    """Return over how many ranks the distributed optimizer splits a parameter; 1 = there is none.

    ``layout.shard`` ranks and their context-parallel ones; experts over those of them that hold the same experts.
    ``layout.replicate`` counts instances of it (``--num-distributed-optimizer-instances``), or plain replicas.
    Source: megatron/core/parallel_state.py, optimizer/distrib_optimizer.py.
    """
    if layout.shard <= 1:
        return 1
    ranks = layout.shard * layout.context
    return max(1, ranks // layout.expert) if expert else ranks


def _groups(inventory: Inventory, plan: Plan) -> tuple[_Group, ...]:
    times = Counter(inventory.order)
    found: dict[bool, list[tuple[Kind, int]]] = {False: [], True: []}
    for index, kind in enumerate(inventory.kinds):
        found[experts.is_expert(kind)].append((kind, times[index]))
    groups = []
    for expert, kinds in found.items():
        shards = shards_of(plan.layout, expert)
        pieces = tuple(
            Piece(kind.shape, 4, max(0, kind.group), kind.trainable, whole=shards == 1, count=count)
            for kind, count in kinds
            if count
        )
        size = sum(kind.numel * kind.itemsize * count for kind, count in kinds)
        trained = sum(kind.numel * count for kind, count in kinds if kind.trainable)
        copied = sum(kind.numel * count for kind, count in kinds if kind.trainable and kind.itemsize < 4)
        groups.append(_Group(pieces, size, trained, copied, shards))
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class _States:
    parameters: Amount
    gradients: Amount
    main_gradients: int
    """fp32 copies of 16-bit gradients, from the optimizer's step until gradients are zeroed."""
    masters: Amount
    optimizer: Amount


def _states(inventory: Inventory, plan: Plan) -> _States:
    groups = _groups(inventory, plan)
    dtype = plan.precision.gradients or "float32"
    item = DTYPE_BYTES[dtype]
    split = f", split over {groups[0].shards}" if groups[0].shards > 1 else ""
    copies = sum(-(-4 * group.copied // group.shards) for group in groups)
    kept: int | None = 0
    rule = ""
    for group in groups:
        amount = optimizer_amount(group.pieces, plan)
        rule = rule or amount.rule
        if amount.bytes is None:
            kept, rule = None, amount.rule
            break
        kept = (kept or 0) + -(-amount.bytes // group.shards)
    everything = f"fp32 masters and {rule}{split}" if copies else f"{rule}{split}"
    parts = (Part("fp32 masters", copies), Part(rule, kept or 0))
    # Megatron-FSDP (optim_grads_params) splits weights and gradients too.
    ranks = [group.shards if plan.fsdp is not None else 1 for group in groups]
    held = "split like the optimizer" if plan.fsdp is not None else "whole on every replica"
    weights = sum(-(-group.bytes // n) for group, n in zip(groups, ranks, strict=True))
    gradients = sum(-(-item * group.trained // n) for group, n in zip(groups, ranks, strict=True))
    return _States(
        Amount(weights, f"{plan.precision.parameters} weights, {held}"),
        Amount(gradients, f"{dtype} buffer, never freed (ParamAndGradBuffer), {held}"),
        copies if item < 4 else 0,
        Amount(copies, f"fp32 masters{split}" if copies else "made by the first step"),
        Amount(None if kept is None else copies + kept, everything, parts=() if kept is None else parts),
    )


def moments(
    inventory: Inventory, plan: Plan, activations: Activations | None, first_step: bool = False
) -> dict[str, dict[str, Amount]]:
    """Return for every moment of ALL_MOMENTS what a rank holds, without the process's own memory (``runtime``).

    ``first_step``: Adam's states do not exist before the step. FusedAdam and the reduction of the gradients need no
    temporaries: buckets are views of the gradients' buffer. Source: megatron/core/distributed, megatron/core/optimizer.
    """
    states = _states(inventory, plan)
    return {
        moment: {
            **_states_at(states, moment, first_step),
            "activations": _activations_at(activations, moment),
            "buffers": _buffers(inventory, plan, activations, moment),
        }
        for moment in ALL_MOMENTS
    }


def _states_at(states: _States, moment: str, first_step: bool) -> dict[str, Amount]:
    early = moment == "load" or (first_step and moment not in ("optimizer_step", "step_end", "checkpoint_save"))
    gradients = states.gradients
    if states.main_gradients and moment in ("optimizer_step", "step_end", "checkpoint_save"):
        size = gradients.bytes or 0
        parts = (Part("gradients", size), Part("fp32 copies for the masters", states.main_gradients))
        gradients = Amount(size + states.main_gradients, f"{gradients.rule}; fp32 copies until zeroed", parts=parts)
    amounts = (states.parameters, gradients, states.masters if early else states.optimizer)
    return dict(zip(STATES, amounts, strict=True))


def _buffers(inventory: Inventory, plan: Plan, alive: Activations | None, moment: str) -> Amount:
    """Bytes that belong to no micro-batch's activations.

    Between steps each chunk of a stage keeps the last input that was received for it, and its gradient
    (``set_input_tensor``); while an interleaved schedule runs they are gone, and what is on its way counts.
    """
    parts = [Part("module buffers", inventory.buffer_bytes)]
    if alive is not None:
        parts.append(Part("buffer of unfused attention (GlobalMemoryBuffer)", alive.workspace, seen=False))
        parts.append(_boundary(plan, alive.boundary, running=moment in ("forward", "backward")))
    if plan.fsdp is not None and moment in ("forward", "backward"):
        parts.append(Part("gathered parameters", _gathered(inventory, alive), seen=False))
    kept = tuple(part for part in parts if part.bytes)
    return Amount(sum(part.bytes for part in kept), "Megatron Core: buckets are views of the gradients", parts=kept)


def _boundary(plan: Plan, boundary: int, running: bool) -> Part:
    chunks = max(1, plan.pipeline.virtual if plan.pipeline else 1)
    received = chunks - pipeline.ends(plan)[0]
    if plan.layout.pipeline <= 1 or not received:
        return Part("", 0)
    if running and chunks > 1:
        return Part("stage inputs and gradients on their way", _AT_WORK * boundary, seen=False)
    return Part("last input of each chunk and its gradient", 2 * received * boundary, seen=False)


def _gathered(inventory: Inventory, alive: Activations | None) -> int:
    """Megatron-FSDP: what stands outside of the layers stays gathered, and the next layer beside the running one."""
    outside = max((kind.numel * kind.itemsize for kind in inventory.kinds), default=0)
    everything = sum(kind.numel * kind.itemsize for kind in inventory)
    layers = max(1, alive.layers if alive is not None else 1)
    return min(everything, outside + 2 * (everything - outside) // layers)


def _activations_at(alive: Activations | None, moment: str) -> Amount:
    if moment not in ("forward", "forward_end", "backward_start", "backward"):
        return Amount(0, "no micro-batch is under way")
    if alive is None:
        return Amount(None, "the activations of this model are not known")
    saved = alive.parts if sum(part.bytes for part in alive.parts) == alive.saved else (Part("saved", alive.saved),)
    if moment == "forward":
        parts: tuple[Part, ...] = (*saved, Part("16-bit logits, attention mask", alive.loss_forward))
    elif moment == "backward":
        parts = _highest_in_backward(alive, saved)
    else:
        parts = saved
    parts = tuple(replace(part, seen=False) for part in parts if part.bytes)
    return Amount(sum(part.bytes for part in parts), alive.rule, within=alive.within, parts=parts)


def _highest_in_backward(alive: Activations, saved: tuple[Part, ...]) -> tuple[Part, ...]:
    """At the loss, or in the last block: logits are gone, one segment is recomputed, gradients flow."""
    inside = alive.recomputed + alive.block_backward
    at_loss = (*saved, Part("gradient of the logits", alive.loss_backward))
    if alive.logits + alive.loss_backward >= inside:
        return at_loss
    return (
        Part("saved, without the logits", alive.saved - alive.logits),
        Part("recomputed activations", alive.recomputed),
        Part("gradients of activations", alive.block_backward),
    )


def workspaces(
    capability: int, *, cublas_config: str = "", transformer_engine: bool = True, grouped_gemm: bool = False
) -> Amount:
    """Return the libraries' workspaces inside the allocator, which a job has from its first step on.

    ``capability``: the GPU's major compute capability (8 = A100, 9 = H100); ``cublas_config``: the job's
    CUBLAS_WORKSPACE_CONFIG. Forward and backward run on two threads, each with a cuBLAS handle of its own. Read off
    published steady states, where nothing else is left: 96.0 MiB on H100, 68.0 on A100 (with ``:4096:8``).
    """
    large = capability >= 9
    cublas = CUBLAS_WORKSPACE if large or cublas_config == ":4096:8" else CUBLAS_WORKSPACE_BEFORE
    engine = TE_WORKSPACE if large else TE_WORKSPACE_BEFORE
    streams = (1 if transformer_engine else 0) + (TE_GROUPED_STREAMS if grouped_gemm else 0)
    parts = (
        Part("cuBLAS, forward and backward", 2 * cublas, seen=False),
        Part("TransformerEngine", streams * engine, seen=False),
    )
    kept = tuple(part for part in parts if part.bytes)
    return Amount(sum(part.bytes for part in kept), "workspaces of cuBLAS and TransformerEngine", parts=kept)
