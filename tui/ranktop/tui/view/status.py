"""The state of a rank and of a job in few words, each with a shape so that colour is never alone."""

from __future__ import annotations

from typing import Final

from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.words import end_sentence, what_went_wrong
from ranktop.tui.session.nodes import NODE_LOST
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.device_words import health_word
from ranktop.tui.view.findings import mark, style_of
from ranktop.tui.view.gauges import Gauges
from ranktop.tui.view.progress import activity_word
from ranktop.tui.view.text import Glyphs, Line, duration, plain, short_duration

__all__ = [
    "SHORT",
    "device_state",
    "end_sentence",
    "job_state",
    "rank_state",
    "what_went_wrong",
]

SHORT: Final = {
    "parameters": "params",
    "gradients": "grads",
    "optimizer": "optim",
    "activations": "act",
}
"""Names of categories where there is little room."""


def rank_state(view: RankView, finding: Finding | None, glyphs: Glyphs) -> tuple[str, str]:
    """Return what the state column says of a rank, and its style.

    How its process or its device is goes first; ``finding`` is the gravest that has a word for its row.
    """
    state = view.state
    age = "" if view.age is None else duration(view.age)
    if state == "silent":
        return f"{glyphs.silent} silent {age}", "warn"
    if state == NODE_LOST:
        return f"{glyphs.silent} node lost {short_duration(view.age or 0.0)}", "warn"
    if state in ("failed", "killed", "vanished"):
        return f"{glyphs.failed} {_ended(view)}", "bad"
    if state == "ended":
        return f"{glyphs.ended} ended", "dim"
    if state == "missing":
        return f"{glyphs.missing} not seen yet", "dim"
    gauges = Gauges.of(view)
    if state.startswith("device ") and gauges is not None:
        return device_state(gauges, glyphs)
    said = None if finding is None else (f"{mark(finding, glyphs)} {plain(finding.short)}", style_of(finding))
    if finding is not None and said is not None and finding.severity != "info":
        return said
    if state == "starting":
        return said or (f"{glyphs.starting} starting", "dim")
    ails = health_word(gauges) if gauges is not None else ""
    does = activity_word(view)
    plainly = (f"  {does}", "good") if does else ("  ok", "good")
    return (f"{glyphs.alert} {ails}", "warn") if ails else said or plainly


def device_state(gauges: Gauges, glyphs: Glyphs) -> tuple[str, str]:
    """Return in few words in what trouble a rank's device is, and the style."""
    state, since = gauges.trouble, short_duration(gauges.silent_for)
    if state == "lost":
        return f"{glyphs.failed} GPU lost {since}", "bad"
    if state == "reset required":
        return f"{glyphs.alert} reset needed", "bad"
    if state == "no answer":
        return f"{glyphs.silent} no answer {since}", "warn"
    return f"{glyphs.alert} unavailable", "warn"


def _ended(view: RankView) -> str:
    end = view.end
    if end is None:
        return view.state
    if view.state == "killed":
        return plain(end.detail) if end.detail.startswith("SIG") else f"killed {end.code or ''}".rstrip()
    if view.state == "failed":
        kind = plain(end.detail.split(":")[0])
        # An exception's module tells less than its name, and there is room for one of them.
        name = kind.rpartition(".")[2] if " " not in kind and kind else kind or f"exit {end.code}"
        return "out of memory" if name == "OutOfMemoryError" else name
    return "vanished"


def job_state(snapshot: Snapshot, glyphs: Glyphs) -> Line:
    """Say what the job as a whole does; nothing while it simply runs."""
    state = snapshot.state
    culprit = snapshot.culprit()
    if culprit is not None:
        what = "ended: " if state == "ended" else ""
        return ((f"{glyphs.failed} {what}rank {culprit.rank} {_ended(culprit)}", "head bad bold"),)
    if state == "stalled":
        age = "" if snapshot.step_age is None else f" {duration(snapshot.step_age)}"
        return ((f"{glyphs.alert} stalled{age}", "head bad bold"),)
    if state == "ended":
        return ((f"{glyphs.ended} ended", "head bold"),)
    if state == "starting":
        return ((f"{glyphs.starting} starting", "head"),)
    return ()
