"""Memory that a rank keeps after its steps, more after each: a leak, told apart from lengths, caches and beginnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ranktop.tui.session.expected import ALLOCATED
from ranktop.tui.session.findings.finding import Evidence, Finding, Plot
from ranktop.tui.session.findings.groups import Group
from ranktop.tui.session.findings.limits import Limits
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.sizes import (
    KIB,
    MIB,
    PROCESS,
    SHORT,
    WORDS,
    lasting,
    short_size,
    sized,
    summed,
)
from ranktop.tui.session.findings.trend import Trend, trend
from ranktop.tui.session.findings.windows import is_host, settled, shares_host
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.footprints import Footprint
from ranktop.tui.session.rank_view import RankView

WARM: Final = 11
"""First step that counts: caches, workspaces and a host's malloc fill up in the first ones."""
POINTS: Final = 12
STEPS: Final = 20
"""Least number of steps read, and of steps that they span."""
SHARE: Final = 0.0005
HOST_SHARE: Final = 0.02
"""Least growth over the window, as a share of what the process holds."""
STANDING: Final = 0.7
LENGTH: Final = 1.5
"""What rests may follow longer sequences: growth counts from so many times their growth on."""
MOST: Final = 0.8
"""Share of a group's ranks that grow from which on all do: some are still short of steps."""
SAMPLES: Final = 60
"""Points of the history that are looked at."""
STILL: Final = 0.25
"""Share of a long growth's slope that the last steps must go on with."""
AGAIN: Final = 2
"""Points of the history at which as much was kept before, from which on it is known to come down again."""
MANY: Final = 256
TURNS: Final = 4
"""Looks in which each rank of a group of more than ``MANY`` comes to its turn."""
FEW_BYTES: Final = 64 * KIB
"""Growth of the footprints without which a long history is not looked through."""


@dataclass(frozen=True, slots=True)
class Growing:
    """One rank that grows."""

    view: RankView
    category: str
    trend: Trend


