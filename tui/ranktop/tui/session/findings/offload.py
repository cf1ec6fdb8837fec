"""Offloading that is configured and leaves the states on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ranktop.budget.plan import Plan
from ranktop.tui.session.findings.alternatives import alternative
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.sizes import MIB, WORDS, sized
from ranktop.tui.session.findings.windows import settled
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import RankView
from ranktop.wire.schema import Card

FLOOR: Final = 8 * MIB


def offload(scene: Scene) -> Iterator[Finding]:
    """Yield a finding for each group whose device holds what its plan keeps in the host's memory."""
    for group in scene.groups:
        card = group.members[0].card
        plan = card.plan if card is not None else None
        if card is None or plan is None or plan.host:
            continue
        away = _away(plan)
        would = _would_hold(card, plan, away) if away else {}
        for category, size in would.items():
            held = {view.rank: here for view in group.members if (here := _held(view, category)) is not None}
            ranks = [rank for rank, here in held.items() if here >= scene.limits["offload.min_share"] * size]
            if size >= FLOOR and ranks:
                yield _finding(category, ranks, size, min(held[rank] for rank in ranks))
                break


def _away(plan: Plan) -> tuple[str, ...]:
    """Return the categories that a plan keeps off the device, the one that tells most first."""
    if plan.fsdp is not None and plan.fsdp.cpu_offload:
        return ("optimizer", "parameters")
    if plan.zero is None:
        return ()
    states = ("optimizer",) if plan.zero.offload_optimizer != "none" else ()
    return (*states, "parameters") if plan.zero.offload_parameters != "none" else states


def _would_hold(card: Card, plan: Plan, away: tuple[str, ...]) -> dict[str, int]:
    """Return the bytes of each category if nothing were offloaded, less what stays here by the plan."""
    plain = replace(
        plan,
        fsdp=replace(plan.fsdp, cpu_offload=False) if plan.fsdp is not None else None,
        zero=replace(plan.zero, offload_optimizer="none", offload_parameters="none") if plan.zero is not None else None,
    )
    here, kept = alternative(card, plain, "no offload"), alternative(card, plan, "own")
    found: dict[str, int] = {}
    for category in away:
        without = here.at("step_end").get(category) if here is not None else None
        with_it = kept.at("step_end").get(category) if kept is not None else None
        if without is not None and without.bytes is not None:
            found[category] = without.bytes - ((with_it.bytes or 0) if with_it is not None else 0)
    return found


def _held(view: RankView, category: str) -> int | None:
    """Return what the device holds of a category after the last step, beyond what the plan leaves there."""
    steps = settled(view, 1)
    rest = steps[-1].rest if steps else None
    held: int | None = getattr(rest, category) if rest is not None else None
    amount = view.budget.at("step_end").get(category) if view.budget is not None else None
    return None if held is None else held - ((amount.bytes or 0) if amount is not None else 0)


def _finding(category: str, ranks: list[int], size: int, held: int) -> Finding:
    moved = max(0, size - held)
    return Finding(
        rule="offload", severity="warning", ranks=tuple(ranks), subject=category, short="not offloaded",
        sentence=f"offload moved {sized(moved)} of {sized(size)} of {WORDS[category]}: {ranks_words(ranks)} still "
        f"hold{'s' * (len(ranks) == 1)} {sized(held)} on the device",
        evidence=(
            Evidence(f"{WORDS[category]} on the device after a step", held, "B"),
            Evidence("without offload", size, "B"),
        ),
        advice="See that the wrapper got the setting (cpu_offload, offload_policy, offload_optimizer) before the "
        "optimizer was made, and that nothing moves the model back with .cuda() or .to(device).",
        confidence="medium",
    )  # fmt: skip
