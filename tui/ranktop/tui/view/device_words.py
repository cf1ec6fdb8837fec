"""What is wrong with a rank's device, and who else is on it, in sentences and in few words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from ranktop.tui.session.processes import Occupant, Stray, abroad, occupants, strays
from ranktop.tui.session.rank import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.gauges import Gauges
from ranktop.tui.view.text import Glyphs, Unit, count, duration, human, plain, ranges, size

CAUSE: Final = "set_device missing, or torch.load without map_location"
"""How the contexts of other ranks usually come to be on a device."""

_STATES: Final = {
    "lost": "the GPU is lost",
    "reset required": "the GPU needs a reset",
    "no answer": "the driver does not answer for this GPU",
    "unavailable": "the GPU can't be asked",
}
_HUNG: Final = re.compile(r"^no answer from the driver for \d+ s \((.+)\)$")
"""How the agent says in which call the driver is; for how long is told by the age of the values."""
_ASKED: Final = {"reset": "a reset", "reboot": "a reboot of the node"}
_CURES: Final = (
    ("thermal", "; check its cooling"), ("brake", "; check its power supply"),
    ("hardware", "; check its cooling and power supply"),
)  # fmt: skip
"""By a word of the throttle reason. ``hardware slowdown`` is heat, a power brake or too high a draw."""
Told = tuple[str, str]
"""A sentence and its style."""


def ranks_words(ranks: Iterable[int]) -> str:
    """Write ``rank 3`` or ``ranks 1-7``."""
    ranks = tuple(ranks)
    return f"rank{'' if len(ranks) == 1 else 's'} {ranges(ranks)}"


def strangers(snapshot: Snapshot) -> dict[int, Stray]:
    """Return the ranks on whose device other ranks of the job are that have one of their own."""
    found: dict[int, Stray] = {}
    for view in snapshot.ranks:
        sample, detail = view.sample, view.detail
        lone = sample is None or len(sample.device.processes or ()) < 2
        if lone and not (detail is not None and (detail.mps_processes or detail.graphics_processes)):
            continue
        stray = strays(view, snapshot)
        if stray is not None:
            found[view.rank] = stray
    return found


def stray_words(stray: Stray) -> str:
    """Return what the state column says of them."""
    return f"{len(stray.ranks)} stray{'' if len(stray.ranks) == 1 else 's'}"


def stray_sentence(stray: Stray) -> str:
    """Say who is on the device that has another one, with how much, and why that usually is."""
    several = len(stray.ranks) > 1
    if stray.bytes is None:
        what = f"{'have contexts' if several else 'has a context'}"
    else:
        what = f"{'hold' if several else 'holds'} {human(stray.bytes)}"
    return f"{ranks_words(stray.ranks)} {what} on this GPU: {CAUSE}"


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


def trouble_sentence(gauges: Gauges) -> str:
    """Say in what state the device is, why, and how old its values are; empty while it needs no word."""
    state = gauges.trouble
    if not state:
        return ""
    what = _STATES.get(state, f"device: {plain(state)}")
    reason = gauges.reason("device").removeprefix(what).lstrip(" :;,")
    hung = _HUNG.search(reason)
    if hung is not None and state == "no answer":
        reason = f"it hangs in {hung[1]}; see dmesg for Xid"
    oldest = gauges.oldest
    age = f" (for {duration(gauges.silent_for)})" if state in ("lost", "no answer") else ""
    age = age if oldest is None else f" (values are {duration(oldest)} old)"
    if not reason:
        return f"{what}{age}"
    return f"{what}{age}{'' if reason.startswith('(') else ':'} {reason}"


def throttle_sentence(gauges: Gauges, glyphs: Glyphs) -> str:
    """Say by what the device is slowed down when that means that something is wrong."""
    words = gauges.throttled()
    if not words or gauges.old("throttle") is not None:
        return ""
    clock = gauges.get("sm_clock")
    most = gauges.get("max_sm_clock")
    at = "" if clock is None else f", SM at {clock:,}{'' if most is None else f' of {most:,}'} MHz"
    hot = gauges.get("temperature")
    cure = next((cure for word, cure in _CURES if word in " ".join(words).lower()), "")
    return f"this GPU is slowed down: {', '.join(words)}{at}{'' if hot is None else f', {hot} {glyphs.degree}'}{cure}"


def health_word(gauges: Gauges) -> str:
    """Return what the state column says of a device that is slowed down or ails; empty for a sound one."""
    lower = " ".join(gauges.throttled()).lower()
    if lower and gauges.old("throttle") is None:
        return "too hot" if "thermal" in lower else "power brake" if "brake" in lower else "slowed down"
    return next((word for word, _ in ailments(gauges)), "")


def ailments(gauges: Gauges) -> list[tuple[str, str]]:
    """Return what ails the hardware though it works, the worst first: in few words, and in a sentence."""
    found: list[tuple[str, str]] = []
    asked = gauges.get("recovery")
    if asked not in (None, "", "none"):
        found.append((f"{plain(asked)} asked", f"the driver asks for {_ASKED.get(asked, plain(asked))}"))
    if gauges.get("remap_failed"):
        found.append(("remap failed", "a row of memory could not be replaced: replace the GPU"))
    wrong = gauges.get("ecc_uncorrected")
    if wrong:
        found.append(("ECC errors", f"{count(wrong)} uncorrected ECC error{'' if wrong == 1 else 's'}"))
    if gauges.get("remap_pending"):
        found.append(("remap pending", "a row of memory waits to be replaced by a reset"))
    return found


def device_sentences(view: RankView, snapshot: Snapshot, glyphs: Glyphs, *, health: bool = True) -> list[Told]:
    """Return what is wrong with a rank's device and who is on it that should not be, the worst first.

    Without ``health`` nothing is told of what slows it down or ails it: where its readings stand beside.
    """
    gauges = Gauges.of(view)
    if gauges is None:
        return []
    told: list[Told] = []
    trouble = trouble_sentence(gauges)
    if trouble:
        bad = gauges.trouble in ("lost", "reset required")
        mark = glyphs.failed if gauges.trouble == "lost" else glyphs.silent if gauges.trouble == "no answer" else "!"
        told.append((f"{mark} {trouble}", "bad" if bad else "warn"))
    stray = strays(view, snapshot)
    if stray is not None:
        told.append((f"{glyphs.alert} {stray_sentence(stray)}{_as_of(view)}", "bad"))
    away = abroad_sentence(view, snapshot)
    if away:
        told.append((f"{glyphs.alert} {away}", "warn"))
    if trouble or not health:
        return told
    slowed = throttle_sentence(gauges, glyphs)
    if slowed:
        told.append((f"{glyphs.alert} {slowed}", "warn"))
    ill = ailments(gauges)
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
