"""What is told of loss, learning rate and tokens a second, as ``ranktop status --json`` has it (``docs/status.md``)."""

from __future__ import annotations

from typing import Any, Final

from ranktop.tui.session.progress import JobProgress, Rate, Told, age_of, of_job, rate_of, rate_of_job, told
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.wire.codec import clean

NOT_TOLD: Final = "neither the script nor a trainer has told it"


def job_progress_json(snapshot: Snapshot) -> dict[str, Any] | None:
    """Return what is shown of the job, and of which rank it is; None while nothing is known of it."""
    job = of_job(snapshot)
    if job is None:
        return None
    return {
        "rank": job.told.rank,
        **_told(job.told, snapshot.rank(job.told.rank)),
        "remaining": job.remaining,
        "reasons": _reasons(job.told, job),
    }


def rank_progress_json(view: RankView) -> dict[str, Any] | None:
    """Return what one rank was told; None where it was told nothing."""
    one = told(view)
    return {**_told(one, view), "reasons": _reasons(one)} if one is not None else None


def job_rate_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return the tokens a second of the whole job."""
    return _rate(rate_of_job(snapshot))


def rank_rate_json(view: RankView) -> dict[str, Any]:
    """Return the tokens a second of one rank."""
    return _rate(rate_of(view))


def _told(one: Told, view: RankView | None) -> dict[str, Any]:
    progress, age = one.progress, view.age if view is not None else None
    return {
        "source": clean(progress.source),
        "step": progress.step,
        "total_steps": progress.total_steps,
        "epoch": progress.epoch,
        "loss": one.loss,
        "loss_step": one.loss_step,
        "loss_age": one.loss_age,
        "loss_stale": one.stale if one.loss is not None or one.odd else None,
        "learning_rate": progress.learning_rate,
        "gradient_norm": progress.gradient_norm,
        "values": {
            clean(name): {
                "value": value,
                "step": progress.steps.get(name, progress.step),
                "age": age_of(progress, name, age),
            }
            for name, value in progress.values.items()
        },
        "not_finite": {clean(name): clean(what) for name, what in progress.not_finite.items()},
        "losses_not_finite": progress.bad_losses,
        "not_finite_since_step": progress.bad_since,
        "age": progress.age + (age or 0.0),
    }


def _rate(rate: Rate) -> dict[str, Any]:
    return {"tokens_per_second": rate.value, "from": rate.source or None, "reason": clean(rate.reason)}


def _reasons(one: Told, job: JobProgress | None = None) -> dict[str, str]:
    progress = one.progress
    found = {
        name: f"it is {progress.not_finite[name]}" if name in progress.not_finite else NOT_TOLD
        for name in ("step", "total_steps", "epoch", "loss", "learning_rate", "gradient_norm")
        if getattr(progress, name) is None
    }
    if job is not None and job.remaining is None:
        known = progress.step is not None and progress.total_steps is not None
        found["remaining"] = "no pace is known, or the job is not running" if known else NOT_TOLD
    return found
