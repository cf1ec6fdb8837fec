"""What is wrong with a rank's device, and who else is on it, in sentences and in few words."""

from __future__ import annotations

from collections.abc import Container, Mapping

from ranktop.tui.session.findings.device_words import (
    CAUSE,
    ailments,
    health_word,
    strangers,
    stray_sentence,
    stray_words,
    throttle_sentence,
    trouble_sentence,
)
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.gauges import Gauges
from ranktop.tui.session.processes import Occupant, abroad, occupants, strays
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.text import Glyphs, Unit, duration, human, size

__all__ = [
    "Told",
    "abroad_sentence",
    "ailments",
    "device_sentences",
    "grouped",
    "health_word",
    "other_sentence",
    "parts_of_other",
    "ranks_words",
    "strangers",
    "stray_sentence",
    "stray_words",
    "throttle_sentence",
    "trouble_sentence",
    "unknown_sentences",
]

Told = tuple[str, str]
"""A sentence and its style."""


def abroad_sentence(view: RankView, snapshot: Snapshot) -> str:
    """Say on which other ranks' GPUs this one has a context; empty when on none."""
    places = abroad(view, snapshot)
    if not places:
        return ""
    sizes = [size for _, size in places if size is not None]
    held = f"also holds {human(sum(sizes))}" if len(sizes) == len(places) else "also has a context"
    whose = f"rank {places[0][0]}'s GPU" if len(places) == 1 else f"the GPUs of {ranks_words(r for r, _ in places)}"
    as_of = _as_of(snapshot.rank(places[0][0])) if len(places) == 1 else ""
    return f"rank {view.rank} {held} on {whose}: {CAUSE}{as_of}"


def _as_of(view: RankView | None) -> str:
    """Say when a device's processes were listed, where that is no longer now."""
    gauges = Gauges.of(view) if view is not None else None
    old = gauges.old("processes") if gauges is not None else None
    return "" if old is None else f" (as of {duration(old)} ago)"


def device_sentences(
    view: RankView, snapshot: Snapshot, glyphs: Glyphs, *, health: bool = True, known: Container[str] = ()
) -> list[Told]:
    """Return what is wrong with a rank's device and who is on it that should not be, the worst first.

    Without ``health`` nothing is told of what slows it down or ails it: where its readings stand beside. Neither is
    what the rules in ``known`` (``strays``, ``throttle``, ``device``) have said of the rank.
    """
    gauges = Gauges.of(view)
    if gauges is None:
        return []
    told: list[Told] = []
    trouble = trouble_sentence(gauges)
    if trouble and "device" not in known:
        bad = gauges.trouble in ("lost", "reset required")
        mark = glyphs.failed if gauges.trouble == "lost" else glyphs.silent if gauges.trouble == "no answer" else "!"
        told.append((f"{mark} {trouble}", "bad" if bad else "warn"))
    stray = None if "strays" in known else strays(view, snapshot)
    if stray is not None:
        told.append((f"{glyphs.alert} {stray_sentence(stray)}{_as_of(view)}", "bad"))
    away = "" if "strays" in known else abroad_sentence(view, snapshot)
    if away:
        told.append((f"{glyphs.alert} {away}", "warn"))
    if trouble or not health:
        return told
    slowed = "" if "throttle" in known else throttle_sentence(gauges, glyphs)
    if slowed:
        told.append((f"{glyphs.alert} {slowed}", "warn"))
    ill = [] if "device" in known else ailments(gauges)
    if ill:
        told.append((f"{glyphs.alert} this GPU: {', '.join(text for _, text in ill)}", "warn"))
    return told


def unknown_sentences(view: RankView) -> list[Told]:
    """Name the readings that an otherwise sound GPU does not give, those of one reason together."""
    gauges = Gauges.of(view)
    if gauges is None or gauges.trouble or gauges.identity.kind != "cuda" or gauges.reading.state == "pending":
        return []
    return [(f"not known: {text}", "dim") for text in grouped(gauges.unknown(detail=False))]


def grouped(reasons: Mapping[str, list[str]]) -> list[str]:
    """Return ``names: reason`` for each reason."""
    return [f"{', '.join(names)}: {reason}" if reason else ", ".join(names) for reason, names in reasons.items()]


def other_sentence(view: RankView, snapshot: Snapshot, unit: Unit) -> list[Told]:
    """Say what ``other`` is made of; nothing where it is one part, which its row has room for."""
    parts = parts_of_other(view, snapshot)
    if len(parts) < 2:
        return []
    words = {"driver": "reserved by the driver"}
    told = [f"{size(held, unit, 2)} {unit.name} {words.get(name, f'of {name}')}" for name, held in parts]
    return [(f"other: {', '.join(told)}", "dim")]


def parts_of_other(view: RankView, snapshot: Snapshot) -> list[tuple[str, int]]:
    """Return what the category ``other`` is made of as far as it is told: the driver, ranks of this job, others."""
    sample = view.sample
    if sample is None or (view.detail is not None and "processes" in view.detail.of_parent):
        return []
    ranks: dict[int, int] = {}
    rest: list[Occupant] = []
    for one in occupants(view, snapshot.owners):
        if one.rank is None:
            rest.append(one)
        elif one.rank != view.rank:
            ranks[one.rank] = ranks.get(one.rank, 0) + (one.bytes or 0)
    parts: list[tuple[str, int]] = []
    if ranks:
        parts.append((ranks_words(ranks), sum(ranks.values())))
    if sample.device.reserved:
        parts.append(("driver", sample.device.reserved))
    if rest:
        parts.append(
            (f"{len(rest)} other process{'' if len(rest) == 1 else 'es'}", sum(one.bytes or 0 for one in rest))
        )
    return [(name, held) for name, held in parts if held]
