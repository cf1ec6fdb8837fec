"""Whole states on every rank: one device, DataParallel, DDP, tensor-parallel parts and pipeline stages."""

from __future__ import annotations

from typing import Final

from ranktop.budget.held import Held, counted, gradient_itemsize, held, whole_piece
from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Plan
from ranktop.budget.tensor import stored_numel
from ranktop.budget.terms import Amount

_WORDS: Final = {
    "single": "whole model",
    "dp": "DataParallel: the first device holds the whole model",
    "ddp": "DDP: the whole model on every rank",
    "zero-redundancy": "DDP: the whole model on every rank",
    "tp": "tensor parallel: this rank's part of every split parameter, padded for the scatter",
    "pp": "pipeline: this stage's own parameters",
}


def whole_parameters(inventory: Inventory, plan: Plan) -> Amount:
    """Return the bytes of the parameters, each shared tensor once."""
    tensor = plan.layout.tensor
    total = sum(stored_numel(kind, tensor) * kind.itemsize * count for kind, count in counted(inventory))
    return Amount(total, _WORDS.get(plan.strategy, _WORDS["single"]))


def whole_gradients(inventory: Inventory, plan: Plan) -> Amount:
    """Return the bytes of one gradient for every trainable parameter.

    With ``gradient_as_bucket_view`` the gradients are views of the reducer's buckets, which have no padding,
    so that the bytes are the same; without it the buckets come on top and count as buffers. Source:
    torch/csrc/distributed/c10d/reducer.cpp ``initialize_buckets``.
    """
    total = sum(
        kind.numel * gradient_itemsize(kind, plan) * count for kind, count in counted(inventory) if kind.trainable
    )
    views = plan.ddp is not None and plan.ddp.gradient_as_bucket_view
    rule = "DDP: gradients are views of the buckets" if views else "one for every trainable parameter"
    return Amount(total, rule)


def expected(inventory: Inventory, plan: Plan) -> Held:
    """Return the states of a rank that shares them with nobody. Source: torch/nn/parallel/distributed.py."""
    pieces = [whole_piece(kind, count) for kind, count in counted(inventory)]
    return held(whole_parameters(inventory, plan), whole_gradients(inventory, plan), pieces, plan)
