"""A job that has come to a stand: the ranks that everyone waits for, where they are, and what speaks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ranktop.probes.reading import GroupPosition
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.limits import Limits
from ranktop.tui.session.findings.pace import median
from ranktop.tui.session.findings.pause import of as pause_of
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.stacks import operation, script_call, where
from ranktop.tui.session.findings.waiting import Stall, positions_of
from ranktop.tui.session.findings.waiting import of as stall_of
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.view.text import duration

STACK_WITHIN: Final = 2.0
"""Seconds beyond patience that are given to a rank to say where it is: it may be saving a checkpoint."""

NAMED: Final = 3
"""Ranks of which stack, position and device are told."""

DEPTH: Final = 12
"""Calls of a stack that are told."""

BUSY: Final = 95
LOW_POWER: Final = 0.5
"""GPUs that are busy (percent) at less than this share of their power limit wait in NCCL."""

_PHASE: Final = {
    "data": "waits for data", "forward": "is in forward", "backward": "is in backward",
    "optimizer": "is in the optimizer",
}  # fmt: skip


def hang(scene: Scene) -> Iterable[Finding]:
    """Find a job, or ranks, that stand for no good reason."""
    stall = stall_of(scene)
    if stall is None or stall.kind in ("moving", "finishing") or pause_of(scene) is not None:
        return
    silent = stall.kind in ("stopped", "silent", "ended")
    unheard = not silent and not any(view.stack is not None for view in stall.who or stall.waiting)
    if unheard and stall.overdue < STACK_WITHIN:
        return
    ranks = tuple(sorted(view.rank for view in stall.who))
    if stall.kind == "alone" and len(ranks) == sum(view.sample is not None for view in scene.snapshot.ranks) > 1:
        ranks = ()
    yield Finding(
        rule="hang",
        severity=_severity(stall, scene.limits),
        ranks=ranks,
        sentence=_sentence(scene, stall),
        short="holds up all" if ranks and stall.kind not in ("apart", "alone") else "stands" if ranks else "",
        subject=stall.kind,
        evidence=tuple(_evidence(stall)),
        advice=_ADVICE[stall.kind],
        confidence=_confidence(stall, unheard=unheard),
        since=scene.now - stall.age,
        step=scene.snapshot.step,
        peers=tuple(sorted(view.rank for view in stall.waiting)),
    )


def _severity(stall: Stall, limits: Limits) -> str:
    if stall.kind == "stopped" and not stall.waiting:
        return "warning"  # Somebody has suspended the whole job.
    if stall.kind != "alone" or stall.waiting or stall.age >= limits["hang.alone_critical"]:
        return "critical"
    return "warning" if stall.age >= limits["hang.alone_warning"] else "info"


def _confidence(stall: Stall, *, unheard: bool) -> str:
    if stall.kind == "alone":
        return "low"
    return "medium" if unheard or stall.kind in ("network", "elsewhere", "circle", "silent") else "high"


_ADVICE: Final = {
    "behind": "Look at what this rank does in the lines named; end the job if it does not come back: it can't go on "
    "without it.",
    "stopped": "Continue the process (kill -CONT) or detach the debugger that holds it; NCCL gives up in the end.",
    "silent": "Look at the node: is the process there (py-spy dump), does the machine swap or hang in I/O?",
    "ended": "Give all ranks the same number of batches (drop_last, an even sampler, or Join).",
    "elsewhere": "Let all ranks call the same collectives in the same order: look for one inside of an if on the rank.",
    "circle": "Let all ranks call the collectives of their groups in the same order.",
    "network": "Look at the links and at NCCL's own log (NCCL_DEBUG=INFO); the flight recorder's dump names the ranks.",
    "apart": "Look at what this rank does in the lines named; the others do not wait for it yet.",
    "alone": "Look at what it does in the lines named: storage, a lock, a loop; it may be work beside the training.",
}


_ALL: Final = {"stopped": "stopped (SIGSTOP, or a debugger)", "silent": "silent", "ended": "at their end"}
"""What is said where nobody is left that waits."""


# -- words ---------------------------------------------------------------------------------------------------------


def _sentence(scene: Scene, stall: Stall) -> str:
    age = duration(stall.age)
    one = len(stall.who) == 1
    who = ranks_words(view.rank for view in stall.who) if stall.who else ""
    if stall.kind == "apart":
        return f"{who} {'has' if one else 'have'} stood for {age}{_at(stall.who)} while the others go on"
    started = scene.snapshot.step_age is not None
    stood = f"the job has stood for {age}" if started else f"the job has not begun and stands for over {age}"
    if stall.kind == "network":
        place = f" {_collective(stall)}" if stall.collective is not None else " a collective"
        return f"{stood}: all {len(stall.waiting)} ranks are in{place}, which does not complete"
    if stall.kind == "circle":
        return f"{stood}: {who} wait for each other, each in another process group"
    if stall.kind == "elsewhere":
        others = f"the {len(stall.waiting)} others" if len(stall.waiting) > 1 else "the other"
        verb = "is" if one else "are"
        if stall.collective is not None and len(stall.who) < len(stall.waiting):
            missed = f"{who} {'has' if one else 'have'} not entered {_collective(stall)}, in which {others} wait"
            place = f", and {verb}{_at(stall.who)}" if _at(stall.who) else ""
            return f"{stood}: {missed}{place}"
        return f"{stood}: {who} {verb} in another collective than {others}{_against(stall)}"
    if stall.kind == "alone" and not stall.waiting:
        everyone = len(stall.who) > 1
        place = _at(stall.who) or " outside of the collectives"
        return f"{stood}: {f'all {len(stall.who)} ranks are' if everyone else f'{who} is'}{place}"
    if not stall.waiting:
        them = "all ranks are" if len(stall.who) > 1 else f"{who} is"
        return f"{stood}: {them} {_ALL[stall.kind]}"
    waiting = f"rank {stall.waiting[0].rank} waits" if len(stall.waiting) == 1 else f"{len(stall.waiting)} ranks wait"
    they = f"rank {stall.waiting[0].rank} is" if len(stall.waiting) == 1 else "the others are"
    inside = f"; {they} in {_collective(stall)}" if stall.collective is not None else ""
    return f"{stood}: {waiting} for {who}{_why(stall)}{inside}"


def _collective(stall: Stall) -> str:
    names = [name for view in stall.waiting if view.stack is not None and (name := operation(view.stack.calls))]
    name = max(set(names), key=names.count) if names else "collective"
    positions = [one for view in (*stall.waiting, *stall.who) for one in positions_of(view) if one.name == stall.group]
    group = _group(positions[0]) if positions else f"group {stall.group}"
    return f"{name} {stall.collective:,} of {group}"


def _group(position: GroupPosition) -> str:
    """Name a process group as its maker did: torch's own names are numbers."""
    if position.description == "default_pg":
        return "the default group"
    return f"group {position.description or position.name}"


