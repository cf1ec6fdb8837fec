"""Ranks of the job that were never heard of while the others run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ranktop.tui.session.findings.death import born_at
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank import RankView
from ranktop.tui.view.text import duration

PATIENCE: Final = 60.0
"""Seconds from the first rank's start in which the others may still appear."""

STEPS: Final = 3
"""Steps that no job finishes while one of its ranks is still on its way."""


def missing(scene: Scene) -> Iterable[Finding]:
    """Find ranks that should have been heard of by now."""
    ranks = scene.snapshot.ranks
    never = tuple(view.rank for view in ranks if view.state == "missing")
    seen = [view for view in ranks if view.state != "missing"]
    born = [at for view in seen if (at := born_at(view, scene.now)) is not None]
    if not never or not born or scene.snapshot.state == "ended":
        return
    waited = scene.now - min(born)
    if waited < PATIENCE and scene.snapshot.step < STEPS:
        return
    elsewhere = _whole_nodes(seen, never, len(ranks))
    where = "; they may be on other nodes, which this node's hub does not hear" if elsewhere else ""
    yield Finding(
        rule="missing",
        severity="info" if elsewhere else "warning",
        ranks=never,
        sentence=f"{len(seen)} of {len(ranks)} ranks seen: {ranks_words(never)} not heard of{where}",
        evidence=(
            Evidence("ranks seen", len(seen)),
            Evidence("since the first was heard", waited, "s"),
            Evidence("steps finished by the others", scene.snapshot.step),
        ),
        advice=""
        if elsewhere
        else f"in {duration(waited)} they should have spoken: either they wait before the script begins (rendezvous, "
        "import), or they run without the agent (RANKTOP_DISABLE, another Python; ranktop doctor on their node says)",
        confidence="low" if elsewhere else "high",
        since=min(born),
    )


def _whole_nodes(seen: Sequence[RankView], never: Sequence[int], size: int) -> bool:
    """Tell whether all that is missing may be the whole of other nodes with as many ranks each."""
    cards = [view.card for view in seen if view.card is not None]
    if not cards:
        return False
    local = max(card.local_rank for card in cards) + 1
    bases = {card.rank - card.local_rank for card in cards}
    here = {base + number for base in bases for number in range(local)}
    return size % local == 0 and local < size and not here & set(never)
