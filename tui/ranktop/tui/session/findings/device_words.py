"""What is wrong with a rank's device, and who else is on it: the same words in findings and on the screens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.gauges import Gauges
from ranktop.tui.session.processes import Stray, strays
from ranktop.tui.view.text import Glyphs, count, duration, human, plain

if TYPE_CHECKING:
    from ranktop.tui.session.state import Snapshot

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


def stray_sentence(stray: Stray, device: str = "this GPU") -> str:
    """Say who is on the device that has another one, with how much, and why that usually is."""
    several = len(stray.ranks) > 1
    if stray.bytes is None:
        what = f"{'have contexts' if several else 'has a context'}"
    else:
        what = f"{'hold' if several else 'holds'} {human(stray.bytes)}"
    return f"{ranks_words(stray.ranks)} {what} on {device}: {CAUSE}"


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
