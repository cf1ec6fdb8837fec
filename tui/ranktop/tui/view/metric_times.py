"""Metrics of time that the rules work out as well: a rank's own work, and how often others wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ranktop.tui.session.findings.arrival import FEWEST_LOOKS, SHORTEST_STEP
from ranktop.tui.session.findings.arrival import of as arrivals
from ranktop.tui.session.findings.pace import median
from ranktop.tui.session.findings.pace import of as paces
from ranktop.tui.session.findings.scene import scene
from ranktop.tui.session.state import Snapshot


def own_work(snapshot: Snapshot) -> Mapping[int, float]:
    """Return rank -> seconds of its own work in a step: the step without what the rank waits for others.

    The one that works longest waits for nobody. How much less the others do is seen in the phases in which ranks do not
    wait for each other; work in the other phases by who waits for whom, as far as it is more than that of the peers.
    """
    here = scene(snapshot, memory=snapshot.memory)
    late = arrivals(here)
    out: dict[int, float] = {}
    for paced in paces(here):
        middle = median(pace.own[0].value for pace in paced.members.values())
        seen = {
            rank: max(pace.own[0].value, middle + max(0.0, late[rank].lag if rank in late else 0.0) * paced.step)
            for rank, pace in paced.members.items()
        }
        most = max(seen.values())
        out.update({rank: max(0.0, paced.step - (most - value)) for rank, value in seen.items()})
    return out


def arrival_lags(snapshot: Snapshot) -> Mapping[int, float]:
    """Return rank -> percent of the time in which others of its node wait for it more than for its peers.

    Zero for a rank that was looked at and that nobody waits for.
    """
    here = scene(snapshot, memory=snapshot.memory)
    out: dict[int, float] = {}
    for paced in paces(here):
        if paced.step < SHORTEST_STEP:
            continue
        seen = [pace.view for pace in paced.members.values() if len(pace.view.looks) >= FEWEST_LOOKS]
        nodes = Counter(view.card.node for view in seen if view.card is not None)
        out.update({view.rank: 0.0 for view in seen if view.card is not None and nodes[view.card.node] > 1})
    out.update({rank: 100 * max(0.0, arrival.lag) for rank, arrival in arrivals(here).items()})
    return out
