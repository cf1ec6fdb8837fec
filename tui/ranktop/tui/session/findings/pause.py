"""A job that finishes no step for a good reason: it validates, saves a checkpoint, compiles, or comes to its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.stacks import occupation, said_occupation, script_call, where
from ranktop.tui.session.findings.waiting import Stall
from ranktop.tui.session.findings.waiting import of as stall_of
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.view.text import duration

USUAL: Final = 2
"""Earlier stands as long as this one from which it belongs to the job."""

_SHORT: Final = {
    "compiling": "compiling", "saving a checkpoint": "saving", "loading a checkpoint": "loading",
    "validating": "validating",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pause:
    """What those that are waited for are busy with."""

    what: str
    """As of ``occupation``; ``moving`` or ``finishing`` as of ``Stall``; ``usual``: it does so now and then."""
    ranks: tuple[RankView, ...]


def of(scene: Scene) -> Pause | None:
    """Return the good reason for which the job stands; None when it goes on or has none."""
    return scene.once("pause", _pause)


def _pause(scene: Scene) -> Pause | None:
    stall = stall_of(scene)
    if stall is None or stall.kind in ("stopped", "ended"):
        return None
    if stall.kind == "silent":
        # To write a large object may hold Python's lock for long; what the script said before still holds then.
        last = {said_occupation(view) for view in stall.who}
        return Pause(last.pop(), stall.who) if len(last) == 1 and "" not in last else None
    busy: dict[str, list[RankView]] = {}
    for view in stall.who or stall.waiting:
        # While its collectives go on, a rank that validates is not stuck in one of them, whatever its stack shows.
        moving = said_occupation(view) if stall.kind == "moving" else ""
        what = "" if view.stale else moving or occupation(view)
        if what:
            busy.setdefault(what, []).append(view)
    if busy:
        what = max(busy, key=lambda one: (len(busy[one]), one))
        return Pause(what, tuple(busy[what]))
    if stall.kind in ("moving", "finishing"):
        return Pause(stall.kind, stall.who)
    return Pause("usual", stall.who) if _happens_now_and_then(scene, stall) else None


def _happens_now_and_then(scene: Scene, stall: Stall) -> bool:
    """Tell whether the job has stood as long before, and gone on: at the end of each epoch, say."""
    history = next((view.history for view in scene.snapshot.ranks if view.end is None and view.history), None)
    if history is None or stall.kind == "apart":
        return False
    times, steps = history.column("t"), history.column("step")
    began, longer = 0, 0
    for index in range(1, len(steps)):
        if steps[index] != steps[began]:
            longer += steps[began] > 0 and times[index] - times[began] >= stall.age
            began = index
    return longer >= USUAL


def pause(scene: Scene) -> Iterable[Finding]:
    """Find that a job stands for a good reason."""
    stall, found = stall_of(scene), of(scene)
    if stall is None or found is None:
        return
    ranks = tuple(sorted(view.rank for view in found.ranks))
    everyone = len(ranks) == sum(view.sample is not None and view.end is None for view in scene.snapshot.ranks)
    yield Finding(
        rule="pause",
        severity="warning" if stall.age > scene.limits["pause.warning_seconds"] and found.what in _SHORT else "info",
        ranks=ranks,
        sentence=_sentence(scene, stall, found, ranks, everyone=everyone),
        short=_SHORT.get(found.what, ""),
        subject=found.what,
        evidence=_evidence(found.ranks),
        advice=_advice(found.what),
        confidence="high" if found.what in _SHORT else "medium",
        since=scene.now - stall.age,
        step=scene.snapshot.step,
    )


def _sentence(scene: Scene, stall: Stall, found: Pause, ranks: tuple[int, ...], *, everyone: bool) -> str:
    age = duration(stall.age)
    if found.what == "moving":
        return f"no step has finished for {age}, but collectives go on"
    if found.what == "usual":
        return f"no step has finished for {age}, as now and then before"
    if found.what == "finishing":
        ended = sum(view.state == "ended" for view in scene.snapshot.ranks)
        others = (
            f"{ended} of {len(scene.snapshot.ranks)} ranks have ended" if ended else "the process groups are closed"
        )
        return f"the training is over: no step for {age}, {others}"
    who = f"{'all ' if everyone and len(ranks) > 1 else ''}{ranks_words(ranks)}"
    if everyone and len(ranks) > 1:
        who = f"all {len(ranks)} ranks"
    verb = "has been" if len(ranks) == 1 else "have been"
    rest = "" if everyone or stall.kind == "apart" else "; the others wait"
    return f"{who} {verb} {found.what} for {age}{rest}"


def _evidence(views: Sequence[RankView]) -> tuple[Evidence, ...]:
    for view in views:
        call = script_call(view, view.stack.calls) if view.stack is not None else None
        if call is not None:
            return (Evidence(f"rank {view.rank} is in", where(call)),)
    return tuple(Evidence(f"phase of rank {view.rank}", view.sample.phase) for view in views[:1] if view.sample)


def _advice(what: str) -> str:
    return {
        "saving a checkpoint": "Nothing is wrong; asynchronous or sharded saving would keep the others at work.",
        "validating": "Nothing is wrong; share the validation among the ranks if only some do it.",
        "compiling": "Nothing is wrong; shapes that change make it compile again (mark them dynamic).",
    }.get(what, "Nothing is wrong.")
