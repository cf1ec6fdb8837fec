"""A rank failed, was killed or vanished: which one broke the job, and what its end says."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from typing import Final

from ranktop.tui.session.findings.finding import PROCESS_ID, Evidence, Finding
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import end_sentence, end_words, ranks_words
from ranktop.tui.session.rank_view import GONE, RankView, end_state
from ranktop.tui.view.text import plain
from ranktop.wire.schema import End

NOTICED_WITHIN: Final = 5.0
"""Seconds by which the hub may notice the end of a killed process later than its peers fail because of it; so long one
that lost its peer, or was told to go, is not called the culprit while others live."""

TOLD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals by which somebody ends a process on purpose: a launcher, Ctrl-C, a terminal that closes."""

_LOST_PEER: Final = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket (timeout|closed)|remote process exited"
    r"|ncclremoteerror|nccl communicator was aborted|distbackenderror|distnetworkerror",
    re.IGNORECASE,
)
"""How a rank fails because another one is gone."""

_ADDRESS: Final = re.compile(r" ?\[[^\[\]]*\]:\d+")
"""A peer's address as gloo tells it: without it ranks that lost one say the same."""

_OOM_KILLER: Final = re.compile(r"\boom[- ]killer\b", re.IGNORECASE)
"""As the hub words it where the kernel counted a kill."""

MOST_CONSEQUENCES: Final = 4
"""Kinds of ends of the other ranks that are listed."""

_ADVICE: Final[dict[int | None, str]] = {
    signal.SIGKILL: "SIGKILL comes from outside: the kernel's OOM killer (dmesg), a limit of the scheduler or the "
    "container, or somebody's kill -9.",
    signal.SIGSEGV: "Native code failed: run with PYTHONFAULTHANDLER=1 to see where.",
    signal.SIGBUS: "A mapped file or /dev/shm could not be read or written: /dev/shm may be full (docker --shm-size).",
    signal.SIGABRT: "A library gave up: its last lines in this rank's standard error say why (NCCL's watchdog does so "
    "when a collective does not end).",
    signal.SIGFPE: "Native code divided by zero: run with PYTHONFAULTHANDLER=1 to see where.",
    signal.SIGILL: "Native code is not made for this CPU: a wheel or an extension built for another one.",
}
_OF_MEMORY: Final = (
    "The node's memory, or the container's, ran out: fewer data loader workers, less offload to the CPU, or a higher "
    "limit."
)


def culprit(ranks: Sequence[RankView]) -> RankView | None:
    """Return the rank whose end broke the job: the first that did not end by itself, None when all did.

    A launcher ends the others with SIGTERM, so one that was told to go counts only when there is no other, or when it
    went before its peers missed it. A rank that was killed or vanished goes before those that failed shortly before it
    was missed: its peers notice at once, in the collective that it leaves, the hub somewhat later. One that failed
    because a peer was gone gives way to one that failed for a reason of its own.
    """
    broken = [(view, view.end, view.ended or 0.0) for view in ranks if view.end is not None and view.state != "ended"]
    if not broken:
        return None
    first, end, when = min(broken, key=lambda one: (told_to_go(one[1]), one[2]))
    if end_state(end) != "failed":
        return first
    near = [one for one in broken if one[2] <= when + NOTICED_WITHIN]
    before = [one for one in near if struck(one[1])]
    if not before and lost_peer(end):
        before = [one for one in near if end_state(one[1]) == "failed" and not lost_peer(one[1])]
        before = before or [one for one in broken if one[2] < when]
    return min(before, key=lambda one: one[2])[0] if before else first


def death(scene: Scene) -> Iterable[Finding]:
    """Find the one rank that broke the job; the ends of the others are its consequences."""
    ranks = _present(scene)
    guilty = culprit(ranks)
    if guilty is None:
        return
    broken = [view for view in ranks if view.end is not None and view.state != "ended"]
    alive = [view for view in ranks if view.state not in GONE and view.sample is not None]
    told = all(view.end is not None and told_to_go(view.end) for view in broken)
    if told and not alive:
        yield _ended_on_purpose(broken, scene)
        return
    fresh = scene.now - (guilty.ended or 0.0) < NOTICED_WITHIN
    if alive and fresh and (told or (guilty.end is not None and lost_peer(guilty.end))):
        return  # The others are told as well in a moment, or the peer that this one has lost is missed.
    yield _broken(guilty, [view for view in broken if view is not guilty])


def told_to_go(end: End) -> bool:
    """Tell whether somebody ended the process on purpose."""
    return end.how == "signal" and end.code in TOLD


def by_oom_killer(end: End) -> bool:
    """Tell whether the kernel killed the process for want of the host's memory."""
    return end.how == "signal" and _OOM_KILLER.search(end.detail) is not None


