"""Who comes last at the collectives: ranks of one node look at their positions at the same instants.

Where members of a group disagree, those with the lowest position are who the others wait for. It is the only way to see
a rank that is slow inside a phase in which ranks wait for each other: there all phases take equally long.

Being ahead is not yet waiting: DDP's buckets are enqueued without a pause, and a rank that is late is late at each of
them. So a look counts only where all others have come equally far, and under DDP only where they have come to the end
of their step's collectives.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ranktop.tui.session.findings.pace import Paced, median
from ranktop.tui.session.findings.pace import of as paces
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.looks import Looks
from ranktop.tui.session.rank_view import RankView
from ranktop.wire.look_times import time_of
from ranktop.wire.schema import LOOK_SECONDS, Look

FEWEST_LOOKS: Final = 40
"""Looks below which nothing is said: ten seconds."""

SHORTEST_STEP: Final = 0.05
"""Seconds; in shorter steps a look that is a few milliseconds late sees another state."""

FEWEST_STEPS: Final = 6
"""Steps that the looks must span."""

MOST_PER_STEP: Final = 40
"""Collectives of a step up to which the looks tell how many there are."""

WHOLE: Final = 0.15
"""How far from a whole number they may seem to be."""

LEAST_USUAL: Final = 0.002
"""Share of the looks in which a sound rank may be the one that others wait for, however seldom its peers are."""

MORE_THAN_USUAL: Final = 1.2
"""How much more often than the mean of its peers a sound rank may be."""


LEFT_OUT: Final = 20
"""One in so many ranks, those that are waited for most, tells nothing of what is usual."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """How often the others of its node wait for one rank, as shares of the looks."""

    share: float
    peers: float
    """The same for its peers on the node, by median."""
    usual: float
    """The same for a sound rank, by all of its peers; on the safe side."""
    events: int
    """Times that it is waited for: looks that follow each other are one."""
    quarters: tuple[float, ...]
    """``share`` in each quarter of the time."""
    looks: int
    group: str
    """Process group in which it is seen."""
    node: str
    members: int
    """Ranks of that group on the node."""
    exact: bool
    """False: some of it may be a rank that is behind while nobody waits yet."""
    places: tuple[int, ...]
    """Its position whenever it is waited for."""
    index: int
    """Of the group among those of the rank."""

    @property
    def lag(self) -> float:
        """Share of the time in which others wait for it more than for its peers."""
        return self.share - self.peers

    @property
    def error(self) -> float:
        """Standard error of ``share``; two looks more, one with and one without, keep it honest for few."""
        share = (self.share * self.looks + 1) / (self.looks + 2)
        return float((share * (1 - share) / (self.looks + 2)) ** 0.5)


def of(scene: Scene) -> Mapping[int, Arrival]:
    """Return the ranks for which others of their node wait at all."""
    return scene.once("arrival", _arrivals)


class _Row(NamedTuple):
    """One look of all members."""

    slot: int
    top: int
    """Highest position."""
    low: int
    who: tuple[int, ...]
    """Members at the lowest position, where they are few and all others have come equally far; else empty."""


@dataclass(slots=True)
class _Rows:
    """The looks of one group's members on a node, those in which all of them looked; kept from look to look."""

    rows: deque[_Row] = field(default_factory=deque)
    last: int = -1
    """Slot up to which all is judged."""


Place = tuple[int, Sequence[Look], int]
"""(rank, its looks, index of the group in them)."""


def _arrivals(scene: Scene) -> Mapping[int, Arrival]:
    found: dict[int, Arrival] = {}
    known: dict[object, _Rows] = scene.memory.setdefault("arrival", {})
    kept: dict[object, _Rows] = {}
    for paced in paces(scene):
        if paced.step < SHORTEST_STEP:
            continue
        here: list[_Seen] = []
        for node, members in _by_node(paced).items():
            for name, places in _groups(members).items():
                lives = tuple((view.rank, view.restart, view.card and view.card.pid) for view in members)
                key = (node, name, lives, tuple(index for _, _, index in places))
                rows = kept[key] = known.get(key) or _Rows()
                _read(rows, places)
                seen = _in_group(name, node, places, rows.rows, paced)
                if seen is not None:
                    here.append(seen)
        for rank, arrival in _arrived(here).items():
            before = found.get(rank)
            if before is None or arrival.lag > before.lag:
                found[rank] = arrival
    scene.memory["arrival"] = kept
    return found


