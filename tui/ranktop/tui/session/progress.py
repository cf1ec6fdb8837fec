"""How the training goes by the script's own word: loss and learning rate, tokens a second, what is left of it.

The job's loss is that of the lowest rank that tells one, at the step it was told with: one number of one batch, or of
all where the trainer averages it itself. Ranks are not averaged here: their samples are of different steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, isnan
from statistics import median
from typing import TYPE_CHECKING, Final

from ranktop.tui.session.rank_view import GONE, SILENT_INTERVALS, RankView
from ranktop.tui.session.rings import Ring
from ranktop.tui.session.stall import STALL_SECONDS, patience, step_age
from ranktop.wire.progress import Progress, loss_step

if TYPE_CHECKING:
    from ranktop.tui.session.state import Snapshot

RATE_STEPS: Final = 8
"""Steps over which tokens a second are averaged that a rank's inputs tell."""

MANY: Final = 256
"""Ranks beyond which the job's rate is not worked out for every frame."""

PACE_SECONDS: Final = 900.0
"""Of the past by which the time that is left is reckoned: validation and saving are part of it."""

PACE_STEPS: Final = 3
"""Steps in it, at least."""

PACE_SHORT: Final = 30.0
"""Seconds below which a pace may be an accident: samples that waited for another hub come all at once."""

RATE_AGE: Final = 30.0
"""Seconds for which a told rate stands while it is not known how often losses come; three of these times else."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second."""

    value: float | None = None
    source: str = ""
    """``told`` by the script, ``inputs`` (what the model's inputs held), ``batch`` (micro-batch x sequence x
    accumulation by step time); of a job the weakest of its ranks'."""
    ranks: int = 0
    """Data-parallel ranks that it is the sum of."""
    reason: str = ""
    """Why there is none."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one rank has last told. Steps are the trainer's count; ages in seconds."""

    rank: int
    progress: Progress
    loss: float | None = None
    odd: str = ""
    """``nan``, ``inf`` or ``-inf`` where the loss is no finite number."""
    loss_step: int | None = None
    loss_age: float | None = None
    stale: bool = False
    """The loss is older than it should be."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What is shown of the job."""

    told: Told
    """By the lowest rank that tells a loss, else by the lowest that tells anything; one that is alive goes first."""
    rate: Rate = field(default_factory=Rate)
    remaining: float | None = None
    """Seconds that are left, as the last quarter of an hour went; None where that can't be told."""


def age_of(progress: Progress, name: str, age: float | None) -> float:
    """Return the seconds since a field was told; ``age``: of the sample."""
    return progress.ages.get(name, progress.age) + (age or 0.0)


def told(view: RankView) -> Told | None:
    """Return what a rank has told; None for nothing."""
    progress = view.sample.progress if view.sample is not None else None
    if progress is None or view.sample is None:
        return None
    known = progress.loss is not None or "loss" in progress.not_finite
    age = age_of(progress, "loss", view.age) if known else None
    usual = max(view.sample.interval, progress.every or 0.0)
    return Told(
        rank=view.rank,
        progress=progress,
        loss=progress.loss,
        odd=progress.not_finite.get("loss", ""),
        loss_step=loss_step(progress),
        loss_age=age,
        stale=view.stale or view.state in GONE or (age is not None and age > SILENT_INTERVALS * usual),
    )


def of_job(snapshot: Snapshot) -> JobProgress | None:
    """Return what is shown of the job; None while no rank tells anything."""
    known: list[tuple[bool, bool, int, RankView]] = []
    for view in snapshot.ranks:
        progress = view.sample.progress if view.sample is not None else None
        if progress is not None:
            without = progress.loss is None and "loss" not in progress.not_finite
            known.append((without, view.stale or view.state in GONE, view.rank, view))
    if not known:
        return None
    view = min(known, key=lambda one: one[:3])[3]
    one = told(view)
    assert one is not None
    return JobProgress(one, rate_of_job(snapshot), _remaining(snapshot, view))


# -- tokens a second -----------------------------------------------------------------------------------------------


def rate_of(view: RankView) -> Rate:
    """Return the tokens a second of one rank: told, else by its inputs, else by its batch."""
    sample, plan = view.sample, view.card.plan if view.card is not None else None
    if sample is None or view.stale or view.state in GONE:
        return Rate(reason="the rank says nothing now")
    age = step_age(view)
    # Patience is no less than that; the usual step of every rank is a thing to work out only where it matters.
    if age is not None and age > STALL_SECONDS and age > patience(_usual(view)):
        return Rate(reason=f"no step has finished for {age:.0f} s")
    progress = sample.progress
    if progress is not None and progress.tokens_per_second is not None:
        limit = RATE_AGE if progress.every is None else SILENT_INTERVALS * max(sample.interval, progress.every)
        if age_of(progress, "tokens_per_second", view.age) <= limit:
            return Rate(progress.tokens_per_second, "told", 1)
    if plan is None or not plan.batch.sequence_length:
        return Rate(reason="its inputs hold no sequence" if plan is not None else "no model has been seen yet")
    steps = [step for step in view.steps[-RATE_STEPS:] if step.seconds]
    counted = [step for step in steps if step.tokens is not None]
    if counted:
        seconds = sum(step.seconds or 0.0 for step in counted)
        return Rate(sum(step.tokens or 0 for step in counted) / seconds, "inputs", 1)
    batch, usual = plan.batch, _usual(view)
    if usual is None or not batch.micro_batch or not batch.sequence_length:
        return Rate(reason="no step has been timed yet" if not steps else "the batch is not known")
    return Rate(batch.micro_batch * batch.sequence_length * plan.micro_batches / usual, "batch", 1)