def struck(end: End) -> bool:
    """Tell whether a process was ended from outside or by a fault of its own, and not by what its peers did.

    SIGABRT is how a library gives up, so it may be a consequence as well.
    """
    return end_state(end) == "vanished" or (end.how == "signal" and end.code not in (*TOLD, signal.SIGABRT))


def lost_peer(end: End) -> bool:
    """Tell whether a process failed because another one was gone."""
    return _LOST_PEER.search(end.detail) is not None


def _present(scene: Scene) -> list[RankView]:
    """Return the ranks without those that ended before the job was restarted: their end is past."""
    ranks = scene.snapshot.ranks
    anew = [
        (born, view.restart, view.former is not None)
        for view in ranks
        if (view.restart or view.former is not None) and (born := born_at(view, scene.now)) is not None
    ]

    def past(view: RankView) -> bool:
        ended = view.ended
        if view.end is None or ended is None:
            return False
        return any(born > ended and (again or restart > view.restart) for born, restart, again in anew)

    return [view for view in ranks if not past(view)]


def born_at(view: RankView, now: float) -> float | None:
    """Return when a rank's present life began, on the session's clock; None before its first sample."""
    return None if view.sample is None else now - (view.age or 0.0) - view.sample.uptime


def _ended_on_purpose(broken: Sequence[RankView], scene: Scene) -> Finding:
    ranks = tuple(view.rank for view in broken)
    codes = sorted({view.end.code for view in broken if view.end is not None and view.end.code is not None})
    names = " or ".join(signal.Signals(code).name for code in codes)
    all_of_them = len(broken) > 1 and len(broken) == len(scene.snapshot.ranks)
    who = f"all {len(broken)} ranks" if all_of_them else ranks_words(ranks)
    return Finding(
        rule="death",
        severity="info",
        ranks=ranks,
        sentence=f"the job was told to end: {who} got {names}",
        subject="on purpose",
        since=min(view.ended or 0.0 for view in broken),
        step=_step(broken[0]),
    )


def _broken(guilty: RankView, others: Sequence[RankView]) -> Finding:
    assert guilty.end is not None
    alike = tuple(view.rank for view in others if view.end is not None and _same(view, guilty))
    as_well = f"; {ranks_words(alike)} as well" if alike else ""
    return Finding(
        rule="death",
        severity="critical",
        ranks=(guilty.rank,),
        sentence=f"{end_sentence(guilty)}{as_well}",
        evidence=tuple(_evidence(guilty, [view for view in others if view.rank not in alike])),
        advice=_advice(guilty),
        since=guilty.ended,
        step=_step(guilty),
    )


def _same(view: RankView, guilty: RankView) -> bool:
    one, other = view.end, guilty.end
    return one is not None and other is not None and (one.code, gist(one)) == (other.code, gist(other))


def gist(end: End) -> str:
    """Return how a process ended without what differs between ranks that ended alike."""
    return _ADDRESS.sub("", end_words(end).partition(". ")[0])


def of_ranks(words: str, ranks: Sequence[int]) -> str:
    """Let the words for the end of one rank be said of several."""
    return words.replace("was ", "were ", 1) if len(ranks) > 1 and words.startswith("was ") else words


def _evidence(guilty: RankView, others: Sequence[RankView]) -> Iterable[Evidence]:
    ends: dict[str, list[int]] = {}
    for view in others:
        if view.end is not None:
            ends.setdefault(gist(view.end), []).append(view.rank)
    for words, ranks in list(ends.items())[:MOST_CONSEQUENCES]:
        yield Evidence(f"then {ranks_words(ranks)}", of_ranks(words, ranks))
    left = [rank for ranks in list(ends.values())[MOST_CONSEQUENCES:] for rank in ranks]
    if left:
        yield Evidence(f"then {ranks_words(left)}", "ended in other ways")
    if guilty.sample is not None:
        yield Evidence("last finished step", guilty.sample.step)
        if guilty.sample.phase:
            yield Evidence("phase", guilty.sample.phase)
    if guilty.card is not None:
        yield Evidence("node", guilty.card.node)
        yield Evidence(PROCESS_ID, guilty.card.pid)


def _advice(view: RankView) -> str:
    end = view.end
    assert end is not None
    if by_oom_killer(end):
        return _OF_MEMORY
    if end.how == "signal":
        told = "Somebody ended this process alone: its launcher's or scheduler's log says who."
        return told if told_to_go(end) else _ADVICE.get(end.code, "")
    if end.how == "vanished":
        where = f" on {plain(view.card.node)}" if view.card is not None and view.card.node else ""
        return f"Nobody saw how it ended: see dmesg and the scheduler's log{where}."
    if lost_peer(end):
        return "A peer or the network between them was gone first: look at the ranks that this one talks to."
    return "The traceback is in this rank's standard error (torchrun --redirects or --tee keeps it apart)."


def _step(view: RankView) -> int | None:
    return None if view.sample is None else view.sample.step
