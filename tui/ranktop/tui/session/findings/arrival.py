"""Who comes last at the collectives: ranks of one node look at their positions at the same instants.

Where members of a group disagree, those with the lowest position are who the others wait for. It is the only way to see
a rank that is slow inside a phase in which ranks wait for each other: there all phases take equally long.

Being ahead is not yet waiting: DDP's buckets are enqueued without a pause, and a rank that is late is late at each of
them. So a look counts only where all others have come equally far, and under DDP only where they have come to the end
of their step's collectives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ranktop.tui.session.findings.pace import MANY, Paced, median
from ranktop.tui.session.findings.pace import of as paces
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.rank import RankView
from ranktop.wire.schema import LOOK_SECONDS, Look

FEWEST_LOOKS: Final = 40
"""Looks below which nothing is said: ten seconds."""

SHORTEST_STEP: Final = 0.05
"""Seconds; in shorter steps a look that is a few milliseconds late sees another state."""

FEWEST_STEPS: Final = 6
"""Steps that the looks must span."""

FIRST_GLANCE: Final = 48
"""Newest looks that tell, in a job of many ranks, which nodes are worth a full one."""

GLANCE_SHARE: Final = 0.03
MOST_PER_STEP: Final = 40
"""Collectives of a step up to which the looks tell how many there are."""

WHOLE: Final = 0.15
"""How far from a whole number they may seem to be."""

BUCKETS: Final = 8
"""Parts of a step; the looks must fall into most of them, or they see the same moment of each step."""

Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arrival:
    """How often the others of its node wait for one rank, as shares of the looks."""

    share: float
    peers: float
    """The same for its peers, by median."""
    error: float
    """Standard error of ``share``."""
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


def of(scene: Scene) -> Mapping[int, Arrival]:
    """Return the ranks for which others of their node wait at all."""
    return scene.once("arrival", _arrivals)


def _arrivals(scene: Scene) -> Mapping[int, Arrival]:
    found: dict[int, Arrival] = {}
    many = len(scene.snapshot.ranks) > MANY
    for paced in paces(scene):
        if paced.step < SHORTEST_STEP or not _seen_at_all_times(paced):
            continue
        for node, members in _by_node(paced).items():
            if many and not _worth_a_look(members):
                continue
            for name, places in _groups(members).items():
                for rank, arrival in _in_group(name, node, places, paced).items():
                    known = found.get(rank)
                    if known is None or arrival.lag > known.lag:
                        found[rank] = arrival
    return found


def _by_node(paced: Paced) -> dict[str, list[RankView]]:
    nodes: dict[str, list[RankView]] = {}
    for pace in paced.members.values():
        view = pace.view
        if view.card is not None and len(view.looks) >= FEWEST_LOOKS:
            nodes.setdefault(view.card.node, []).append(view)
    return {node: members for node, members in nodes.items() if len(members) > 1}


Place = tuple[int, Sequence[Look], int]
"""(rank, its looks, index of the group in them)."""


def _groups(members: Sequence[RankView], newest: int | None = None) -> dict[str, list[Place]]:
    found: dict[tuple[str, int | None], list[Place]] = {}
    for view in members:
        if view.sample is None:
            continue
        looks = list(view.looks)[-newest:] if newest is not None else list(view.looks)
        for index, group in enumerate(view.sample.collectives.groups):
            found.setdefault((group.name, group.size), []).append((view.rank, looks, index))
    # More ranks than the group has: several groups go by that name.
    return {
        name: places for (name, size), places in found.items() if len(places) > 1 and (not size or len(places) <= size)
    }


def _worth_a_look(members: Sequence[RankView]) -> bool:
    for places in _groups(members, FIRST_GLANCE).values():
        rows = _rows(places)
        behind = [slot for who in _behind(rows, len(places)) for slot in who]
        if len(behind) >= max(3.0, GLANCE_SHARE * len(rows)):
            return True
    return False


def _rows(places: Sequence[Place]) -> list[Row]:
    """Return the positions of all members, one row for each slot in which all of them looked."""
    firsts = [looks[0].slot for _, looks, _ in places]
    lasts = [looks[-1].slot for _, looks, _ in places]
    start, end = max(firsts), min(lasts)
    if end <= start:
        return []
    whole = all(
        last - first == len(looks) - 1 for first, last, (_, looks, _) in zip(firsts, lasts, places, strict=True)
    )
    if whole:
        try:
            columns = [
                [look.positions[index] for look in looks[start - first : end - first + 1]]
                for first, (_, looks, index) in zip(firsts, places, strict=True)
            ]
        except IndexError:  # the group was made meanwhile
            whole = False
    if not whole:
        columns = _columns(places)
    if any(None in column for column in columns):
        return [row for row in zip(*columns, strict=True) if None not in row]
    return list(zip(*columns, strict=True))


def _columns(places: Sequence[Place]) -> list[list[int | None]]:
    seen = [
        {look.slot: look.positions[index] for look in looks if len(look.positions) > index}
        for _, looks, index in places
    ]  # fmt: skip
    common = set(seen[0]).intersection(*seen[1:])
    return [[one[slot] for slot in sorted(common)] for one in seen]


def _behind(rows: Sequence[Row], members: int, stop: tuple[int, int] | None = None) -> list[list[int]]:
    """Return for each member the rows in which the others wait for it: few at the lowest position, all others equal.

    ``stop``: (collectives of a step, where in a step the others must be), when that is known.
    """
    most = max(1, members // 4)
    found: list[list[int]] = [[] for _ in range(members)]
    for number, row in enumerate(rows):
        if row.count(row[0]) == members:
            continue
        low, top = min(row), max(row)
        count = row.count(low)
        if count > most or row.count(top) != members - count or (stop is not None and top % stop[0] != stop[1]):
            continue
        if count == 1:
            found[row.index(low)].append(number)
        else:
            for index, position in enumerate(row):
                if position == low:
                    found[index].append(number)
    return found


def _stop(rows: Sequence[Row], step: float) -> tuple[int, int] | None:
    """Return how many collectives a step has, and at which of them ranks stay longest: all else of the step."""
    tops = [max(row) for row in rows]
    per_step = (tops[-1] - tops[0]) * step / ((len(rows) - 1) * LOOK_SECONDS)
    whole = round(per_step)
    if not 1 <= whole <= MOST_PER_STEP or abs(per_step - whole) > WHOLE:
        return None
    places = [top % whole for top in tops]
    return whole, max(range(whole), key=places.count)


def _in_group(name: str, node: str, places: Sequence[Place], paced: Paced) -> dict[int, Arrival]:
    rows = _rows(places)
    if len(rows) < FEWEST_LOOKS or len(rows) * LOOK_SECONDS < FEWEST_STEPS * paced.step:
        return {}
    longest = int(max(1.0, paced.step) / LOOK_SECONDS)
    stop = _stop(rows, paced.step) if paced.overlapping else None
    behind = [_without_pauses(numbers, longest) for numbers in _behind(rows, len(places), stop)]
    total = len(rows)
    found: dict[int, Arrival] = {}
    for index, (rank, _, in_looks) in enumerate(places):
        numbers = behind[index]
        if not numbers:
            continue
        share = len(numbers) / total
        quarters = [0] * 4
        for number in numbers:
            quarters[4 * number // total] += 1
        found[rank] = Arrival(
            share=share, error=(share * (1 - share) / total) ** 0.5, looks=total, group=name, node=node,
            peers=median([len(other) / total for place, other in enumerate(behind) if place != index]),
            quarters=tuple(4 * count / total for count in quarters), members=len(places), exact=stop is not None,
            places=tuple(rows[number][index] for number in numbers), index=in_looks,
        )  # fmt: skip
    return found


def _without_pauses(numbers: Sequence[int], longest: int) -> list[int]:
    """Leave out what lasted: a rank that saves a checkpoint now and then keeps the others waiting, but is not slow."""
    kept: list[int] = []
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            kept += run if len(run) <= longest else []
            run = []
        run.append(number)
    return kept + (run if len(run) <= longest else [])


def _seen_at_all_times(paced: Paced) -> bool:
    """Tell whether looks fall into all parts of a step: not where a step takes just a multiple of their spacing."""
    pace = next(iter(paced.members.values()))
    looks = len(pace.view.looks) or 1
    wander = (
        median([abs(one - pace.step) for one in pace.seconds]) / pace.step * (looks * LOOK_SECONDS / pace.step) ** 0.5
    )
    buckets = {int(BUCKETS * ((index * LOOK_SECONDS / pace.step) % 1.0)) for index in range(min(looks, 240))}
    return wander > 1 / BUCKETS or len(buckets) > BUCKETS // 2