def _usual(view: RankView) -> float | None:
    """Return the seconds of a usual step of a rank."""
    known = [step.seconds for step in view.steps[-RATE_STEPS:] if step.seconds]
    return median(known) if known else None


_WEAKER: Final = ("told", "inputs", "batch")


def rate_of_job(snapshot: Snapshot) -> Rate:
    """Return the sum over the data-parallel ranks; those that share a batch (tensor, pipeline parallel) count once.

    Of a job of many ranks it is worked out once a second.
    """
    if len(snapshot.ranks) <= MANY:
        return _rate_of_job(snapshot)
    turn = floor(snapshot.now)
    kept: tuple[int, Rate] | None = snapshot.memory.get("rate")
    if kept is None or kept[0] != turn:
        kept = snapshot.memory["rate"] = (turn, _rate_of_job(snapshot))
    return kept[1]


def _rate_of_job(snapshot: Snapshot) -> Rate:
    if snapshot.state != "running":
        return Rate(reason=f"the job is not running: {snapshot.state}")
    found: dict[object, list[Rate]] = {}
    expected, context = 1, 1
    for view in snapshot.ranks:
        plan = view.card.plan if view.card is not None else None
        if plan is None:
            found.setdefault(("rank", view.rank), []).append(rate_of(view))
            continue
        layout = plan.layout
        expected, context = max(expected, layout.data), max(context, layout.context)
        found.setdefault((layout.replicate_rank, layout.shard_rank), []).append(rate_of(view))
    if context > 1:
        return Rate(reason="with context parallel the ranks' tokens overlap in ways that are not known")
    if len(found) != expected:
        return Rate(reason=f"the layout tells of {expected} data-parallel ranks, {len(found)} were seen")
    chosen = [_best(rates) for rates in found.values()]
    lacking = [one for one in chosen if one.value is None]
    if lacking:
        return Rate(reason=f"{len(lacking)} of {expected} data-parallel ranks tell no tokens: {lacking[0].reason}")
    source = max((one.source for one in chosen), key=_WEAKER.index)
    return Rate(sum(one.value or 0.0 for one in chosen), source, expected)


def _best(rates: Sequence[Rate]) -> Rate:
    """Return the rate of ranks that work on one batch: by the strongest word that any of them has."""
    known = [one for one in rates if one.value is not None]
    if not known:
        return rates[0]
    strongest = min(known, key=lambda one: _WEAKER.index(one.source))
    alike = [one.value or 0.0 for one in known if one.source == strongest.source]
    return Rate(median(alike), strongest.source, 1)


# -- what is left ----------------------------------------------------------------------------------------------------


def _remaining(snapshot: Snapshot, view: RankView) -> float | None:
    progress = view.sample.progress if view.sample is not None else None
    if progress is None or progress.step is None or progress.total_steps is None or snapshot.state != "running":
        return None
    if view.stale or view.state in GONE:
        return None
    left = progress.total_steps - progress.step
    known = pace(view.history, snapshot.now, snapshot.step_seconds) if view.history is not None else None
    each = known if known is not None else snapshot.step_seconds
    if each is None or left < 0:
        return None
    since = progress.ages.get("step", progress.age) + (view.age or 0.0)
    return max(0.0, left * each - (since if since < each else 0.0))


def pace(ring: Ring, now: float, usual: float | None) -> float | None:
    """Return the seconds from one step to the next, with all that lies between; None for too few steps.

    ``usual``: the time of a step itself, below which no pace of a few seconds is believed.
    """
    first: tuple[float, float] | None = None
    last: tuple[float, float] | None = None
    for t, step in zip(ring.column("t"), ring.column("step"), strict=True):
        if t < now - PACE_SECONDS or isnan(step):
            continue
        if first is None or step < first[1] or (last is not None and step < last[1]) or step <= PACE_STEPS:
            first = (t, step)
        last = (t, step)
    if first is None or last is None or last[1] - first[1] < PACE_STEPS:
        return None
    each = (last[0] - first[0]) / (last[1] - first[1])
    return max(each, usual or 0.0) if last[0] - first[0] < PACE_SHORT else each


# -- the past --------------------------------------------------------------------------------------------------------


def losses(ring: Ring | None) -> tuple[list[int], list[float]]:
    """Return (steps, losses) that a rank has told, each once and in order; of a step told twice the last."""
    return _series(ring, "loss")


def learning_rates(ring: Ring | None) -> list[float]:
    """Return the learning rates at those steps."""
    return _series(ring, "learning_rate")[1]


def _series(ring: Ring | None, name: str) -> tuple[list[int], list[float]]:
    if ring is None or not len(ring) or ring.last("loss_step") is None:
        return [], []
    found: dict[int, float] = {}
    for step, value in zip(ring.column("loss_step"), ring.column(name), strict=True):
        if not isnan(step) and not isnan(value):
            found[int(step)] = value
    steps = sorted(found)
    return steps, [found[step] for step in steps]
