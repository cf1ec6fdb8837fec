"""A job that stands: which ranks everyone waits for, as their positions in the collectives and their stacks tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ranktop.probes.reading import GroupPosition
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.stacks import script_call, waits
from ranktop.tui.session.rank_view import GONE, RankView
from ranktop.tui.session.stall import patience, step_age
from ranktop.wire.schema import LOOK_SECONDS

MOVED_WITHIN: Final = 3.0
"""Seconds of looks in which a rank that is on its way has enqueued something."""

START_SECONDS: Final = 55.0
"""Seconds of looks without any progress after which collectives that disagree before the first step are a hang."""

STEPS_ON: Final = 3
"""Steps that others must have finished while a rank stands: in lockstep they are at most one ahead."""

HEARD_WITHIN: Final = 1.0
"""Seconds by which what is heard of two ranks may be apart."""

NAMED: Final = 4
"""Ranks that are asked whether they go on."""

GOES_ON: Final = 2.0
"""Seconds since its last step within which a rank goes on, or two usual steps."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A job, or some of its ranks, that finish no step."""

    kind: str
    """``behind`` (others have gone on to a collective that they have not entered), ``stopped``, ``silent``, ``ended``
    (the same of ranks that can't), ``elsewhere`` (in another collective than the others), ``circle`` (each waits for
    another, in different groups), ``network`` (all in a collective that does not complete), ``apart`` (some stand, the
    others go on), ``alone`` (no rank waits for another), ``moving`` (no step, but collectives go on), ``finishing``
    (others have ended)."""
    age: float
    """Seconds since the last step of those that stand."""
    overdue: float
    """Seconds of these beyond what is patience."""
    who: tuple[RankView, ...]
    """Those that everyone waits for; empty where none is singled out."""
    waiting: tuple[RankView, ...] = ()
    group: str = ""
    """Process group in which they wait."""
    collective: int | None = None
    """Position in that group of the first collective that those have not entered."""


def of(scene: Scene) -> Stall | None:
    """Return how the job stands; None while it does not."""
    return scene.once("stall", _stall)


def _stall(scene: Scene) -> Stall | None:
    ranks = scene.snapshot.ranks
    alive = [view for view in ranks if view.sample is not None and view.state not in GONE]
    ages = {view.rank: age for view in alive if (age := step_age(view)) is not None}
    if not ages:
        return _at_the_start(alive)
    if all(view.stale and view.process != "stopped" for view in alive):
        return None
    usual = scene.snapshot.step_seconds or 0.0
    limit = patience(usual)
    age = min(ages.values())
    if age > limit:
        return _all_stand(ranks, alive, age, age - limit)
    if age > max(GOES_ON, 2 * usual):
        return None
    heard = [view for view in alive if not view.stale or view.process == "stopped"]
    apart = [view for view in heard if ages.get(view.rank, 0.0) > limit]
    if not apart or not any(_goes_on(view, apart) for view in _without(heard, apart)[:NAMED]):
        return None
    age = min(ages[view.rank] for view in apart)
    return Stall("apart", age, age - limit, tuple(apart))


def _goes_on(view: RankView, apart: Sequence[RankView]) -> bool:
    """Tell whether a rank had gone on for steps when those that stand were last heard.

    A job that goes on after a stand is heard of rank by rank; until all are, some seem to stand still.
    """
    if view.history is None:
        return False
    heard = min((one.history.last("t") or 0.0) for one in apart if one.history is not None)
    began = max(heard - (one.sample.step_age or 0.0) for one in apart if one.sample is not None)
    points = list(zip(view.history.column("t"), view.history.column("step"), strict=True))
    before = [step for t, step in points if t <= began + HEARD_WITHIN]
    since = [step for t, step in points if t <= heard - HEARD_WITHIN]
    return bool(before and since) and since[-1] - before[-1] >= STEPS_ON


def _at_the_start(alive: Sequence[RankView]) -> Stall | None:
    """Before the first step everything takes long; only collectives that disagree for a minute are told."""
    still = len(alive) > 1 and all(
        len(view.looks) * LOOK_SECONDS >= START_SECONDS and view.looks[0].positions == view.looks[-1].positions
        for view in alive
    )
    return _by_positions(alive, START_SECONDS, START_SECONDS) if still else None