def _by_node(paced: Paced) -> dict[str, list[RankView]]:
    nodes: dict[str, list[RankView]] = {}
    for pace in paced.members.values():
        view = pace.view
        if view.card is not None and len(view.looks) >= FEWEST_LOOKS:
            nodes.setdefault(view.card.node, []).append(view)
    return {node: members for node, members in nodes.items() if len(members) > 1}


def _groups(members: Sequence[RankView]) -> dict[str, list[Place]]:
    found: dict[tuple[str, int | None], list[Place]] = {}
    for view in members:
        if view.sample is None:
            continue
        for index, group in enumerate(view.sample.collectives.groups):
            found.setdefault((group.name, group.size), []).append((view.rank, view.looks, index))
    # More ranks than the group has: several groups go by that name.
    return {
        name: places for (name, size), places in found.items() if len(places) > 1 and (not size or len(places) <= size)
    }


def _read(rows: _Rows, places: Sequence[Place]) -> None:
    """Judge the looks that are new, and forget those that a member no longer has."""
    start, end = max(looks[0].slot for _, looks, _ in places), min(looks[-1].slot for _, looks, _ in places)
    most, members = max(1, len(places) // 4), len(places)
    alike = len({index for _, _, index in places}) == 1
    for slot, row in _new(places, max(start, rows.last + 1), end):
        # Compared as they are, all groups at once: mostly all have come equally far in all of them.
        if alike and row.count(row[0]) == members:
            positions: list[int | None] = [_of_group(row[0], places[0][2])]
        else:
            positions = [_of_group(one, place[2]) for one, place in zip(row, places, strict=True)]
        if None in positions:
            continue
        known = [position or 0 for position in positions]
        low, top = min(known), max(known)
        count = known.count(low)
        waited = low != top and count <= most and known.count(top) == members - count
        who = tuple(index for index, position in enumerate(known) if position == low) if waited else ()
        rows.rows.append(_Row(slot, top, low, who))
    rows.last = max(rows.last, end)
    while rows.rows and rows.rows[0].slot < start:
        rows.rows.popleft()


def _of_group(positions: tuple[int | None, ...], index: int) -> int | None:
    """Return one group's position; a group that was made meanwhile has none in older looks."""
    return positions[index] if index < len(positions) else None


def _new(places: Sequence[Place], first: int, last: int) -> Iterable[tuple[int, tuple[tuple[int | None, ...], ...]]]:
    """Return (slot, positions of all members in it) from one slot to another, where all members looked."""
    tails = [_between(looks, first, last) for _, looks, _ in places]
    slots = [slot for slot, _ in tails[0]]
    if all(len(tail) == len(slots) for tail in tails) and len(slots) == last - first + 1:
        return zip(slots, zip(*[[positions for _, positions in tail] for tail in tails], strict=True), strict=True)
    seen = [dict(tail) for tail in tails]
    common = sorted(set(seen[0]).intersection(*seen[1:]))
    return [(slot, tuple(one[slot] for one in seen)) for slot in common]


def _between(looks: Sequence[Look], first: int, last: int) -> list[tuple[int, tuple[int | None, ...]]]:
    if isinstance(looks, Looks):
        return looks.between(first, last)
    return [(look.slot, look.positions) for look in looks if first <= look.slot <= last]


def _stop(rows: Sequence[_Row], step: float) -> tuple[int, int] | None:
    """Return how many collectives a step has, and at which of them ranks stay longest: all else of the step."""
    per_step = (rows[-1].top - rows[0].top) * step / (time_of(rows[-1].slot) - time_of(rows[0].slot))
    whole = round(per_step)
    if not 1 <= whole <= MOST_PER_STEP or abs(per_step - whole) > WHOLE:
        return None
    places = [row.top % whole for row in rows]
    return whole, max(range(whole), key=places.count)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the looks of one group's members on a node say."""

    name: str
    node: str
    places: Sequence[Place]
    exact: bool
    looks: int
    behind: list[list[tuple[int, int]]]
    """For each member: (number of the look, its position) whenever it is waited for."""
    events: list[int]
    """For each member: how many times, looks that follow each other counted as one."""


def _in_group(name: str, node: str, places: Sequence[Place], rows: Sequence[_Row], paced: Paced) -> _Seen | None:
    if len(rows) < FEWEST_LOOKS or len(rows) * LOOK_SECONDS < FEWEST_STEPS * paced.step:
        return None
    longest = int(max(1.0, paced.step) / LOOK_SECONDS)
    stop = _stop(rows, paced.step) if paced.overlapping else None
    behind: list[list[tuple[int, int]]] = [[] for _ in places]
    for number, row in enumerate(rows):
        if row.who and (stop is None or row.top % stop[0] == stop[1]):
            for index in row.who:
                behind[index].append((number, row.low))
    kept = [_without_pauses(one, longest) for one in behind]
    return _Seen(name, node, places, stop is not None, len(rows), [one for one, _ in kept], [runs for _, runs in kept])


def _without_pauses(behind: Sequence[tuple[int, int]], longest: int) -> tuple[list[tuple[int, int]], int]:
    """Leave out what lasted: a rank that saves a checkpoint now and then keeps the others waiting, but is not slow.

    Also return how many times it was behind.
    """
    kept: list[tuple[int, int]] = []
    run: list[tuple[int, int]] = []
    runs = 0
    for one in (*behind, None):
        if run and (one is None or one[0] != run[-1][0] + 1):
            if len(run) <= longest:
                kept += run
                runs += 1
            run = []
        if one is not None:
            run.append(one)
    return kept, runs


def _usual(counts: Sequence[tuple[int, int]]) -> float:
    """Return in which share of the looks a sound rank may be waited for, from (times, looks) of all ranks.

    Ranks are not quite alike: what their counts differ by more than chance is added to the mean. The few that are
    waited for most are left out, or they would hide themselves and each other.
    """
    shares = sorted(count / looks for count, looks in counts)
    shares = shares[: len(shares) - max(1, len(shares) // LEFT_OUT)]
    if not shares:
        return LEAST_USUAL
    mean = sum(shares) / len(shares)
    by_chance = mean * sum(1 / looks for _, looks in counts) / len(counts)
    beyond = sum((share - mean) ** 2 for share in shares) / len(shares) - by_chance
    return max(LEAST_USUAL, MORE_THAN_USUAL * mean + math.sqrt(max(0.0, beyond)))


def _arrived(seen: Sequence[_Seen]) -> dict[int, Arrival]:
    """Return how often each rank is waited for beside all of its peers, those of other nodes included."""
    found: dict[int, Arrival] = {}
    usual = _usual([(count, one.looks) for one in seen for count in one.events])
    for one in seen:
        for index, (rank, _, in_looks) in enumerate(one.places):
            behind, total = one.behind[index], one.looks
            if not behind:
                continue
            share = len(behind) / total
            quarters = [0] * 4
            for number, _ in behind:
                quarters[4 * number // total] += 1
            arrival = Arrival(
                share=share, looks=total, group=one.name, node=one.node, events=one.events[index],
                usual=usual,
                peers=median([len(other) / total for place, other in enumerate(one.behind) if place != index]),
                quarters=tuple(4 * count / total for count in quarters), members=len(one.places), exact=one.exact,
                places=tuple(position for _, position in behind), index=in_looks,
            )  # fmt: skip
            before = found.get(rank)
            if before is None or arrival.lag > before.lag:
                found[rank] = arrival
    return found
