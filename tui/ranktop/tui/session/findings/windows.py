"""A rank's last steps as the memory rules compare them: without its first ones, in which things appear."""

from __future__ import annotations

from typing import Final

from ranktop.tui.session.footprints import RESTING, Footprint
from ranktop.tui.session.rank_view import RankView

SETTLED_STEP: Final = 3
"""Optimizers make their states in the first step, and a host's malloc is read anew when the third begins."""

WINDOW: Final = 5
"""Footprints over which a difference is judged."""

PERSISTENT: Final = 4
"""... and of these, how many must show it."""


def settled(view: RankView, last: int | None = None, since: int = SETTLED_STEP) -> list[Footprint]:
    """Return the footprints from step ``since`` on, at most the ``last`` ones, oldest first."""
    found: list[Footprint] = []
    for one in reversed(view.footprints):
        if one.step < since or one.first:
            break
        found.append(one)
        if len(found) == last:
            break
    found.reverse()
    return found


def resting_moment(footprint: Footprint) -> str | None:
    """Return the moment of ``footprint.rest``."""
    return next((name for name in RESTING if name in footprint.moments), None)


def is_host(view: RankView) -> bool:
    """Whether the rank's device is the machine's RAM, of which malloc tells."""
    card = view.card
    return card is not None and (card.device.kind == "host" or (card.plan is not None and card.plan.host))


def shares_host(view: RankView) -> bool:
    """Whether what is free on its device is free for all ranks of the node."""
    return is_host(view) or (view.card is not None and view.card.device.unified)


def persistent(deviations: list[float], limit: float) -> bool:
    """Whether enough of a rank's last footprints deviate by the limit."""
    return sum(value >= limit for value in deviations) >= PERSISTENT
