"""Nodes of the job whose hub does not answer: what their ranks do is not known, and is not guessed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.nodes import NodeView
from ranktop.tui.session.rank_view import GONE, end_state
from ranktop.tui.view.text import duration, plain

TOGETHER: Final = 3.0
"""Seconds: a node that was heard of for no longer than that after the first rank broke may be why it did."""

NAMED: Final = 4
"""Nodes that are named."""

_ADVICE: Final = (
    "See whether the node is up and reached from this one (ping, ranktop jobs there, a firewall between their hubs' "
    "ports: docs/nodes.md); what its hub recorded meanwhile comes when it answers again."
)


def node(scene: Scene) -> Iterable[Finding]:
    """Find the nodes that cannot be reached, all of them in one finding."""
    away = [view for view in scene.snapshot.nodes if _counts(view, scene)]
    if scene.snapshot.state == "ended":
        away = _before_it_broke(away, scene)
    if not away:
        return
    since = min(view.since for view in away)
    ranks = tuple(sorted({rank for view in away for rank in view.ranks}))
    yield Finding(
        rule="node",
        severity="warning",
        ranks=ranks,
        sentence=_sentence(away, scene.now),
        subject="" if ranks else "unseen",
        evidence=tuple(
            Evidence(plain(view.name), f"{plain(view.detail) or view.state}{_missed(view)}") for view in away[:NAMED]
        ),
        advice=_ADVICE,
        since=since,
    )


def _counts(view: NodeView, scene: Scene) -> bool:
    """Tell whether it is missed: not while it may still come, nor when all its ranks have told of their end."""
    if view.state == "unseen":
        return not view.asking and scene.now - view.since >= scene.limits["node.patience"]
    ranks = [scene.snapshot.rank(rank) for rank in view.ranks]
    return view.state == "lost" and not (ranks and all(one is not None and one.state in GONE for one in ranks))


def _before_it_broke(away: Sequence[NodeView], scene: Scene) -> list[NodeView]:
    """Return the nodes that were lost before the job broke: of a job that is over the others are not missed."""
    broke = [view.ended for view in scene.snapshot.ranks if view.end is not None and end_state(view.end) != "ended"]
    first = min((at for at in broke if at is not None), default=None)
    return [view for view in away if first is not None and view.state == "lost" and view.since <= first + TOGETHER]


def _sentence(away: Sequence[NodeView], now: float) -> str:
    told = [f"{who(view)} {_how(view, now)}" for view in away[:NAMED]]
    if len(away) == 1:
        return told[0]
    rest = f", and {len(away) - NAMED} more" if len(away) > NAMED else ""
    return f"{len(away)} nodes are out of reach: {'; '.join(told)}{rest}"


def who(view: NodeView) -> str:
    """Return the name of a node and its ranks: ``node-2 (ranks 4, 5)``."""
    return f"{plain(view.name)} ({ranks_words(view.ranks)})" if view.ranks else plain(view.name)


def _how(view: NodeView, now: float) -> str:
    for_how_long = duration(max(0.0, now - view.since))
    if view.state == "unseen":
        return f"has not been reached in {for_how_long}"
    return f"is not reachable for {for_how_long}"


def _missed(view: NodeView) -> str:
    return f"; {view.missed} messages lost" if view.missed else ""
