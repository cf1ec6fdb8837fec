"""Messages by which the hubs of a job's nodes find each other, and tell viewers what they can see."""

from __future__ import annotations

import msgspec


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """Where the hub of one node of a job takes connections of the job's other hubs, and by which key it is known."""

    node_rank: int
    """The node's place in the job (``GROUP_RANK`` of torchrun)."""
    host: str = ""
    addresses: tuple[str, ...] = ()
    """IP addresses under which the other nodes may reach it, the best first."""
    port: int = 0
    key: str = ""
    """CURVE public key, 40 characters of Z85. The secret one never leaves the hub's memory."""
    hub: str = ""
    """Identity of that hub process."""
    job_id: str = ""
    """The job's id as that node knows it: its own at first, then the first node's, also when that one has left."""


class Doors(msgspec.Struct, frozen=True, kw_only=True):
    """Agent to its own node's hub: the job has several nodes, and these are known (from the job's own store)."""

    node_rank: int
    """Of the agent's own node."""
    nodes: int = 0
    """Nodes of the job by the launcher's word; 0 where it does not tell."""
    host: str = ""
    addresses: tuple[str, ...] = ()
    """Of the agent's own node, for its hub's door."""
    doors: tuple[Door, ...] = ()
    """All that were found, at most one per node; may hold the own one."""


class NodeLink(msgspec.Struct, frozen=True, kw_only=True):
    """How the hub that is asked does with one node of the job."""

    node_rank: int
    host: str = ""
    state: str = ""
    """``here`` (the hub's own node), ``linked`` (its hub answers), ``behind`` (answers, what was missed still comes),
    ``lost`` (no answer), ``unseen`` (never answered)."""
    since: float = 0.0
    """Seconds on the hub's monotonic clock when that state began; of ``lost`` when the node was last heard of."""
    ranks: tuple[int, ...] = ()
    """Ranks that were heard of by way of that node."""
    missed: int = 0
    """Messages that the node's hub no longer held when the link was back."""
    detail: str = ""
    """Why, in words, when ``lost`` or ``unseen``; for how long, ``since`` tells."""


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """Hub to viewer, in the snapshot and on every change: what this hub can see of a job of several nodes.

    The item's own time is that of the newest ``since`` among the nodes: so a viewer knows how old each is.
    """

    here: int
    """``node_rank`` of the hub that is asked."""
    nodes: tuple[NodeLink, ...] = ()
