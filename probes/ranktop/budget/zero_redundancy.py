"""ZeroRedundancyOptimizer: DDP whose optimizer state is dealt out by whole parameters."""

from __future__ import annotations

from ranktop.budget.ddp import whole_gradients, whole_parameters
from ranktop.budget.held import Held, held, whole_piece
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Plan


def assignment(inventory: Inventory, ranks: int) -> list[list[Kind]]:
    """Return the parameters that each rank updates: largest first, always to the least loaded rank.

    Frozen parameters that were given to the optimizer weigh as much as others; the loads go on from one
    parameter group to the next. Source: torch/distributed/optim/zero_redundancy_optimizer.py
    ``_partition_parameters``.
    """
    groups: dict[int, list[Kind]] = {}
    for kind in inventory:
        if kind.group >= 0:
            groups.setdefault(kind.group, []).append(kind)
    load = [0] * ranks
    dealt: list[list[Kind]] = [[] for _ in range(ranks)]
    for group in sorted(groups):
        for kind in sorted(groups[group], key=lambda k: k.numel, reverse=True):
            rank = load.index(min(load))
            dealt[rank].append(kind)
            load[rank] += kind.numel
    return dealt


def expected(inventory: Inventory, plan: Plan) -> Held:
    """Return the states of a rank: all parameters and gradients, state of those dealt to it."""
    mine = assignment(inventory, max(1, plan.layout.data))[plan.layout.replicate_rank]
    pieces = [whole_piece(kind) for kind in mine]
    return held(whole_parameters(inventory, plan), whole_gradients(inventory, plan), pieces, plan)
