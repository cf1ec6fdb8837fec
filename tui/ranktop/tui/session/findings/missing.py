"""Ranks of the job that were never heard of while the others run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ranktop.tui.session.findings.death import born_at
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import GONE, RankView
from ranktop.tui.view.text import duration

STEPS: Final = 3
"""Steps that no job finishes while one of its ranks is still on its way."""


def missing(scene: Scene) -> Iterable[Finding]:
    """Find ranks that should have been heard of by now."""
    ranks = scene.snapshot.ranks
    never = tuple(view.rank for view in ranks if view.state == "missing")
    seen = [view for view in ranks if view.state != "missing"]
    # Those of a former attempt are still there when an elastic job comes back larger.
    alive = [view for view in seen if view.state not in GONE] or seen
    born = [at for view in alive if (at := born_at(view, scene.now)) is not None]
    if not never or not born or scene.snapshot.state == "ended":
        return
    waited = scene.now - min(born)
    step = max((view.sample.step for view in alive if view.sample is not None), default=0)
    if waited < scene.limits["missing.patience"] and step < STEPS:
        return
    lost = of_these_nodes(seen, never, scene.snapshot.world_size)
    away = tuple(rank for rank in never if rank not in set(lost))
    if not lost and any(node.lost for node in scene.snapshot.nodes):
        return  # they are where nothing is heard from, and that is told
    told = f"{len(seen)} of {len(ranks)} ranks seen: {ranks_words(lost or away)} not heard of"
    if not lost:
        told += "; they may be on other nodes, which this node's hub does not hear"
    elif away:
        told += f", beside {ranks_words(away)}, which may be on other nodes"
    yield Finding(
        rule="missing",
        severity="warning" if lost else "info",
        ranks=lost or away,
        sentence=told,
        evidence=(
            Evidence("ranks seen", len(seen)),
            Evidence("since the first was heard", waited, "s"),
            Evidence("steps finished by the others", step),
        ),
        advice=""
        if not lost
        else f"In {duration(waited)} they should have spoken: either they wait before the script begins (rendezvous, "
        "import), or they run without the agent (RANKTOP_DISABLE, another Python; ranktop doctor on their node says).",
        confidence="high" if lost else "low",
        since=min(born),
    )


def of_these_nodes(seen: Sequence[RankView], never: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the ranks never heard of that belong to nodes whose other ranks were: a hub hears its own node.

    Where the launcher does not tell how many ranks a node has, the ranks seen must make up whole nodes of equal size
    for the others to be elsewhere.
    """
    cards = [view.card for view in seen if view.card is not None]
    if len({(card.node, card.rank - card.local_rank) for card in cards}) > len({card.node for card in cards}):
        return ()  # Ranks are dealt out to the nodes in turn: whose the others would be is not known.
    told = all(card.local_size for card in cards)
    local = max((card.local_rank for card in cards), default=0) + 1
    here: set[int] = set()
    for card in cards:
        first = card.rank - card.local_rank
        here.update(range(first, first + min(card.local_size or local, size)))
    if not told and (size % local or local == size):
        return tuple(never)
    return tuple(rank for rank in never if rank in here)
