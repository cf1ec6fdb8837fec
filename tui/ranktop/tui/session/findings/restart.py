"""An elastic launcher has started the job's ranks anew: how often, and how the life before ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ranktop.tui.session.findings.death import born_at, gist, lost_peer, of_ranks, struck, told_to_go
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import end_state
from ranktop.wire.schema import End

MOST_ENDS: Final = 4
"""Ends of the former life that are listed."""


def restart(scene: Scene) -> Iterable[Finding]:
    """Find ranks that are not in their first life."""
    ranks = scene.snapshot.ranks
    count = max((view.restart for view in ranks), default=0)
    formers = {view.rank: view.former for view in ranks if view.former is not None}
    if not count and not formers:
        return
    first = _first(formers)
    to_come = any(view.former is None and view.restart < count for view in ranks)
    if first is not None and to_come and lost_peer(formers[first]):
        first = None  # The rank that it lost is not started anew yet.
    why = f": before, rank {first} {gist(formers[first])}" if first is not None else ""
    again = tuple(view for view in ranks if view.restart == count and (count or view.former is not None))
    everywhere = all(view.restart == count for view in ranks)
    who = "the job" if everywhere or not count else ranks_words(view.rank for view in again)
    times = "" if count < 1 else {1: " once", 2: " twice"}.get(count, f" {count} times")
    born = [at for view in again if (at := born_at(view, scene.now)) is not None]
    failed = any(_failed(former) for former in formers.values())
    verb = "was started" if who == "the job" or len(again) == 1 else "were started"
    yield Finding(
        rule="restart",
        severity="warning" if failed or count >= scene.limits["restart.warning_from"] else "info",
        ranks=(),
        sentence=f"{who} {verb} anew{times}{why}",
        evidence=tuple(_evidence(count, formers)),
        advice=_advice(count, first is not None),
        since=min(born, default=None),
        confidence="high" if first is not None else "medium",
    )


def _failed(end: End) -> bool:
    return end_state(end) != "ended" and not told_to_go(end)


def _first(formers: Mapping[int, End]) -> int | None:
    """Return the rank whose former end says most of why: one struck from outside, else one that failed."""

    def weight(rank: int) -> tuple[int, int]:
        end = formers[rank]
        if struck(end):
            return (0, rank)
        if end_state(end) == "failed":
            return (2 if lost_peer(end) else 1, rank)
        return (3 if _failed(end) else 4, rank)

    return min((rank for rank, end in formers.items() if end_state(end) != "ended"), key=weight, default=None)


def _evidence(count: int, formers: Mapping[int, End]) -> Iterable[Evidence]:
    yield Evidence("elastic restart count", count)
    ends: dict[str, list[int]] = {}
    for rank, former in formers.items():
        ends.setdefault(gist(former), []).append(rank)
    for words, who in list(ends.items())[:MOST_ENDS]:
        yield Evidence(f"before, {ranks_words(who)}", of_ranks(words, who))


def _advice(count: int, known: bool) -> str:
    again = "Each restart falls back to the last checkpoint; torchrun --max-restarts ends the job in the end."
    if known or not count:
        return again
    return f"How the life before ended is not known here: see the launcher's log. {again}"
