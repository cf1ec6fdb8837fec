"""When the looks at the collectives' positions are taken: at the same instants by all ranks of a node.

Not evenly: where a step takes a multiple of an even spacing, all looks would see the same moment of it. Each look is
put off by another part of the spacing, at random as it were, but the same for everyone: no step time goes along with
it.
"""

from __future__ import annotations

import math
from typing import Final

from ranktop.wire.schema import LOOK_SECONDS

_MASK: Final = (1 << 32) - 1


def time_of(slot: int) -> float:
    """Return the time of a look by CLOCK_MONOTONIC in seconds, between ``slot`` and ``slot + 1`` times the spacing."""
    mixed = slot & _MASK
    for _ in range(2):
        mixed = (mixed ^ mixed >> 16) * 0x45D9F3B & _MASK
    return (slot + (mixed ^ mixed >> 16) / (_MASK + 1)) * LOOK_SECONDS


def slot_at(now: float) -> int:
    """Return the last slot whose time has come by ``now``."""
    slot = math.floor(now / LOOK_SECONDS)
    return slot if time_of(slot) <= now else slot - 1