def growth(scene: Scene) -> Iterator[Finding]:
    """Yield a finding for each rank that grows, or one for all of a group of which most do."""
    turn = scene.memory["growth"] = scene.memory.get("growth", -1) + 1
    found = [(group, _grown(scene, group, turn)) for group in scene.groups]
    rates: dict[str, float] = {}
    for _, grown in found:
        for one in grown:
            if shares_host(one.view) and one.view.card is not None:
                rates[one.view.card.node] = rates.get(one.view.card.node, 0.0) + one.trend.slope
    for group, grown in found:
        if len(grown) > max(1, len(group.members) // 2):
            everybody = len(grown) >= MOST * len(group.members)
            yield _finding(
                group, grown, rates, scene.limits, group.ranks if everybody else tuple(one.view.rank for one in grown)
            )
        else:
            yield from (_finding(group, [one], rates, scene.limits, (one.view.rank,)) for one in grown)


def _grown(scene: Scene, group: Group, turn: int) -> list[Growing]:
    """Return the ranks that grow. Of many, after a first look at all, some are looked at in turn while none does."""
    some = group.members
    if turn and len(some) > MANY and not any(rule == "growth" for rule, _, _ in scene.standing):
        some = some[turn % TURNS :: TURNS]
    found = [one for view in some if (one := _growing(scene, view))]
    if not found or some is group.members:
        return found
    return [one for view in group.members if (one := _growing(scene, view))]


def _growing(scene: Scene, view: RankView) -> Growing | None:
    steps = settled(view, since=WARM)
    if len(steps) < 2 or (first := steps[0].rest) is None or (last := steps[-1].rest) is None:
        return None
    rise = summed(last, ALLOCATED) - summed(first, ALLOCATED)
    if rise < FEW_BYTES:
        return None
    category = max(ALLOCATED, key=lambda name: (getattr(last, name) or 0) - (getattr(first, name) or 0))
    floor = _floor(view, steps[-1], scene.limits) * (
        STANDING if scene.stands("growth", category, (view.rank,)) else 1.0
    )
    points = [(step.step, float(summed(step.rest, ALLOCATED)), step.at) for step in steps if step.rest is not None]
    found = None
    if len(points) >= POINTS and points[-1][0] - points[0][0] >= STEPS:
        found = trend(points, floor)
    if found is not None and (_is_length(steps, found) or _has_fallen(view, found)):
        return None
    if found is None:
        found = trend(_history(view), floor)
        lately = STILL * found.slope * (steps[-1].step - steps[0].step) if found is not None else 0.0
        if found is None or rise < lately:
            return None
    return Growing(view, category, found)


def _floor(view: RankView, last: Footprint, limits: Limits) -> float:
    holds = summed(last.peak, PROCESS)
    if is_host(view):
        return max(limits["growth.min_bytes_host"], HOST_SHARE * holds)
    return max(limits["growth.min_bytes"], SHARE * holds)


def _is_length(steps: Sequence[Footprint], found: Trend) -> bool:
    """Tell whether steps of ever more tokens explain what rests after them (held outputs, the last batch)."""
    third = max(1, len(steps) // 3)
    early = [step.tokens for step in steps[:third] if step.tokens]
    late = [step.tokens for step in steps[-third:] if step.tokens]
    held = [step.rest.activations for step in steps[:third] if step.rest is not None and step.rest.activations]
    if not early or not late or not held:
        return False
    longer = median(late) / median(early) - 1
    return longer > 0.02 and found.growth <= LENGTH * longer * median(held)


def _has_fallen(view: RankView, found: Trend) -> bool:
    """Tell whether as much was kept before the rise began, and let go: what is collected for an epoch, say."""
    ring = view.history
    if ring is None or ring.last("after") is None:
        return False
    rows = zip(ring.column("t"), ring.column("step"), ring.column("after"), strict=True)
    before = [after for t, step, after in rows if t < found.since and WARM <= step < found.first]
    return sum(after >= found.values[-1] - found.growth / 2 for after in before) >= AGAIN


def _history(view: RankView) -> list[tuple[int, float, float]]:
    """Return (step, bytes after it, time) over the whole history, thinned out; empty where it does not tell."""
    ring = view.history
    if ring is None or len(ring) < POINTS or ring.last("after") is None:
        return []
    times, steps, sizes = ring.column("t"), ring.column("step"), ring.column("after")
    # A process that was started again counts its steps from 1.
    begin = max((at for at in range(1, len(steps)) if steps[at] < steps[at - 1]), default=0)
    known = [at for at in range(begin, len(steps)) if steps[at] >= WARM and not math.isnan(sizes[at])]
    thin = known[:: max(1, len(known) // SAMPLES)]
    points = [(int(steps[at]), sizes[at], times[at]) for at in thin]
    enough = len(points) >= POINTS and points[-1][0] - points[0][0] >= STEPS
    return points if enough else []


def _finding(
    group: Group, grown: Sequence[Growing], rates: dict[str, float], limits: Limits, ranks: tuple[int, ...]
) -> Finding:
    worst = max(grown, key=lambda one: one.trend.slope)
    view, found = worst.view, worst.trend
    left, seconds = _time_left(view, found, rates)
    by_time = seconds is not None and seconds <= limits["growth.critical_seconds"]
    soon = left is not None and (left <= limits["growth.critical_steps"] or by_time)
    full = ""
    if left is not None and found.slope > 0:
        when = f" ({lasting(seconds)})" if seconds is not None else ""
        place = "memory" if shares_host(view) else "device"
        full = f"; at this rate {'its' if len(ranks) == 1 else 'the first'} {place} is full in {left:,} steps{when}"
    everybody = 1 < len(ranks) == len(group.members)
    whom = f"all {len(ranks)} ranks keep" if everybody else ranks_words(ranks, "keep")
    told = f"{WORDS[worst.category]}; {sized(found.growth)} since step {found.first}"
    return Finding(
        rule="growth", severity="critical" if soon else "warning", ranks=ranks, subject=worst.category,
        short=f"{SHORT[worst.category]} {short_size(found.slope)}/st"[:14] if found.slope >= 0.5 * MIB else "grows",
        sentence=f"{whom} {sized(found.slope)} more after every step ({told}){full}",
        evidence=(
            Evidence("more after each step", round(found.slope), "B"),
            Evidence(f"since step {found.first}", round(found.growth), "B"),
            Evidence("steps it is seen over", found.last - found.first, "steps"),
            Evidence("kept after the last step", round(found.values[-1]), "B"),
            Evidence("steps until the memory is full", left, "steps"),
        ),
        advice="Look for what a step adds to and nothing empties: a list of losses or outputs that keep their graph "
        "(append loss.item(), not loss), metrics, hooks, a cache of batches.",
        confidence="low" if is_host(view) and found.growth < 2 * limits["growth.min_bytes_host"] else "high",
        since=found.since, step=found.first, peers=tuple(rank for rank in group.ranks if rank not in ranks),
        plot=Plot(title="kept after each step", over="step", unit="B", at=found.at,
                  lines=((f"rank {view.rank}", found.values),)),
    )  # fmt: skip


def _time_left(view: RankView, found: Trend, rates: dict[str, float]) -> tuple[int | None, float | None]:
    """Return (steps, seconds) until the device is full; ranks that share a host's memory fill it together."""
    sample, card = view.sample, view.card
    if sample is None or card is None:
        return None, None
    peak = sample.now
    table = sample.table
    if table is not None and table.moments:
        peak = min(table.moments.values(), key=lambda memory: (memory.free or 0) + (memory.cache or 0))
    if peak.free is None:
        return None, None
    rate = max(found.slope, rates.get(card.node, 0.0) if shares_host(view) else 0.0)
    steps = max(0, int((peak.free + (peak.cache or 0)) / rate))
    times = [step.seconds for step in view.steps if step.seconds is not None]
    return steps, steps * median(times) if times else None