def _all_stand(ranks: Sequence[RankView], alive: Sequence[RankView], age: float, overdue: float) -> Stall | None:
    stopped = tuple(view for view in alive if view.process == "stopped")
    if stopped:
        return Stall("stopped", age, overdue, stopped, _without(alive, stopped))
    speaking = [view for view in alive if not view.stale]
    left = [view for view in speaking if _has_left(view)]
    if speaking and len(left) == len(speaking):
        return Stall("finishing", age, overdue, tuple(speaking))
    members = [view for view in ranks if view.sample is not None]
    found = _by_positions(members, age, overdue)
    if found is not None:
        if any(_moved_on(view, found.group) for view in speaking):
            # They have just gone on, and what is heard of the others is from before.
            return Stall("moving", age, overdue, tuple(speaking))
        return _qualified(found, speaking) if found.kind == "behind" else found
    if any(view.state == "ended" for view in ranks):
        return Stall("finishing", age, overdue, tuple(speaking))
    silent = _without(alive, speaking)
    if silent:
        return Stall("silent", age, overdue, silent, tuple(speaking))
    if any(_moves(view) for view in speaking):
        return Stall("moving", age, overdue, tuple(speaking))
    return _by_stacks(speaking, age, overdue)


def _without(views: Sequence[RankView], others: Sequence[RankView]) -> tuple[RankView, ...]:
    known = {view.rank for view in others}
    return tuple(view for view in views if view.rank not in known)


def _has_left(view: RankView) -> bool:
    """Tell whether the rank has closed its process groups: its training is over."""
    return bool(view.card and view.card.backend and view.sample and not view.sample.collectives.groups)


def _moves(view: RankView) -> bool:
    """Tell whether a rank has enqueued collectives within the last seconds."""
    count = int(MOVED_WITHIN / LOOK_SECONDS)
    if len(view.looks) <= count:
        return False
    return view.looks[-1].positions != view.looks[-1 - count].positions


def _moved_on(view: RankView, group: str) -> bool:
    """Tell whether a rank has come further in a group (empty: in any) than it was a few seconds before its sample."""
    count = int(MOVED_WITHIN / LOOK_SECONDS)
    if len(view.looks) < count:
        return False
    before = view.looks[-count].positions
    return any(
        index < len(before) and before[index] is not None and position.enqueued not in (None, before[index])
        for index, position in enumerate(positions_of(view))
        if group in ("", position.name)
    )


def _qualified(found: Stall, speaking: Sequence[RankView]) -> Stall:
    """Say of those that are waited for why they can't come, where that is known."""
    heard = {view.rank for view in speaking}
    if any(view.state in GONE for view in found.who):
        return _as(found, "ended", tuple(view for view in found.who if view.state in GONE))
    if all(view.rank not in heard for view in found.who):
        return _as(found, "silent", found.who)
    if all(_moves(view) for view in found.who if view.rank in heard):
        return _as(found, "moving", found.who)
    # A few that wait for many: those may all be in the collective before, in which the few should be as well.
    mismatched = len(found.who) > len(found.waiting) and all(
        view.stack is not None and waits(view.stack.calls) for view in found.who
    )
    return Stall("elsewhere", found.age, found.overdue, found.waiting, found.who) if mismatched else found


def _as(found: Stall, kind: str, who: tuple[RankView, ...], waiting: tuple[RankView, ...] | None = None) -> Stall:
    kept = found.waiting if waiting is None else waiting
    return Stall(kind, found.age, found.overdue, who, kept, found.group, found.collective)


# -- positions -----------------------------------------------------------------------------------------------------


def _by_positions(members: Sequence[RankView], age: float, overdue: float) -> Stall | None:
    """Return the ranks that are behind in a group and wait for nobody themselves; None where all have come equally far.

    A rank may be behind in one group because it waits in another.
    """
    behind: dict[str, list[RankView]] = {}
    ahead: dict[str, list[RankView]] = {}
    lowest: dict[str, int] = {}
    for name, positions in _groups(members).items():
        low = min(position for _, position in positions)
        if all(position == low for _, position in positions):
            continue
        lowest[name] = low
        behind[name] = [view for view, position in positions if position == low]
        ahead[name] = [view for view, position in positions if position > low]
    blocked = {view.rank for views in ahead.values() for view in views}
    roots = {
        name: [view for view in views if view.rank not in blocked or view.state in GONE]
        for name, views in behind.items()
    }
    if not behind:
        return None
    if not any(roots.values()):
        # They wait for each other in a circle: the same collectives, in different orders.
        left_out = _same_minority(behind, ahead)
        if left_out is not None:
            name, who = left_out
            return Stall("elsewhere", age, overdue, who, _without(members, who), name, lowest[name] + 1)
        circle = {view.rank: view for views in behind.values() for view in views}
        around = tuple(circle[rank] for rank in sorted(circle))
        return Stall("circle", age, overdue, around, _without(members, around))
    name = max(roots, key=lambda group: (bool(roots[group]), len(ahead[group])))
    waited = {view.rank: view for views in roots.values() for view in views}
    waiting = tuple({view.rank: view for views in ahead.values() for view in views if view.state not in GONE}.values())
    if not waiting:
        return None
    return Stall(
        "behind", age, overdue, tuple(waited[rank] for rank in sorted(waited)), waiting, name, lowest[name] + 1
    )


