"""What each knob changes, by projecting the run again with it turned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ranktop.budget.explain.changes import Change, changes
from ranktop.budget.explain.explanation import Knob
from ranktop.budget.explain.worst import known, worst
from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.run import Projection, Run

MIB = 1 << 20
"""A change of less is none."""


def knobs(run: Run, strategy: str, projection: Projection) -> tuple[Knob, ...]:
    """Return the knobs that apply and do something, what changes the peak most first."""
    rank = projection.rank
    if rank is None:
        return ()
    found = _turned(changes(run, strategy, rank.plan), projection)
    return tuple(sorted(found, key=lambda knob: (-abs(knob.peak), -abs(knob.sent), -abs(knob.host), -abs(knob.nvme))))


def _turned(tried: Iterable[Change], before: Projection) -> Iterator[Knob]:
    for change in tried:
        knob = turn(change, before)
        if knob is None:
            continue
        if change.telling or max(map(abs, (knob.peak, knob.sent, knob.host, knob.nvme))) >= MIB:
            yield knob


def turn(change: Change, before: Projection) -> Knob | None:
    """Return a knob with its effect; None when the run is then not possible."""
    here = before.rank
    if here is None:
        return None
    try:
        after = worst(change.run, change.strategy)
    except (BadInput, NoRule):
        return None
    partial = here.total is None or after.peak is None
    return Knob(
        name=change.name,
        before=change.before,
        after=change.after,
        how=change.how,
        run=change.run,
        strategy=change.strategy,
        peak=after.known - known(here.budget) if partial else (after.peak or 0) - (here.total or 0),
        sent=after.sent - before.sent,
        host=(after.budget.host.bytes or 0) - (here.budget.host.bytes or 0),
        nvme=(after.budget.nvme.bytes or 0) - (here.budget.nvme.bytes or 0),
        note=change.note,
        partial=partial,
    )
