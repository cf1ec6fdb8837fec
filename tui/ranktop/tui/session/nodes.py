"""The nodes of a job as the hub that is asked sees them, and names by which two of one host name are told apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from ranktop.wire.nodes import NodeLink, Nodes
from ranktop.wire.schema import Card

NODE_LOST: Final = "node lost"
"""State of a rank that lives as far as is known, on a node whose hub does not answer."""

LOST: Final = frozenset({"lost", "unseen"})
"""States of a node of which nothing is heard."""

PROMPT: Final = frozenset({"here", "linked"})
"""States of a node whose ranks are heard of as they speak."""

ASKING: Final = "asking"
"""How the detail begins of a node that has not had the time to answer yet."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node as one frame shows it."""

    node_rank: int
    name: str
    """Host name, with the node's place where two nodes have the same."""
    host: str
    state: str
    """``here``, ``linked``, ``behind``, ``lost``, ``unseen`` (``wire.nodes.NodeLink``)."""
    since: float
    """When that state began, on the session's clock."""
    ranks: tuple[int, ...]
    missed: int = 0
    """Messages that nobody holds any more."""
    detail: str = ""

    @property
    def lost(self) -> bool:
        """Whether nothing is heard of it."""
        return self.state in LOST

    @property
    def asking(self) -> bool:
        """Whether it has not had the time to answer yet."""
        return self.lost and self.detail.startswith(ASKING)


class NodesState:
    """What the hub has last said of the job's nodes; empty in a job of one node."""

    def __init__(self) -> None:
        self.views: tuple[NodeView, ...] = ()
        """By node_rank."""
        self._states: dict[int, str] = {}
        """Rank -> state of its node."""

    def take(self, nodes: Nodes, at: float) -> None:
        """Take what the hub says. ``at``: when the youngest of the states began, on the session's clock."""
        links = sorted(nodes.nodes, key=lambda link: link.node_rank)
        newest = max((link.since for link in links), default=0.0)
        hosts = [link.host for link in links]
        self.views = tuple(_view(link, at - (newest - link.since), hosts.count(link.host) > 1) for link in links)
        self._states = {rank: link.state for link in links for rank in link.ranks}

    def prompt(self, rank: int) -> bool:
        """Tell whether a rank's samples come as it speaks: those of a node that catches up are old by then."""
        return not self.views or self._states.get(rank, "") in PROMPT

    def state_of(self, rank: int, state: str, gone: frozenset[str]) -> str:
        """Return a rank's state with regard to its node: what was last heard of a lost one is no longer so."""
        link = self._states.get(rank, "")
        if state in gone or state == "missing":
            return state
        return NODE_LOST if link in LOST or (link == "behind" and state == "silent") else state


def _view(link: NodeLink, since: float, ambiguous: bool) -> NodeView:
    name = named(link.host, link.node_rank) if ambiguous or not link.host else link.host
    return NodeView(link.node_rank, name, link.host, link.state, since, link.ranks, link.missed, link.detail)


def named(host: str, node_rank: int) -> str:
    """Return the name of a node of which there are several of that host name; no host's name has a ``#``."""
    return f"{host or 'node'}#{node_rank}"


def host_of(card: Card) -> str:
    """Return the host name in a card that :class:`Hosts` has named."""
    return card.node.removesuffix(f"#{card.node_rank}")


class Hosts:
    """Names the nodes in cards, so that two of the same host name are two from there on."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[str, int]] = {}
        """Rank -> (host name, node_rank)."""
        self._nodes: dict[str, dict[int, set[int]]] = {}
        """Host name -> node_rank -> ranks."""

    def put(self, card: Card) -> set[int]:
        """Take a card as it came; return the ranks whose cards are to be named because of it, its own among them."""
        before, now = self._of.get(card.rank), (card.node, card.node_rank)
        if before == now:
            return {card.rank}
        hosts = {now[0]} if before is None else {now[0], before[0]}
        was = {host: self._ambiguous(host) for host in hosts}
        if before is not None:
            ranks = self._nodes[before[0]][before[1]]
            ranks.discard(card.rank)
            if not ranks:
                del self._nodes[before[0]][before[1]]
        self._of[card.rank] = now
        self._nodes.setdefault(card.node, {}).setdefault(card.node_rank, set()).add(card.rank)
        changed = [host for host in hosts if self._ambiguous(host) != was[host]]
        return {card.rank}.union(*(ranks for host in changed for ranks in self._nodes[host].values()))

    def _ambiguous(self, host: str) -> bool:
        return len(self._nodes.get(host, ())) > 1

    def name(self, card: Card) -> Card:
        """Return a card with the name of its node, whatever it was named before."""
        host, node_rank = self._of[card.rank]
        name = named(host, node_rank) if self._ambiguous(host) else host
        return card if card.node == name else msgspec.structs.replace(card, node=name)
