"""A whole group that holds more than its budget expects: no rank is out of line, all are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ranktop.budget.terms import STATES
from ranktop.budget.words import strategy_words
from ranktop.tui.session.expected import difference
from ranktop.tui.session.findings.columns import Windows, compared_moments
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.groups import Group
from ranktop.tui.session.findings.limits import Limits
from ranktop.tui.session.findings.memory_words import EXTRA_COPY
from ranktop.tui.session.findings.sizes import (
    PROCESS,
    SHORT,
    WORDS,
    at_moment,
    model_sized,
    short_size,
    sized,
    summed,
    whole_parameters,
)
from ranktop.tui.session.findings.unsharded import holds_whole_model
from ranktop.tui.session.findings.windows import is_host, persistent, resting_moment
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import RankView


def findings(group: Group, windows: Windows, limits: Limits) -> Iterator[Finding]:
    """Yield a finding for the state of which all members hold more than is expected, the largest only."""
    members = [view for view in group.members if view.rank in windows]
    if not members or len(members) < len(group.members):
        return
    best: tuple[float, str, str] | None = None
    for moment in compared_moments(windows):
        for category in STATES:
            excess = _excess(members, windows, moment, category, limits)
            if excess is not None and (best is None or excess > best[0]):
                best = excess, category, moment
    if best is not None and not _told_otherwise(members[0], best[1]):
        yield _states(group, *best)
        return
    kept = _kept(members, windows, limits)
    if kept is not None:
        yield kept


def _excess(members: Sequence[RankView], windows: Windows, moment: str, category: str, limits: Limits) -> float | None:
    """Return the median excess of the members, None unless each has one in most of its last steps."""
    floor = _floor(members[0], windows, limits)
    found: list[float] = []
    for view in members:
        amount = view.budget.at(moment).get(category) if view.budget is not None else None
        if amount is None or amount.bytes is None or amount.within != 0.0:
            return None
        sizes = [memory for step in windows[view.rank] if (memory := step.moments.get(moment)) is not None]
        deltas = [float(difference(getattr(memory, category), amount) or 0) for memory in sizes]
        if not persistent(deltas, max(floor, limits["memory.min_share_of_category"] * amount.bytes)):
            return None
        found.append(median(deltas))
    return median(found)


def _floor(view: RankView, windows: Windows, limits: Limits) -> float:
    peak = windows[view.rank][-1].peak
    least = limits["memory.min_bytes_host" if is_host(view) else "memory.min_bytes"]
    return max(least, limits["memory.min_share"] * summed(peak, PROCESS))


def _told_otherwise(view: RankView, category: str) -> bool:
    """Whether another rule knows why: states that are not sharded, or that offloading left."""
    plan = view.card.plan if view.card is not None else None
    if plan is None:
        return True
    if plan.fsdp is not None and plan.fsdp.cpu_offload:
        return True
    if plan.zero is not None and (plan.zero.offload_optimizer, plan.zero.offload_parameters) != ("none", "none"):
        return True
    return (category == "gradients" and bool(plan.unsharded_gradients_at)) or holds_whole_model(view)


def _states(group: Group, excess: float, category: str, moment: str) -> Finding:
    view = group.members[0]
    card = view.card
    plan = card.plan if card is not None else None
    inventory = card.inventory if card is not None else None
    whole = whole_parameters(inventory) if inventory is not None else None
    local = view.budget.at(moment)["parameters"].bytes if view.budget is not None else None
    copied = model_sized(excess, whole, local) if category == "parameters" else ""
    hint = " (an extra copy of the model?)" if copied else ""
    strategy = strategy_words(plan).split(" · ")[0] if plan is not None else "the budget"
    return Finding(
        rule="memory", severity="warning", ranks=group.ranks, subject=category,
        sentence=f"{_all(group)} {sized(excess)} more {WORDS[category]} than {strategy} expects{hint}",
        short=f"{SHORT[category]} {short_size(excess)}"[:14],
        evidence=(
            Evidence(f"{WORDS[category]} beyond the budget {at_moment(moment)}, median", round(excess), "B"),
            Evidence("whole model's parameters", whole, "B"),
        ),
        advice=EXTRA_COPY.replace(" on this rank", "") if copied else
        "Compare the card's strategy with what the script builds: the budget counts these bytes exactly.",
        confidence="medium",
    )  # fmt: skip


def _all(group: Group) -> str:
    role = f" {group.role}" if group.role else ""
    if len(group.members) == 1:
        return f"rank {group.ranks[0]} holds"
    return f"{'all' if not role else 'the'} {len(group.members)} ranks{role} hold"


def _kept(members: Sequence[RankView], windows: Windows, limits: Limits) -> Finding | None:
    """Tell of memory of the model's size that every member keeps between the steps, beside its states."""
    card = members[0].card
    if card is None or card.inventory is None:
        return None
    whole = whole_parameters(card.inventory)
    sizes: list[float] = []
    for view in members:
        moment = resting_moment(windows[view.rank][-1])
        budget = view.budget.at(moment) if view.budget is not None and moment is not None else {}
        amount, local = budget.get("activations"), budget.get("parameters")
        if amount is None or amount.bytes is None or moment is None:
            return None
        deltas = [
            held - amount.bytes
            for step in windows[view.rank]
            if (memory := step.moments.get(moment)) is not None and (held := memory.activations) is not None
        ]
        middle = median(deltas) if deltas else 0.0
        if middle < _floor(view, windows, limits) + amount.slack:
            return None
        if local is None or not model_sized(middle, whole):
            return None
        sizes.append(middle)
    middle = median(sizes)
    ranks = tuple(view.rank for view in members)
    return Finding(
        rule="memory", severity="info", ranks=ranks, subject="kept",
        sentence=f"{ranks_words(ranks, 'keep')} {sized(middle)} after every step beside the model's states: "
        f"as much as {model_sized(middle, whole)}, a second copy (an EMA, a reference model)?",
        evidence=(
            Evidence("kept beside the states, median", round(middle), "B"),
            Evidence("whole model's parameters", whole, "B"),
        ),
        advice="Nothing is wrong if the job wants a second model; else drop it, or keep it on the CPU.",
        confidence="medium",
    )  # fmt: skip
