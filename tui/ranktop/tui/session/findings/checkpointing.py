"""Activation checkpointing that is switched on and does not happen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Final

from ranktop.budget.plan import Plan
from ranktop.budget.terms import Amount
from ranktop.tui.session.findings.alternatives import alternative
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.groups import Group
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.sizes import MIB, sized
from ranktop.tui.session.findings.windows import PERSISTENT, WINDOW, settled
from ranktop.tui.session.findings.words import ranks_words
from ranktop.wire.schema import Card

APART: Final = 1.3
"""Both budgets must differ by so much that the measurement can tell."""
FLOOR: Final = 8 * MIB
MOMENT: Final = "forward_end"


def checkpointing(scene: Scene) -> Iterator[Finding]:
    """Yield a finding for each group whose activations are those of no checkpointing though the plan has it."""
    for group in scene.groups:
        card = group.members[0].card
        plan = card.plan if card is not None else None
        if card is None or plan is None or plan.checkpointing not in ("full", "selective"):
            continue
        saved = _budgets(card, plan)
        if saved is None:
            continue
        with_it, without = saved
        near = scene.limits["checkpointing.near"]
        ranks = [view.rank for view in group.members if _holds_all(_measured(group, view.rank), with_it, without, near)]
        if ranks:
            # A setting of the script: ranks that were read less often so far have it too.
            told = group.ranks if 2 * len(ranks) >= len(group.members) else tuple(ranks)
            yield _finding(_measured(group, ranks[0]) or 0.0, plan, told, with_it, without)


def _budgets(card: Card, plan: Plan) -> tuple[Amount, Amount] | None:
    """Return the activations at the end of forward with the plan's checkpointing and without; None if that is alike."""
    own = alternative(card, plan, "own")
    other = alternative(card, replace(plan, checkpointing="none"), "no checkpointing")
    if own is None or other is None:
        return None
    with_it, without = own.at(MOMENT).get("activations"), other.at(MOMENT).get("activations")
    if with_it is None or without is None or with_it.bytes is None or without.bytes is None:
        return None
    apart = without.bytes - with_it.bytes
    if without.bytes < APART * with_it.bytes or apart < FLOOR + 2 * without.slack:
        return None
    return with_it, without


def _measured(group: Group, rank: int) -> float | None:
    view = next(member for member in group.members if member.rank == rank)
    sizes = [
        memory.activations
        for step in settled(view, WINDOW)
        if (memory := step.moments.get(MOMENT)) is not None and memory.activations is not None
    ]
    return median(sizes) if len(sizes) >= PERSISTENT - 2 else None


def _holds_all(measured: float | None, with_it: Amount, without: Amount, near: float) -> bool:
    if measured is None or without.bytes is None or with_it.bytes is None:
        return False
    closer = measured - with_it.bytes > 2 * abs(without.bytes - measured)
    return closer and abs(measured - without.bytes) <= without.slack + near * without.bytes


def _finding(measured: float, plan: Plan, ranks: tuple[int, ...], with_it: Amount, without: Amount) -> Finding:
    expected, plain = with_it.bytes or 0, without.bytes or 0
    kind = "" if plan.checkpointing == "full" else f"{plan.checkpointing} "
    return Finding(
        rule="checkpointing", severity="warning", ranks=ranks, subject="activations", short="no recompute",
        sentence=f"{kind}checkpointing is on but does nothing on {ranks_words(ranks)}: {sized(measured)} of "
        f"activations after forward, {sized(expected)} with it and {sized(plain)} without",
        evidence=(
            Evidence("activations after forward", round(measured), "B"),
            Evidence("expected with checkpointing", expected, "B"),
            Evidence("expected without", plain, "B"),
        ),
        advice="See that the flag reaches the blocks: the model in train mode, use_cache=False, inputs that require a "
        "gradient (enable_input_require_grads() for frozen embeddings), checkpoint() around each block.",
        confidence="high" if without.within == 0.0 or (without.within or 1.0) <= 0.05 else "medium",
    )  # fmt: skip
