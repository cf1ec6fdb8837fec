"""Devices whose clocks are held down by heat, a power brake or the board's own protection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from ranktop.tui.session.findings.device import by_device
from ranktop.tui.session.findings.device_words import health_word, throttle_sentence
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.groups import LIVELY
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.gauges import Gauges
from ranktop.tui.session.rank import RankView
from ranktop.tui.view.text import UNICODE

BELOW_MAX: Final = 0.95
"""Share of the highest SM clock below which a device's clock is held down."""

BELOW_PEERS: Final = 0.97
"""... and of the median of its peers: under load all of them may run below their highest clock."""


def throttle(scene: Scene) -> Iterable[Finding]:
    """Find devices that name a harmful reason and do run slower, one finding a device.

    The software's power cap is how a busy GPU works, and no finding.
    """
    usual = _peers_clocks(scene)
    for members in by_device(scene.snapshot.ranks):
        view = members[0]
        gauges = Gauges.of(view)
        if gauges is None or view.state not in LIVELY:
            continue
        sentence = throttle_sentence(gauges, UNICODE)
        if sentence and (held := _held_down(gauges, usual.get(view.rank))) is not False:
            yield _finding(members, gauges, sentence, usual.get(view.rank), sure=held is True)


def _peers_clocks(scene: Scene) -> Mapping[int, float]:
    """Return for each rank the median SM clock of its peers, itself left out."""
    found: dict[int, float] = {}
    for group in scene.groups:
        clocks = {view.rank: clock for view in group.members if (clock := _clock(view)) is not None}
        if len(clocks) > 1:
            middle = median(clocks.values())
            few = len(clocks) <= 3
            for rank in clocks:
                found[rank] = median(v for r, v in clocks.items() if r != rank) if few else middle
    return found


def _clock(view: RankView) -> int | None:
    return view.sample.device.sm_clock if view.sample is not None else None


def _held_down(gauges: Gauges, usual: float | None) -> bool | None:
    """Tell whether the clock is lower than it could be; None where nobody can say."""
    clock, most = gauges.get("sm_clock"), gauges.get("max_sm_clock")
    if clock is None or (most is None and usual is None):
        return None
    below_max = most is not None and clock < BELOW_MAX * most
    return below_max or (usual is not None and clock < BELOW_PEERS * usual)


def _finding(members: Sequence[RankView], gauges: Gauges, sentence: str, usual: float | None, *, sure: bool) -> Finding:
    ranks = tuple(view.rank for view in members)
    return Finding(
        rule="throttle",
        severity="warning",
        ranks=ranks,
        sentence=f"{ranks_words(ranks)}: {sentence}",
        short=health_word(gauges),
        evidence=(
            Evidence("throttle", ", ".join(gauges.throttled())),
            Evidence("SM clock", gauges.get("sm_clock"), "MHz"),
            Evidence("highest SM clock", gauges.get("max_sm_clock"), "MHz"),
            Evidence("median SM clock of its peers", usual, "MHz"),
            Evidence("temperature", gauges.get("temperature"), "°C"),
            Evidence("slowdown temperature", gauges.get("temperature_slowdown"), "°C"),
            Evidence("power", gauges.get("power"), "W"),
            Evidence("power limit", gauges.get("power_limit"), "W"),
        ),
        advice="until that is mended the whole job goes at the pace of this GPU: take its node out, or lower the load",
        confidence="medium" if sure else "low",
    )
