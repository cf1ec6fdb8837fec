"""One model for several GPUs without sharding: DataParallel, a parameter server, Megatron's distributed optimizer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ranktop.budget import ddp
from ranktop.budget.activations.saved import Activations
from ranktop.budget.composition import parts
from ranktop.budget.held import Held, counted, held
from ranktop.budget.inventory import Inventory
from ranktop.budget.optimizers.states import Piece
from ranktop.budget.plan import Plan
from ranktop.budget.terms import Amount, Part

COALESCED: Final = 10 * 2**20
"""Bytes of gradients that DataParallel adds up at once (torch/nn/parallel/comm.py ``reduce_add_coalesced``)."""


def data_parallel(inventory: Inventory, plan: Plan) -> Held:
    """Return the states of a GPU under ``torch.nn.DataParallel``.

    GPU 0 holds the model and its optimizer; another GPU has a replica only from forward to backward, whose gradients
    are added to GPU 0's when its backward ends. Source: torch/nn/parallel/data_parallel.py, _functions.py.
    """
    states = ddp.expected(inventory, plan)
    if plan.layout.replicate_rank == 0:
        return states
    nothing = Amount(0, "DataParallel: GPU 0 has the optimizer")
    return replace(
        states,
        parameters=replace(states.parameters, rule="DataParallel: a replica, made anew for every forward"),
        gradients=Amount(0, "DataParallel: a replica's gradients are added to GPU 0's and dropped"),
        optimizer=nothing,
        optimizer_before=nothing,
        pieces=(),
        copied=0,
    )


def parameter_server(inventory: Inventory, plan: Plan) -> Held:
    """Return the states of a rank in a synchronous parameter server.

    Every rank trains on its own data. Gradients are reduced onto rank 0 in place, rank 0 alone has an optimizer and
    broadcasts the parameters after its step (``torch.distributed.reduce`` and ``broadcast``, no copies).
    """
    states = ddp.expected(inventory, plan)
    if plan.layout.replicate_rank == 0:
        return states
    nothing = Amount(0, "parameter server: rank 0 has the optimizer")
    return replace(states, optimizer=nothing, optimizer_before=nothing, pieces=(), copied=0)


def distributed_optimizer(inventory: Inventory, plan: Plan) -> Held:
    """Return the states under Megatron's distributed optimizer: optimizer state and masters split over data ranks.

    Parameters and gradients stay whole on every data-parallel rank; the flat buffer of a rank is cut into equal
    parts, whatever tensors lie in them. Source: megatron/core/optimizer/distrib_optimizer.py
    ``_build_model_gbuf_range``.
    """
    ranks = max(1, plan.layout.shard)
    pieces = []
    for kind, count in counted(inventory):
        if kind.trainable:
            share = -(-kind.numel * count // ranks)
            pieces.append(Piece((share,), kind.itemsize, kind.group, whole=ranks == 1))
    return held(ddp.whole_parameters(inventory, plan), ddp.whole_gradients(inventory, plan), pieces, plan)


def replica_alive(moment: str) -> bool:
    """Whether a replica of DataParallel exists at a moment: from the scatter to the end of backward."""
    return moment in ("forward", "forward_end", "backward_start", "backward")


def gathered(alive: Activations | None, plan: Plan) -> tuple[Part, ...]:
    """Return what GPU 0 holds beside its own activations: every replica's output, and the loss on the full batch.

    Assumes that the model returns logits and that the script computes the loss from them, as it must where the
    loss should be on the full batch.
    """
    others = max(0, plan.layout.replicate - 1)
    if alive is None or plan.layout.replicate_rank or not others:
        return ()
    return parts(
        ("loss on the other GPUs' share of the batch", others * alive.logits),
        ("outputs gathered from all GPUs", (others + 1) * (alive.logits // 2)),
    )


def adding_up(gradients: int, plan: Plan) -> tuple[Part, ...]:
    """Return what GPU 0 needs while gradients of all replicas are added: its replica's own, and flat pieces."""
    ranks = plan.layout.replicate
    if ranks < 2 or plan.layout.replicate_rank:
        return ()
    piece = min(COALESCED, gradients)
    return parts(("gradients of GPU 0's own replica", gradients), ("pieces of all replicas", ranks * piece))