def _why(stall: Stall) -> str:
    one = len(stall.who) == 1
    if stall.kind == "stopped":
        return f", whose process{' is' if one else 'es are'} stopped"
    if stall.kind == "silent":
        return f", which {'is' if one else 'are'} silent"
    if stall.kind == "ended":
        return f", which {'has' if one else 'have'} ended"
    place = _at(stall.who)
    if place:
        return f", which {'is' if one else 'are'}{place}"
    phases = {view.sample.phase for view in stall.who if view.sample is not None}
    word = _PHASE.get(next(iter(phases)), "") if len(phases) == 1 and one else ""
    return f", which {word}" if word else ""


def _at(views: Sequence[RankView]) -> str:
    """Return where ranks are in the script: `` in load_batch (train.py:31)``; of several that of the most."""
    found = [place for view in views if (place := _place(view))]
    return f" in {max(found, key=found.count)}" if found else ""


def _place(view: RankView) -> str:
    call = script_call(view, view.stack.calls) if view.stack is not None else None
    return where(call) if call is not None else ""


def _against(stall: Stall) -> str:
    own, others = _at(stall.who), _at(stall.waiting)
    if not own or not others:
        return ""
    name = max((operation(view.stack.calls) for view in stall.who if view.stack is not None), default="")
    other = max((operation(view.stack.calls) for view in stall.waiting if view.stack is not None), default="")
    return f":{f' {name}' if name else ''}{own} instead of{f' {other}' if other else ''}{others}"


# -- evidence ------------------------------------------------------------------------------------------------------


def _evidence(stall: Stall) -> Iterable[Evidence]:
    for view in stall.who[:NAMED]:
        yield from _of_rank(view, stall.group)
        yield from _stack(view)
    for view in stall.waiting[:1]:
        yield from _of_rank(view, stall.group)
        if not stall.who:
            yield from _stack(view)
    yield from _gpus(stall.waiting)


def _of_rank(view: RankView, group: str) -> Iterable[Evidence]:
    name = f"rank {view.rank}"
    for position in positions_of(view):
        if not group or position.name == group:
            yield Evidence(f"{name}: enqueued in {_group(position)}", position.enqueued)
            yield Evidence(f"{name}: completed in {_group(position)}", position.completed)
    if view.sample is not None:
        if view.sample.phase:
            yield Evidence(f"{name}: phase", view.sample.phase)
        if view.sample.activity:
            yield Evidence(f"{name}: by the script's word in", view.sample.activity)
        if view.sample.device.utilization is not None:
            gpu = _on_gpu(view)
            what = "GPU utilization" if gpu else "all CPUs of its node busy"
            yield Evidence(f"{name}: {what}", view.sample.device.utilization, "%")
            if gpu:
                yield Evidence(f"{name}: GPU power", view.sample.device.power, "W")
    if view.process:
        yield Evidence(f"{name}: process", view.process)


def _on_gpu(view: RankView) -> bool:
    return view.card is not None and view.card.device.kind == "cuda"


def _stack(view: RankView) -> Iterable[Evidence]:
    """The calls, innermost first."""
    if view.stack is None:
        yield Evidence(f"rank {view.rank}: Python stack", None)
        return
    if not view.stack.calls:
        yield Evidence(f"rank {view.rank}: Python stack", view.stack.reason or None)
    for number, call in enumerate(list(reversed(view.stack.calls))[:DEPTH]):
        yield Evidence(f"rank {view.rank}: {'in' if number == 0 else f'caller {number}'}", where(call))


def _gpus(waiting: Sequence[RankView]) -> Iterable[Evidence]:
    devices = [view.sample.device for view in waiting if view.sample is not None and _on_gpu(view)]
    busy = [device.utilization for device in devices if device.utilization is not None]
    power = [device.power for device in devices if device.power is not None]
    limits = [device.power_limit for device in devices if device.power_limit]
    if not busy:
        return
    yield Evidence("GPU utilization of those that wait", median(busy), "%")
    yield Evidence("GPU power of those that wait", median(power) if power else None, "W")
    if power and limits and median(busy) >= BUSY and median(power) < LOW_POWER * median(limits):
        yield Evidence("their GPUs", "busy at little power: they wait in NCCL")
