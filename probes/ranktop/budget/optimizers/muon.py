"""Muon for planning: which parameters it updates, and which are left to AdamW."""

from __future__ import annotations

from dataclasses import replace

from ranktop.budget.blocks import span
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import OptimizerPlan, Plan


def dealt(inventory: Inventory, plan: Plan) -> tuple[Inventory, Plan]:
    """Return inventory and plan with two parameter groups where one name stands for Muon and its companion.

    Muon takes the matrices of the blocks; embeddings, head, norms and biases go to the optimizer that ``rest``
    names (torch/optim/_muon.py: "should be optimized by a standard method such as AdamW"). Where no run of equal
    blocks tells, all matrices are Muon's. A live job's groups are left as they are.
    """
    rest = plan.optimizer.options.get("rest")
    if plan.optimizer.name != "Muon" or plan.groups or not isinstance(rest, str):
        return inventory, plan
    blocks = span(inventory) or range(len(inventory))
    kinds, index = list(inventory.kinds), dict[int, int]()
    order = []
    for position, kind in enumerate(inventory.order):
        if position in blocks and len(kinds[kind].shape) == 2:
            order.append(kind)
            continue
        if kind not in index:
            index[kind] = len(kinds)
            kinds.append(_others(kinds[kind]))
        order.append(index[kind])
    groups = (plan.optimizer, OptimizerPlan(name=rest, count=1))
    return replace(inventory, kinds=tuple(kinds), order=tuple(order)), replace(plan, groups=groups)


def _others(kind: Kind) -> Kind:
    # A parameter that a master copy is updated for has the index of its group counted down from -1.
    return replace(kind, group=-2 if kind.group < 0 else 1) if kind.trainable else kind
