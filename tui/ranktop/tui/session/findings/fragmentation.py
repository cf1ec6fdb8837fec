"""Memory that the CUDA allocator holds and cannot give out: split blocks, and a cache that only grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ranktop.tui.session.expected import ALLOCATED
from ranktop.tui.session.findings.finding import Evidence, Finding, Plot
from ranktop.tui.session.findings.limits import Limits
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.sizes import GIB, short_size, sized, summed
from ranktop.tui.session.findings.trend import trend
from ranktop.tui.session.findings.windows import is_host, settled
from ranktop.tui.session.footprints import Footprint
from ranktop.tui.session.rank_view import RankView

MUCH_UNUSED: Final = 0.2
"""Share of the device that must be reserved and unused without retries, on a device that is nearly full."""
SPLIT: Final = 0.4
"""Share of what is unused that lies in split blocks."""
FULL: Final = 0.05
"""Share of the device below which what is free is hardly anything."""
CACHE_GROWTH: Final = 0.05
"""Share of the device by which a cache must have grown to be told."""
STANDING: Final = 0.8
RECENT: Final = 60.0
"""Seconds in which retries count."""

EXPANDABLE: Final = (
    "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that freed memory joins up again; with batches of many "
    "lengths, pad them to a few."
)
REUSED: Final = (
    "Segments are expandable already: pad batches to a few lengths, so that blocks are reused, or call "
    "torch.cuda.empty_cache() after an uncommon step."
)


def fragmentation(scene: Scene) -> Iterator[Finding]:
    """Yield one finding for each rank whose allocator holds what it cannot use."""
    for group in scene.groups:
        if is_host(group.members[0]):
            continue
        for view in group.members:
            if not _much_unused(view, scene.limits):
                continue
            found = _fragmented(scene, view) or _cache_growth(view)
            if found is not None:
                yield found


def _much_unused(view: RankView, limits: Limits) -> bool:
    """Tell by the last footprint alone whether a close look may find something."""
    total = view.card.device.total if view.card is not None else None
    unused = view.footprints[-1].peak.cache if view.footprints else None
    least = min(limits["fragmentation.min_share"], MUCH_UNUSED, CACHE_GROWTH)
    return bool(total and unused) and (unused or 0) >= STANDING * least * (total or 0)


def _retries(steps: list[Footprint], now: float) -> int:
    """Return how many allocations of the last minute had to flush the cache."""
    recent = [step for step in steps if step.retries is not None and now - step.at <= RECENT]
    if len(recent) < 2:
        return 0
    return max(0, (recent[-1].retries or 0) - (recent[0].retries or 0))


def _fragmented(scene: Scene, view: RankView) -> Finding | None:
    steps, card = settled(view), view.card
    total = card.device.total if card is not None else None
    if not steps or not total:
        return None
    last = steps[-1]
    unused, split, free = last.peak.cache, last.inactive_split, last.peak.free
    if unused is None or split is None:
        return None
    share = STANDING if scene.stands("fragmentation", "split", (view.rank,)) else 1.0
    retries = _retries(steps, scene.now)
    pressed = retries > 0 and unused >= share * scene.limits["fragmentation.min_share"] * total
    full = unused >= share * MUCH_UNUSED * total and free is not None and free <= FULL * total
    if not (pressed or full) or split < SPLIT * unused:
        return None
    return _split(view, unused, min(split, unused), retries)


def _split(view: RankView, unused: int, split: int, retries: int) -> Finding:
    counters = view.allocator
    expandable = counters is not None and counters.expandable
    largest = counters.largest_free if counters is not None else None
    often = "retry" if retries == 1 else "retries"
    tried = f"; {retries} {often} in the last minute" if retries else ""
    return Finding(
        rule="fragmentation", severity="warning", ranks=(view.rank,), subject="split",
        short=f"frag {short_size(unused)}"[:14],
        sentence=f"rank {view.rank}: {sized(unused)} reserved but unused at the peak, {sized(split)} of it in split "
        f"blocks{tried}",
        evidence=(
            Evidence("reserved and unused at the peak", unused, "B"),
            Evidence("in inactive split blocks", split, "B"),
            Evidence("retries after a flush of the cache", retries),
            Evidence("largest free block", largest, "B"),
            Evidence("expandable segments", "yes" if expandable else "no"),
        ),
        advice=REUSED if expandable else EXPANDABLE,
        confidence="high" if retries else "medium",
    )  # fmt: skip


def _cache_growth(view: RankView) -> Finding | None:
    """Tell of a cache that grows though what is allocated does not: lengths that are new, not a leak."""
    steps, card = settled(view), view.card
    total = card.device.total if card is not None else None
    if not total or len(steps) < 12 or steps[0].reserved is None or steps[-1].reserved is None:
        return None
    if steps[-1].reserved - steps[0].reserved < CACHE_GROWTH * total:
        return None
    points = [(step.step, float(step.reserved), step.at) for step in steps if step.reserved is not None]
    found = trend(points, max(float(GIB), CACHE_GROWTH * total))
    held = summed(steps[-1].peak, ALLOCATED) - summed(steps[0].peak, ALLOCATED)
    if found is None or held > 0.5 * found.growth:
        return None
    return Finding(
        rule="fragmentation", severity="info", ranks=(view.rank,), subject="cache",
        short=f"cache {short_size(found.growth)}"[:14],
        sentence=f"rank {view.rank}: the allocator reserved {sized(found.growth)} more since step {found.first}, "
        "while its tensors did not grow",
        evidence=(
            Evidence("reserved more", round(found.growth), "B"),
            Evidence("reserved now", round(found.values[-1]), "B"),
        ),
        advice=EXPANDABLE, confidence="medium", since=found.since, step=found.first,
        plot=Plot(title="reserved", over="step", unit="B", at=found.at, lines=((f"rank {view.rank}", found.values),)),
    )  # fmt: skip
