"""In which phase a rank is behind: where in a step its collectives are, as its samples have caught it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ranktop.tui.session.findings.arrival import Arrival
from ranktop.tui.session.rank_view import Glimpse

FEWEST: Final = 12
"""Samples that must tell of the phase, and steps that they must span."""

MAJORITY: Final = 0.6
"""Share of the looks that must fall into one phase."""


def phase_behind(glimpses: Sequence[Glimpse], arrival: Arrival) -> str:
    """Return the phase in which the others wait for a rank; empty where its samples do not tell."""
    seen = [
        (glimpse.step, glimpse.phase, position)
        for glimpse in glimpses
        if len(glimpse.positions) > arrival.index and (position := glimpse.positions[arrival.index]) is not None
    ]
    per_step = _collectives_of_a_step([(step, position) for step, _, position in seen])
    if per_step is None:
        return ""
    phases: dict[int, Counter[str]] = {}
    for _, phase, position in seen:
        phases.setdefault(position % per_step, Counter())[phase] += 1
    votes: Counter[str] = Counter()
    for place in arrival.places:
        known = phases.get(place % per_step)
        if known is not None:
            votes[known.most_common(1)[0][0]] += 1
    phase, count = votes.most_common(1)[0] if votes else ("", 0)
    enough = count >= MAJORITY * sum(votes.values()) and sum(votes.values()) >= len(arrival.places) / 2
    return phase if enough else ""


def _collectives_of_a_step(seen: Sequence[tuple[int, int]]) -> int | None:
    """Return how many collectives a step has; None where it is not the same in all steps, or too little was seen.

    With the right number what a sample has beyond its finished steps stays within one step; any other drifts.
    """
    if len(seen) < FEWEST:
        return None
    steps, positions = seen[-1][0] - seen[0][0], seen[-1][1] - seen[0][1]
    if steps < FEWEST or positions <= 0:
        return None
    rough = positions / steps
    margin = 1 + rough / steps
    best, least = None, 0
    for wanted in range(max(1, int(rough - margin)), int(rough + margin) + 2):
        beyond = [position - wanted * step for step, position in seen]
        width = max(beyond) - min(beyond)
        if best is None or width < least:
            best, least = wanted, width
    return best if best is not None and least <= best else None
