"""When a job stands: how long no step may finish before that is said."""

from __future__ import annotations

from typing import Final

from ranktop.tui.session.rank_view import RankView

STALL_SECONDS: Final = 8.0
STALL_STEPS: Final = 3
"""A job stalls when no rank finished a step within the larger of these: seconds, usual steps."""


def patience(usual: float | None) -> float:
    """Return the seconds after which a step that takes ``usual`` seconds is overdue."""
    return max(STALL_SECONDS, STALL_STEPS * (usual or 0.0))


def step_age(view: RankView) -> float | None:
    """Return the seconds since a rank last finished a step, None before the first."""
    if view.sample is None or view.sample.step_age is None:
        return None
    return view.sample.step_age + (view.age or 0.0)
