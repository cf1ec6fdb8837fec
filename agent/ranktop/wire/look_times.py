"""When the looks at the collectives' positions are taken: at the same instants by all ranks of a node.

Not evenly: where a step takes a multiple of an even spacing, all looks would see the same moment of it. Each look is put
off by another part of the spacing, and those parts follow the golden ratio, which fills any interval most evenly.
"""

from __future__ import annotations

import math
from typing import Final

from ranktop.wire.schema import LOOK_SECONDS

GOLDEN: Final = (math.sqrt(5) - 1) / 2


def time_of(slot: int) -> float:
    """Return the time of a look by CLOCK_MONOTONIC, in seconds: within ``LOOK_SECONDS`` after ``slot * LOOK_SECONDS``.

    Between two looks are 0.15 or 0.4 s, in the mean ``LOOK_SECONDS``.
    """
    return (slot + slot * GOLDEN % 1.0) * LOOK_SECONDS


def slot_at(now: float) -> int:
    """Return the last slot whose time has come by ``now``."""
    slot = math.floor(now / LOOK_SECONDS)
    return slot if time_of(slot) <= now else slot - 1
