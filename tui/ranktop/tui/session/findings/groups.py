"""Peer groups: ranks whose role in the job is the same, so that comparing them is fair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.tui.session.rank_view import RankView

LIVELY: Final = ("ok", "starting")
"""States of a rank whose values are of now, beside those of a device in trouble."""

FEW: Final = 4
"""Members below which there is no spread to speak of: a verdict is the ratio to the median, of low confidence."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of one role that speak."""

    role: str
    """In words, to go on after ``its peers``: ``of stage 1``, ``of tensor-parallel rank 0``; empty: all ranks."""
    members: tuple[RankView, ...]
    """By rank."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of the members."""
        return tuple(view.rank for view in self.members)

    @property
    def few(self) -> bool:
        """Whether it has too few members for a spread."""
        return len(self.members) < FEW


def peer_groups(ranks: tuple[RankView, ...]) -> tuple[Group, ...]:
    """Return the groups of the ranks that speak and have a card; each rank is in one."""
    found: dict[tuple[object, ...], list[RankView]] = {}
    for view in ranks:
        if view.card is None or view.sample is None or view.stale:
            continue
        if view.state in LIVELY or view.state.startswith("device "):
            found.setdefault(role_key(view), []).append(view)
    several = len(found) > 1
    return tuple(Group(_role(members[0]) if several else "", tuple(members)) for members in found.values())


def role_key(view: RankView) -> tuple[object, ...]:
    """Return what ranks must have in common: strategy, stage, tensor coordinate, model, kind and size of the device."""
    card = view.card
    if card is None:
        return ("unknown",)
    plan = card.plan
    place: tuple[object, ...] = ()
    if plan is not None:
        place = (plan.strategy, plan.layout.pipeline_rank, plan.layout.tensor_rank)
    return (*place, card.device.kind, card.device.name, card.device.total)


def _role(view: RankView) -> str:
    plan = view.card.plan if view.card is not None else None
    parts = []
    if plan is not None and plan.layout.pipeline > 1:
        parts.append(f"of stage {plan.layout.pipeline_rank}")
    if plan is not None and plan.layout.tensor > 1:
        parts.append(f"of tensor-parallel rank {plan.layout.tensor_rank}")
    if not parts and view.card is not None and view.card.device.name:
        parts.append(f"on {view.card.device.name}")
    return " ".join(parts)
