"""Label values: text from the wire made harmless and short, and how many series there may be at most."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from ranktop.wire.codec import clean

MOST_JOBS: Final = 32
"""Jobs that are exported at the same time."""

MOST_RANKS: Final = 4096
"""Ranks that are exported in all, of all jobs together."""

MOST_GROUPS: Final = 8
"""Process groups of a rank that are exported."""

LONGEST: Final = 64
"""Characters of a label's value."""

THROTTLE: Final = frozenset(
    {
        *("idle", "application clocks", "software power cap", "hardware slowdown", "sync boost"),
        *("software thermal slowdown", "hardware thermal slowdown", "hardware power brake", "display clocks"),
        *("board limit", "reliability"),
    }
)
"""Reasons as ``probes.nvml.fast`` names them."""

OTHER: Final = "other"
"""Stands for every word that is none of a closed set."""


@lru_cache(maxsize=8192)
def label(text: str) -> str:
    """Return text as a label's value: one harmless line of at most ``LONGEST`` characters."""
    return clean(text[: 4 * LONGEST]).strip()[:LONGEST]


def known(word: str, words: frozenset[str]) -> str:
    """Return a word of a closed set, or ``other``."""
    return word if word in words else OTHER


def different(texts: Iterable[str]) -> list[str]:
    """Return label values that differ, however alike the texts are; the later of two equal ones gets a number."""
    found: list[str] = []
    taken: set[str] = set()
    for text in texts:
        value, number = label(text), 1
        while value in taken:
            number += 1
            value = f"{label(text)[: LONGEST - 6]}#{number}"
        taken.add(value)
        found.append(value)
    return found
