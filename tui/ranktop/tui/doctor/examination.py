"""Runs the checks, a group beside the other, each on its own so that nothing can take the report away."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ranktop.tui.doctor.check import Check, Line, Result, failed, skipped
from ranktop.tui.doctor.scene import Scene


@dataclass(frozen=True, slots=True)
class Group:
    """Checks of one subject, made one after the other."""

    name: str
    """Before the dot in its checks' ids."""
    title: str
    checks: tuple[Check, ...]


@dataclass(slots=True)
class _Progress:
    """How far a group's thread has come."""

    lines: list[Line] = field(default_factory=list)
    at: int = 0
    """Number of the check that is being made."""
    done: threading.Event = field(default_factory=threading.Event)


def examine(groups: Sequence[Group], scene: Scene) -> tuple[list[Line], bool]:
    """Return the lines of all groups in their order, and whether something still hangs.

    A group that is not done when the scene's time is over is told as far as it came.
    """
    progress = [_Progress() for _ in groups]
    started = time.monotonic()
    for group, state in zip(groups, progress, strict=True):
        threading.Thread(target=_make, args=(group, scene, state), name=f"doctor-{group.name}", daemon=True).start()
    # What a check waits for ends at the same time: leave it the moment to say so.
    until = scene.until + 0.5
    lines: list[Line] = []
    hangs = False
    for group, state in zip(groups, progress, strict=True):
        finished = state.done.wait(max(0.0, until - time.monotonic()))
        at = state.at
        lines.extend(list(state.lines))
        if not finished and not state.done.is_set():
            hangs = True
            lines.extend(_unfinished(group, at, time.monotonic() - started))
    return lines, hangs


def _make(group: Group, scene: Scene, state: _Progress) -> None:
    for check in group.checks:
        results = guarded(check, scene)
        state.lines.extend(Line(check.id, group.name, result.label or check.label, result) for result in results)
        state.at += 1
    state.done.set()


def guarded(check: Check, scene: Scene) -> Sequence[Result]:
    """Make one check; an exception in it is a failed line of its own."""
    try:
        result = check.look(scene)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".strip()
        advice = (
            "see whether the file may be used and the disk has room"
            if isinstance(error, OSError)
            else "please report this line"
        )
        return [failed(f"this could not be checked: {text}", advice, error=text)]
    return [result] if isinstance(result, Result) else result


def _unfinished(group: Group, at: int, seconds: float) -> list[Line]:
    lines = []
    for number, check in enumerate(group.checks[at:]):
        if number == 0:
            result = failed(f"no answer within {seconds:.0f} s", "run again; a file system may hang", hangs=True)
        else:
            result = skipped("not reached: the check before it hangs")
        lines.append(Line(check.id, group.name, check.label, result))
    return lines
