"""Gradients that wait whole for their reduction while micro-batches are accumulated, though they could be shards."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from ranktop.tui.session.expected import ALLOCATED
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.limits import Limits
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.sizes import MIB, at_moment, sized, summed
from ranktop.tui.session.findings.windows import PERSISTENT, WINDOW, settled
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.footprints import Footprint
from ranktop.tui.session.rank_view import RankView

TIMES: Final = 1.5
"""Gradients are whole from so many times their shards on."""
FLOOR: Final = 4 * MIB
LARGE_OF_TENSORS: Final = 0.1
"""Share of all tensors at the peak from which on they are worth a warning whatever the device has."""


ASKED: Final = 64
"""Ranks of a group that are looked at."""


def no_sync(scene: Scene) -> Iterator[Finding]:
    """Yield one finding for each group whose ranks keep unsharded gradients."""
    for group in scene.groups:
        # A habit of the script, so that in a large job a part of the ranks tells.
        asked = group.members[:ASKED]
        found = {view.rank: sizes for view in asked if (sizes := _unsharded(view)) is not None}
        if found:
            most = max(found, key=lambda rank: found[rank][0] - found[rank][1])
            view = scene.snapshot.rank(most)
            if view is not None:
                ranks = group.ranks if 2 * len(found) >= len(asked) else tuple(found)
                yield _finding(view, ranks, scene.limits, *found[most])


def _unsharded(view: RankView) -> tuple[float, float, str] | None:
    """Return (bytes of whole gradients, bytes of their shards, moment); None where none wait."""
    plan = view.card.plan if view.card is not None else None
    if plan is None or plan.fsdp is None or plan.layout.shard < 2:
        return None
    steps = settled(view, WINDOW)
    if len(steps) < PERSISTENT - 2:
        return None
    each = [one for step in steps if (one := _of_step(step)) is not None]
    if len(each) < max(2, len(steps) - 1):
        return None
    whole, shards = median(one for one, _, _ in each), median(one for _, one, _ in each)
    return (whole, shards, each[-1][2]) if whole - shards >= FLOOR else None


def _of_step(step: Footprint) -> tuple[int, int, str] | None:
    sizes = {
        moment: memory.gradients
        for moment in ("forward_end", "backward_start", "backward_end")
        if (memory := step.moments.get(moment)) is not None and memory.gradients
    }
    ends = (step.moments.get("step_end"), step.moments.get("backward_end"))
    shards = next((memory.gradients for memory in ends if memory is not None and memory.gradients), None)
    if not sizes or shards is None:
        return None
    moment = max(sizes, key=lambda name: sizes[name])
    return (sizes[moment], shards, moment) if sizes[moment] >= TIMES * shards else None


def _finding(
    view: RankView, ranks: tuple[int, ...], limits: Limits, whole: float, shards: float, moment: str
) -> Finding:
    card, steps = view.card, settled(view, WINDOW)
    total = card.device.total if card is not None else None
    extra, held = whole - shards, summed(steps[-1].peak, ALLOCATED)
    large = extra >= LARGE_OF_TENSORS * held or (total is not None and extra >= limits["no_sync.warning_share"] * total)
    plan = card.plan if card is not None else None
    count = plan.batch.accumulation if plan is not None else None
    call = "set_requires_gradient_sync(False)" if plan is not None and plan.strategy == "fsdp2" else "no_sync"
    return Finding(
        rule="no_sync", severity="warning" if large else "info", ranks=ranks, subject="gradients",
        short=f"grad x{whole / shards:.0f}" if shards else "whole grads",
        sentence=f"{call} keeps whole gradients on {ranks_words(ranks)} while accumulating: {sized(whole)} "
        f"instead of {sized(shards)} of shards",
        evidence=(
            Evidence(f"gradients {at_moment(moment)}", round(whole), "B"),
            Evidence("gradients once reduced", round(shards), "B"),
            Evidence("micro-batches in a step", count),
            Evidence("all tensors at the peak", held, "B"),
        ),
        advice="Let every micro-batch reduce its gradients (without no_sync; Accelerate: sync_each_batch=True): "
        f"more to send, {sized(extra)} less to hold on each rank.",
        confidence="high", since=steps[0].at, step=steps[0].step,
    )  # fmt: skip
