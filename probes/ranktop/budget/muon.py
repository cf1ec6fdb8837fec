"""Muon for planning: which parameters it updates, and which are left to AdamW."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ranktop.budget.blocks import place
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import OptimizerPlan, Plan


def dealt(inventory: Inventory, plan: Plan) -> tuple[Inventory, Plan]:
    """Return inventory and plan with two parameter groups where one name stands for Muon and its companion.

    Muon takes the matrices of the blocks; embeddings, head, norms and biases go to the optimizer that ``rest``
    names (torch/optim/_muon.py: "should be optimized by a standard method such as AdamW"). A live job's groups are
    left as they are.
    """
    rest = plan.optimizer.options.get("rest")
    if plan.optimizer.name != "Muon" or plan.groups or not isinstance(rest, str):
        return inventory, plan
    matrices = _of_blocks(inventory)
    kinds = tuple(_grouped(kind, index in matrices) for index, kind in enumerate(inventory.kinds))
    groups = (plan.optimizer, OptimizerPlan(name=rest, count=1))
    return replace(inventory, kinds=kinds), replace(plan, groups=groups)


def _grouped(kind: Kind, by_muon: bool) -> Kind:
    return kind if kind.group < 0 else replace(kind, group=0 if by_muon else 1)


def _of_blocks(inventory: Inventory) -> set[int]:
    """Return the indices of the kinds that are matrices inside the blocks, where the order shows equal blocks."""
    kinds = inventory.kinds
    names = {(k.shape, k.dtype, k.trainable) for k in kinds}
    times = Counter((k.shape, k.dtype, k.trainable) for k in inventory)
    best: tuple[int, set[object]] = (0, {n for n in names if len(n[0]) > 1})
    for layers in sorted({count for count in times.values() if count > 1}, reverse=True):
        found = place(inventory, layers)
        size = sum(kind.numel for kind in found.block) * found.repeats
        if found.repeats > 1 and size > best[0]:
            best = size, {(k.shape, k.dtype, k.trainable) for k in found.block if len(k.shape) > 1}
    return {i for i, k in enumerate(kinds) if (k.shape, k.dtype, k.trainable) in best[1]}
