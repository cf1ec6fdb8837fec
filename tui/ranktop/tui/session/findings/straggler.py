"""Ranks that the others wait for in each step, why, and since when; and a job that is slower than its own past."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ranktop.tui.session.findings.causes import Cause, cause_of, place
from ranktop.tui.session.findings.finding import Evidence, Finding, Plot
from ranktop.tui.session.findings.pace import PHASES, median
from ranktop.tui.session.findings.past import Change, slower_since
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.slowness import Slow, costliest
from ranktop.tui.session.findings.slowness import of as slow_ranks
from ranktop.tui.session.findings.tokens import by_luck
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import GONE
from ranktop.tui.view.text import duration

TOGETHER: Final = 3
"""Slow ranks with one cause beyond which they are told in one finding: a node, say."""

LASTING: Final = 20
"""Step times since the change, and seconds, that it must last."""

WIDE: Final = 0.15
"""Standard error, as a share of what it is of, from which a range is told."""

NINE_OF_TEN: Final = 1.645
"""Standard errors to each side."""

PLOTTED: Final = 64
"""Ranks in a plot."""

MORE_ACTIVATIONS: Final = 1.03
"""Growth of the activations from which longer inputs are the reason for longer steps."""

_OF_PHASE: Final = {
    "data": "in data loading", "forward": "in forward", "backward": "in backward", "optimizer": "in the optimizer"
}  # fmt: skip


def straggler(scene: Scene) -> Iterable[Finding]:
    """Find ranks whose own work keeps the others waiting, else a job that has become slower."""
    slow = slow_ranks(scene)
    together: dict[str, list[tuple[Slow, Cause]]] = {}
    for one in slow:
        cause = cause_of(one)
        if cause.name == "tokens" and by_luck(one.paced, one.rank):
            continue
        together.setdefault(f"{cause.name} {one.paced.role}", []).append((one, cause))
    for members in together.values():
        if len(members) > TOGETHER:
            yield _finding(scene, members)
        else:
            yield from (_finding(scene, [member]) for member in members)
    yield from _slower_than_before(scene, slow)


def _finding(scene: Scene, members: Sequence[tuple[Slow, Cause]]) -> Finding:
    slow, cause = max(members, key=lambda member: member[0].cost)
    paced = slow.paced
    ranks = tuple(sorted(one.rank for one, _ in members))
    base = _work_of_peers(slow, slow_ranks(scene))
    change = _since(slow)
    since, step = (change.at, change.step) if change is not None else _shown_since(scene, slow)
    return Finding(
        rule="straggler",
        severity="warning",
        ranks=ranks,
        sentence=_sentence(slow, cause, ranks, base),
        short=f"slow +{100 * slow.cost / base:.0f}%",
        subject=cause.name,
        evidence=_evidence(slow, cause, base, change),
        advice=cause.advice,
        confidence=_confidence(slow),
        since=since,
        step=step,
        peers=tuple(rank for rank in sorted(paced.members) if rank not in ranks),
        plot=_plot(slow, base, slow_ranks(scene)),
    )


def _work_of_peers(slow: Slow, found: Sequence[Slow]) -> float:
    """Return the seconds of own work of a typical peer in each step: what no slow rank makes it wait for."""
    most = costliest(tuple(one for one in found if one.paced is slow.paced))
    return max(slow.paced.step - most, 0.1 * slow.paced.step)


def _sentence(slow: Slow, cause: Cause, ranks: tuple[int, ...], base: float) -> str:
    """Whom it costs how much, and why, come first: a narrow line shows no more."""
    others = len(slow.paced.members) - len(ranks)
    one = len(ranks) == 1
    about = "up to " if not one else "about " if slow.estimate.error else ""
    waiting = "the other" if others == 1 else f"the {others} others"
    costs = f"{ranks_words(ranks, 'keep')} {waiting} waiting {about}{_seconds(slow.cost)} a step"
    much = _percent(slow, base) if one else f"up to {100 * slow.cost / base:.0f} %"
    peers = " ".join(part for part in ("than its peers" if one else "than their peers", slow.paced.role) if part)
    where = _OF_PHASE.get(place(slow)) or f"in {place(slow)}"
    where += " and backward" if slow.beyond and place(slow) != "backward" else ""
    if not cause.known:
        return f"{costs} {where}, {cause.words}; {much} more own work {peers}"
    where = "" if cause.name == "data" else f", {where}"
    return f"{costs}: {cause.words}; {much} more own work {peers}{where}"


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 0.9995 else f"{value:.3g} s"


def _percent(slow: Slow, base: float) -> str:
    """Say how much more, and between what it lies in nine of ten cases where that is wide."""
    value, error = slow.estimate.value / base, slow.estimate.error / base
    if not error:
        return f"{100 * value:.0f} %"
    low, high = (round(100 * max(0.0, value + sign * NINE_OF_TEN * error)) for sign in (-1, 1))
    wide = error > WIDE * value and low < high
    return f"about {100 * value:.0f} %" + (f" ({low} to {high} %)" if wide else "")


def _evidence(slow: Slow, cause: Cause, base: float, change: Change | None) -> tuple[Evidence, ...]:
    paced = slow.paced
    peers = len(paced.members) - 1
    facts = [
        Evidence("cause", cause.name if cause.known else "unknown"),
        *cause.evidence,
        Evidence("own work", base + slow.cost, "s"),
        Evidence(f"median of {peers} peer{'' if peers == 1 else 's'}", base, "s"),
        Evidence("cost of each step", slow.cost, "s"),
        Evidence("step", paced.step, "s"),
    ]
    for phase in PHASES:
        facts.append(Evidence(phase, slow.pace.phase(phase), "s"))
        facts.append(Evidence(f"{phase} of its peers", paced.middle(slow.rank, phase), "s"))
    if slow.spreads is not None:
        facts.append(Evidence("gap, in spreads of its peers", round(slow.spreads, 1)))
    if slow.arrival is not None:
        arrival = slow.arrival
        facts.append(Evidence("time that others wait for it", 100 * arrival.share, "%"))
        facts.append(Evidence("the same of its peers", 100 * arrival.peers, "%"))
        facts.append(Evidence("times looked at", arrival.looks))
        if slow.gap == 0:
            facts.append(Evidence("cost of each step, standard error", slow.estimate.error, "s"))
    if slow.sign.chance < 1 and slow.gap == 0:
        facts.append(Evidence(f"{slow.sign.name} beyond its peers'", 100 * slow.sign.ratio, "%"))
    facts.append(Evidence("steps compared", slow.pace.count, "steps"))
    if change is not None:
        facts.append(Evidence("step time before", change.before, "s"))
        facts.append(Evidence("slow since step", change.step))
    return tuple(facts)


def _confidence(slow: Slow) -> str:
    if slow.paced.few:
        return "low"
    sure = slow.gap > 0 and (slow.arrival is not None or slow.pace.count >= 16)
    return "high" if sure else "medium"


def _since(slow: Slow) -> Change | None:
    """Return when the job's steps became longer by about what this rank costs."""
    change = slower_since(slow.pace.view.history)
    if change is None or not 0.5 <= (change.after - change.before) / slow.cost <= 2.0:
        return None
    return change