def _same_minority(
    behind: Mapping[str, list[RankView]], ahead: Mapping[str, list[RankView]]
) -> tuple[str, tuple[RankView, ...]] | None:
    """Return the few ranks that stand against the many in every group, and the group in which they are behind.

    They have left a collective out and wait in the next one, of another group.
    """
    found: set[tuple[int, ...]] = set()
    left_out: list[tuple[str, tuple[RankView, ...]]] = []
    for name, late in behind.items():
        few = late if len(late) < len(ahead[name]) else ahead[name]
        if len(late) == len(ahead[name]):
            return None
        found.add(tuple(sorted(view.rank for view in few)))
        if few is late:
            left_out.append((name, tuple(late)))
    return left_out[0] if len(found) == 1 and left_out else None


def _groups(members: Sequence[RankView]) -> Mapping[str, list[tuple[RankView, int]]]:
    found: dict[tuple[str, int | None], list[tuple[RankView, int]]] = {}
    for view in members:
        for group in positions_of(view):
            if group.enqueued is not None:
                found.setdefault((group.name, group.size), []).append((view, group.enqueued))
    return {
        name: positions
        for (name, size), positions in found.items()
        if len(positions) > 1 and (not size or len(positions) <= size)
    }


def positions_of(view: RankView) -> tuple[GroupPosition, ...]:
    """Return the positions of a rank in its process groups."""
    return view.sample.collectives.groups if view.sample is not None else ()


# -- stacks --------------------------------------------------------------------------------------------------------


def _by_stacks(speaking: Sequence[RankView], age: float, overdue: float) -> Stall:
    """Tell ranks apart that have all come equally far in the collectives."""
    inside = {view.rank: waits(view.stack.calls) if view.stack is not None else None for view in speaking}
    out = tuple(view for view in speaking if inside[view.rank] is False and not _in_flight(view))
    rest = _without(speaking, out)
    if out and rest and any(inside[view.rank] for view in rest):
        return Stall("behind", age, overdue, out, rest)
    if len(out) == len(speaking):
        return Stall("alone", age, overdue, out)
    few = _minority({view.rank: _place(view) for view in speaking}, speaking)
    if any(inside.values()) or any(_in_flight(view) for view in speaking):
        if few:
            return Stall("elsewhere", age, overdue, few, _without(speaking, few))
        group, number = _in_one_collective(speaking)
        return Stall("network", age, overdue, (), tuple(speaking), group, number)
    few = few or _minority({view.rank: view.sample.phase for view in speaking if view.sample is not None}, speaking)
    return Stall("alone", age, overdue, few or tuple(speaking), _without(speaking, few) if few else ())


def _place(view: RankView) -> object:
    call = script_call(view, view.stack.calls) if view.stack is not None else None
    return None if call is None else (call.file, call.line, call.function)


def _minority(kinds: Mapping[int, object], views: Sequence[RankView]) -> tuple[RankView, ...]:
    """Return the ranks of which less than half are as they are, while the others are all alike."""
    if not kinds or None in kinds.values():
        return ()
    values = list(kinds.values())
    usual = max(set(values), key=values.count)
    if values.count(usual) * 2 <= len(values):
        return ()
    return tuple(view for view in views if kinds.get(view.rank) != usual)


def _in_flight(view: RankView) -> bool:
    """Tell whether a collective that the rank has enqueued is not completed; gloo's word for it may be out of date."""
    if view.card is None or "nccl" not in view.card.backend:
        return False
    return any(
        group.enqueued is not None and group.completed is not None and group.completed < group.enqueued
        for group in positions_of(view)
    )


def _in_one_collective(views: Sequence[RankView]) -> tuple[str, int | None]:
    for view in views:
        for group in positions_of(view):
            if group.completed is not None and group.enqueued is not None and group.completed < group.enqueued:
                return group.name, group.completed + 1
    return "", None
