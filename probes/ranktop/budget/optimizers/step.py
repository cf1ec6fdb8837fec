"""What an optimizer's step needs beside its states: copies of all tensors, of the largest one, or nothing.

Source: torch/optim/*.py (2.13). ``foreach`` is torch's default for parameters on a GPU and works on all tensors of a
parameter group and dtype at once; on the CPU the default is a loop over the parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Final

from ranktop.budget.optimizers.states import Piece, per_group
from ranktop.budget.plan import OptimizerPlan, Plan
from ranktop.budget.terms import Amount, Part

_FOREACH: Final = {
    "Adam": 1, "AdamW": 1, "NAdam": 1, "RAdam": 1, "Adamax": 1, "Adagrad": 2, "RMSprop": 1, "Adadelta": 2, "ASGD": 1,
    "Rprop": 1, "SGD": 0, "Adafactor": 1,
}  # fmt: skip
"""Full-size copies that the foreach implementation makes of every tensor of a group."""

_LOOP: Final = {
    "Adam": (2, 1), "AdamW": (2, 1), "NAdam": (2, 1), "RAdam": (4, 1), "Adamax": (1, 0), "Adagrad": (1, 1),
    "RMSprop": (1, 1), "Adadelta": (2, 1), "ASGD": (0, 0), "Rprop": (3, 0), "SGD": (0, 0), "Adafactor": (1, 1),
    "Lion": (2, 0),
}  # fmt: skip
"""Full-size copies that the loop over the parameters makes of one tensor, and how many of the tensor before are still
alive then: a local variable (the denominator) lives until it is assigned again."""

_DECAY_COPIES: Final = ("SGD", "NAdam", "RAdam", "RMSprop", "Adadelta", "ASGD")
"""Optimizers that hold a copy of the gradients with weight decay added beside their other copies (Adam drops it
before)."""

_FUSED: Final = ("Adam", "AdamW", "SGD", "Adagrad")
_ONE_KERNEL: Final = frozenset({"FusedAdam", "FusedLamb", "FusedLion", "DeepSpeedCPUAdam", "DeepSpeedCPULion"})
"""Optimizers whose step is one kernel over all tensors."""


def temporaries(pieces: Iterable[Piece], plan: Plan, turns: Iterable[Piece] = ()) -> Amount:
    """Return the most bytes that the optimizers' step needs at once on top of states and gradients.

    ``turns`` are the pieces in the order in which a loop meets them, where that is known.
    """
    of_group = per_group(plan)
    groups: dict[tuple[int, int], list[Piece]] = {}
    rows: dict[int, list[int]] = {}
    for piece in turns:
        if piece.trainable and 0 not in piece.shape:
            rows.setdefault(piece.group, []).append(piece.itemsize * prod(piece.shape))
    for piece in pieces:
        if piece.trainable and piece.group >= 0 and 0 not in piece.shape:
            groups.setdefault((piece.group, piece.itemsize), []).append(piece)
    best = Amount(0, "no optimizer")
    for (group, _), members in groups.items():
        found = _of_group(of_group(group), members, plan, rows.get(group, []))
        if found.bytes is not None and found.bytes >= (best.bytes or 0):
            best = found
    return best


def _of_group(optimizer: OptimizerPlan, pieces: list[Piece], plan: Plan, row: list[int]) -> Amount:
    name = optimizer.name
    largest = max(piece.itemsize * prod(piece.shape) for piece in pieces)
    every = sum(piece.itemsize * prod(piece.shape) * piece.count for piece in pieces)
    if name in _ONE_KERNEL or "8bit" in name or "4bit" in name or name.startswith("Paged"):
        return Amount(0, f"{name}: one fused kernel, no copies")
    if name == "Muon":
        return _muon(pieces)
    if optimizer.options.get("fused") and name in _FUSED:
        return Amount(0, f"{name} fused: no copies")
    if name in _FOREACH and _torch(optimizer) and _foreach(optimizer, plan):
        copies = _FOREACH[name] + _more(optimizer)
        if name == "Rprop":
            every += largest + largest // 4
        return _some(copies * every, f"{name} foreach: {copies} copies of every tensor", 0.0)
    if name in _LOOP:
        copies, before = _LOOP[name]
        decays = bool(optimizer.options.get("weight_decay")) and name in ("Adam", "Adamax", "Adagrad")
        copies += max(_more(optimizer), int(decays))
        if row:
            pairs = set(zip([0, *row], row))  # noqa: B905  # each tensor with the one before it
            size = max(copies * own + before * earlier for earlier, own in pairs)
        else:
            size = copies * largest + before * _second(pieces)
        return _some(size, f"{name} loop: {copies} copies of the largest tensor", 0.1)
    return _some(2 * largest, f"{name}: two copies of the largest tensor, as most loops make", None)


def _foreach(optimizer: OptimizerPlan, plan: Plan) -> bool:
    """Adafactor loops unless told otherwise; the others do on the CPU."""
    chosen = optimizer.options.get("foreach")
    return bool(chosen) if chosen is not None else not plan.host and optimizer.name != "Adafactor"


def _second(pieces: list[Piece]) -> int:
    """Return the bytes of the largest tensor that may come before the largest one."""
    sizes = sorted(piece.itemsize * prod(piece.shape) for piece in pieces for _ in range(min(2, piece.count)))
    return sizes[-2] if len(sizes) > 1 else 0


def _torch(optimizer: OptimizerPlan) -> bool:
    return str(optimizer.options.get("package", "torch")) == "torch"


def _more(optimizer: OptimizerPlan) -> int:
    """Return further copies: of the gradients with weight decay added, or negated."""
    changes = optimizer.options.get("weight_decay") or optimizer.options.get("maximize")
    return int(bool(changes) and optimizer.name in _DECAY_COPIES)


def _muon(pieces: list[Piece]) -> Amount:
    """Newton-Schulz on one matrix at a time: the update in its own dtype; in bf16 X, X X^T, its polynomial, a new X.

    Source: torch/optim/_muon.py ``_zeropower_via_newtonschulz``.
    """
    most = 0
    for piece in pieces:
        numel = prod(piece.shape)
        short = min(piece.shape) if len(piece.shape) > 1 else 1
        most = max(most, numel * piece.itemsize + 2 * (2 * numel + 2 * short * short))
    return _some(most, "Muon: Newton-Schulz on the largest matrix in bf16", 0.1)


def _some(size: int, rule: str, within: float | None) -> Amount:
    return Amount(size, rule, within=within, parts=(Part(rule, size, seen=False),) if size else ())