def _shown_since(scene: Scene, slow: Slow) -> tuple[float, int]:
    """Return (time, step) of the first of the steps that show it: nothing changed within them."""
    pace, sample = slow.pace, slow.pace.view.sample
    ago = sum(pace.seconds) + (sample.step_age or 0.0 if sample is not None else 0.0) + (pace.view.age or 0.0)
    return scene.now - ago, pace.view.steps[-pace.count].index


def _plot(slow: Slow, base: float, found: Sequence[Slow]) -> Plot:
    """Own work by rank as the sentence tells it: with what only who waits for whom shows."""
    ranks = sorted(slow.paced.members)
    if len(ranks) > PLOTTED:
        near = sorted(ranks, key=lambda rank: abs(rank - slow.rank))[:PLOTTED]
        ranks = sorted(near)
    index = slow.paced.ways.index(slow.way) if slow.way else 0
    values = {rank: slow.paced.members[rank].own[index].value for rank in ranks}
    middle = median([one.own[index].value for one in slow.paced.members.values()])
    costs = {one.rank: one.cost for one in found if one.paced is slow.paced}
    shown = tuple(base + max(value - middle, costs.get(rank, value - middle)) for rank, value in values.items())
    return Plot("own work by rank", "rank", "s", tuple(ranks), (("own work", shown), ("median", (base,) * len(ranks))))


def _slower_than_before(scene: Scene, slow: Sequence[Slow]) -> Iterable[Finding]:
    """Find that all ranks are slower than before, where no single one is the reason."""
    if scene.snapshot.state != "running":
        return
    views = [view for view in scene.snapshot.ranks if view.state not in GONE and not view.stale and view.history]
    change = slower_since(views[0].history) if views else None
    if (
        change is None
        or change.ratio < 1 + scene.limits["straggler.min_slowdown"]
        or change.points < LASTING
        or scene.now - change.at < LASTING
    ):
        return
    if costliest(tuple(slow)) > 0.5 * (change.after - change.before):
        return
    if change.activations is not None and change.activations > MORE_ACTIVATIONS:
        return
    who = "all ranks are" if len(scene.snapshot.ranks) > 1 else "the job is"
    yield Finding(
        rule="straggler",
        severity="info",
        ranks=(),
        sentence=(
            f"{who} slower than before: {change.before:.3g} -> {change.after:.3g} s a step since step {change.step}, "
            f"{duration(scene.now - change.at)} ago"
        ),
        subject="past",
        evidence=(
            Evidence("step before", change.before, "s"),
            Evidence("step since", change.after, "s"),
            Evidence("slow since step", change.step),
        ),
        advice="Look at what all ranks share: storage, network, the node's CPUs, clocks, or longer inputs.",
        confidence="medium",
        since=change.at,
        step=change.step,
    )
