"""Devices whose clocks are held down by heat, a power brake or the board's own protection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ranktop.tui.session.findings.device import by_device
from ranktop.tui.session.findings.device_words import health_word, throttle_sentence
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.groups import LIVELY
from ranktop.tui.session.findings.limits import Limits
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.gauges import Gauges
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.view.text import UNICODE, plain

TOGETHER: Final = 3
"""Devices of a node beyond which those with one reason are one finding."""


def throttle(scene: Scene) -> Iterable[Finding]:
    """Find devices that name a harmful reason and do run slower, one finding a device.

    The software's power cap is how a busy GPU works, and no finding.
    """
    usual = _peers_clocks(scene)
    nodes: dict[tuple[str, tuple[str, ...]], list[Held]] = {}
    for members in by_device(scene.snapshot.ranks):
        view = members[0]
        gauges = Gauges.of(view)
        if gauges is None or view.state not in LIVELY:
            continue
        sentence = throttle_sentence(gauges, UNICODE)
        if sentence and (held := _held_down(gauges, usual.get(view.rank), scene.limits)) is not False:
            node = view.card.node if view.card is not None else ""
            found = Held(tuple(one.rank for one in members), gauges, sentence, usual.get(view.rank), held is True)
            nodes.setdefault((node, gauges.throttled()), []).append(found)
    for (node, _), devices in nodes.items():
        if len(devices) > TOGETHER:
            yield _of_node(node, devices)
        else:
            yield from (_finding(one, one.ranks, f"{ranks_words(one.ranks)}: {one.sentence}") for one in devices)


@dataclass(frozen=True, slots=True)
class Held:
    """A device that is held down."""

    ranks: tuple[int, ...]
    gauges: Gauges
    sentence: str
    usual: float | None
    """Median SM clock of its peers."""
    sure: bool
    """Its clock tells so as well."""


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


def _held_down(gauges: Gauges, usual: float | None, limits: Limits) -> bool | None:
    """Tell whether the clock is lower than it could be; None where nobody can say."""
    clock, most = gauges.get("sm_clock"), gauges.get("max_sm_clock")
    if clock is None or (most is None and usual is None):
        return None
    below_max = most is not None and clock < limits["throttle.below_max"] * most
    return below_max or (usual is not None and clock < limits["throttle.below_peers"] * usual)


def _of_node(node: str, devices: Sequence[Held]) -> Finding:
    """Tell of many devices of a node at once: they share its air and its power."""
    ranks = tuple(sorted(rank for one in devices for rank in one.ranks))
    slowest = min(devices, key=lambda one: one.gauges.get("sm_clock") or float("inf"))
    clock = slowest.gauges.get("sm_clock")
    down = "" if clock is None else f", SM down to {clock:,} MHz"
    heat = [hot for one in devices if (hot := one.gauges.get("temperature")) is not None]
    warm = f", up to {max(heat)} {UNICODE.degree}" if heat else ""
    where = f" of {plain(node)}" if node else ""
    words = ", ".join(slowest.gauges.throttled())
    told = f"{len(devices)} GPUs{where} are slowed down: {words}{down}{warm}; check the node's cooling and power supply"
    return _finding(slowest, ranks, f"{ranks_words(ranks)}: {told}")


def _finding(held: Held, ranks: tuple[int, ...], sentence: str) -> Finding:
    gauges = held.gauges
    return Finding(
        rule="throttle",
        severity="warning",
        ranks=ranks,
        sentence=sentence,
        short=health_word(gauges),
        evidence=(
            Evidence("throttle", ", ".join(gauges.throttled())),
            Evidence("SM clock", gauges.get("sm_clock"), "MHz"),
            Evidence("highest SM clock", gauges.get("max_sm_clock"), "MHz"),
            Evidence("median SM clock of its peers", held.usual, "MHz"),
            Evidence("temperature", gauges.get("temperature"), "°C"),
            Evidence("slowdown temperature", gauges.get("temperature_slowdown"), "°C"),
            Evidence("power", gauges.get("power"), "W"),
            Evidence("power limit", gauges.get("power_limit"), "W"),
        ),
        advice="Until that is mended the whole job goes at the pace of its slowest GPU: take the node out, or lower "
        "the load.",
        confidence="medium" if held.sure else "low",
    )
