"""The nodes of a job in few words: how many, and which of them are not heard of."""

from __future__ import annotations

from typing import Final

from ranktop.tui.session.findings.node import who
from ranktop.tui.session.nodes import NodeView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.text import duration, plain

FEW: Final = 4
"""Nodes up to which each is named; of more, those that are not well."""

_WORDS: Final = {"here": "here", "linked": "linked", "behind": "catching up", "lost": "lost", "unseen": "not reached"}


def count_words(snapshot: Snapshot) -> str:
    """Return ``3 nodes, 1 lost``; empty for a job of one node."""
    seen = len({view.card.node for view in snapshot.ranks if view.card})
    number = max(seen, len(snapshot.nodes))
    if number < 2:
        return ""
    lost = sum(node.lost and not node.asking for node in snapshot.nodes)
    return f"{number} nodes{f', {lost} lost' if lost else ''}"


def nodes_line(snapshot: Snapshot) -> str:
    """Return one line about what the hub that was asked sees of the nodes; empty for a job of one."""
    nodes = snapshot.nodes
    if not nodes:
        return ""
    amiss = [node for node in nodes if node.state not in ("here", "linked") or node.missed]
    told = [_words(node, snapshot.now) for node in (nodes if len(nodes) <= FEW else amiss[:FEW])]
    if len(nodes) <= FEW:
        return f"nodes: {', '.join(told)}"
    well = len(nodes) - len(amiss)
    rest = [f"and {len(amiss) - FEW} more"] if len(amiss) > FEW else []
    return f"nodes: {', '.join([f'{well} of {len(nodes)} heard of as they speak', *told, *rest])}"


def _words(node: NodeView, now: float) -> str:
    state = _WORDS.get(node.state, plain(node.state))
    if node.asking:
        state = "being asked"
    elif node.lost:
        why = f" ({plain(node.detail)})" if node.detail else ""
        state = f"{state} for {duration(max(0.0, now - node.since))}{why}"
    missed = f", {node.missed} messages lost" if node.missed else ""
    return f"{who(node)} {state}{missed}"
