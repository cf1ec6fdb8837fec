"""Ranks that are alive but do not speak: what their node says of their processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ranktop.tui.session.findings.finding import PROCESS_ID, Evidence, Finding
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import GONE, SILENT_INTERVALS, RankView
from ranktop.tui.view.text import duration, plain

FEW: Final = 4
"""Findings beyond which those of one kind are told together, whatever their nodes."""

_WORDS: Final = {
    "stopped": "stopped (SIGSTOP or a debugger)",
    "waiting for I/O": "waiting for I/O in the kernel (a disk, a network file system or a driver)",
    "sleeping": "alive and sleeping",
    "running": "alive and running",
}
_ADVICE: Final = {
    "stopped": "Let it go on with kill -CONT, unless a debugger holds it.",
    "waiting for I/O": "Look at the storage and the driver of that node (dmesg); it cannot be killed while it waits.",
}
_KEPT: Final = (
    "Something keeps its agent from speaking: a long call that holds Python's lock, or a node without CPU time to "
    "spare; py-spy dump --pid shows where it is."
)


def silent(scene: Scene) -> Iterable[Finding]:
    """Find living ranks without a sample for three intervals, those of one node and kind together."""
    ranks = scene.snapshot.ranks
    quiet = [view for view in ranks if view.state == "silent"]
    if not quiet:
        return
    alive = [view for view in ranks if view.state not in (*GONE, "missing")]
    if len(quiet) == len(alive) > 1 and not any(view.process for view in quiet):
        if min(view.age or 0.0 for view in quiet) >= scene.limits["silent.min_seconds"]:
            yield _all(quiet, scene.now)
        return
    quiet = [
        view for view in quiet if view.process == "stopped" or (view.age or 0.0) >= scene.limits["silent.min_seconds"]
    ]
    groups: dict[tuple[str, str], list[RankView]] = {}
    for view in quiet:
        groups.setdefault((view.card.node if view.card is not None else "", view.process), []).append(view)
    if len(groups) > FEW:
        groups = {}
        for view in quiet:
            groups.setdefault(("", view.process), []).append(view)
    for (node, process), members in groups.items():
        yield _silent(members, node, process, scene)


def _silent(members: Sequence[RankView], node: str, process: str, scene: Scene) -> Finding:
    ranks = tuple(view.rank for view in members)
    ages = [view.age or 0.0 for view in members]
    age = max(ages)
    for_how_long = duration(age)
    if duration(min(ages)) != for_how_long:
        for_how_long = f"{duration(min(ages))} to {for_how_long}"
    one = len(ranks) == 1
    whose = "its process is" if one else "their processes are"
    state = f"{whose} {_WORDS.get(process, plain(process))}" if process else "nothing is known of its process"
    intervals = (SILENT_INTERVALS * view.sample.interval for view in members if view.sample is not None)
    limit = max(scene.limits["silent.warning_seconds"], *intervals)
    return Finding(
        rule="silent",
        severity="warning" if process == "stopped" or age > limit else "info",
        ranks=ranks,
        sentence=f"{ranks_words(ranks)} {'is' if one else 'are'} silent for {for_how_long}: {state}",
        short="stopped" if process == "stopped" else "",
        evidence=(
            Evidence("last heard", age, "s"),
            Evidence("process", process or None),
            *((Evidence("node", node),) if node else ()),
            *((Evidence(PROCESS_ID, members[0].card.pid),) if one and members[0].card is not None else ()),
        ),
        advice=_ADVICE.get(process, _KEPT),
        confidence="high" if process else "medium",
        since=scene.now - age,
        step=members[0].sample.step if members[0].sample is not None else None,
    )


def _all(quiet: Sequence[RankView], now: float) -> Finding:
    """Nobody speaks and nothing is known of anybody: that is the way to them rather than all of them."""
    age = min(view.age or 0.0 for view in quiet)
    return Finding(
        rule="silent",
        severity="info",
        ranks=(),
        sentence=f"all {len(quiet)} ranks are silent for {duration(age)}: the hub, or the way to it, may be gone",
        subject="all",
        evidence=(Evidence("last heard", age, "s"),),
        advice="Check the way to the job with ranktop doctor.",
        confidence="low",
        since=now - age,
    )
