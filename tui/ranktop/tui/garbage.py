"""How often Python looks for garbage in cycles: seldom. Messages come and go by the thousand and are part of none."""

from __future__ import annotations

import gc
from typing import Final

FEWEST: Final = 20_000
"""Objects beyond those that went after which it is looked for."""

EACH: Final = 200
"""The same for each rank: several samples. Of a thousand ranks a look takes 50 ms, and it would be due every 2 s."""


def collect_seldom(ranks: int = 0) -> None:
    """Look for garbage in cycles as seldom as a job of so many ranks wants it."""
    threshold = max(FEWEST, EACH * ranks)
    if gc.get_threshold()[0] != threshold:
        gc.set_threshold(threshold, 20, 20)
