"""The state of a rank and of a job in few words, each with a shape so that colour is never alone."""

from __future__ import annotations

from typing import Final

from ranktop.tui.session.findings.words import end_sentence, what_went_wrong
from ranktop.tui.session.peers import Outlier
from ranktop.tui.session.processes import Stray
from ranktop.tui.session.rank import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.device_words import health_word, stray_words
from ranktop.tui.view.gauges import Gauges
from ranktop.tui.view.text import Glyphs, Line, Unit, duration, human, plain, short_duration, signed

__all__ = [
    "SHORT",
    "device_state",
    "end_sentence",
    "job_state",
    "outlier_sentence",
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


def rank_state(
    view: RankView, outlier: Outlier | None, unit: Unit, glyphs: Glyphs, stray: Stray | None = None
) -> tuple[str, str]:
    """Return what the state column says of a rank, and its style."""
    state = view.state
    age = "" if view.age is None else duration(view.age)
    if state == "silent":
        return f"{glyphs.silent} silent {age}", "warn"
    if state in ("failed", "killed", "vanished"):
        return f"{glyphs.failed} {_ended(view)}", "bad"
    if state == "ended":
        return f"{glyphs.ended} ended", "dim"
    if state == "missing":
        return f"{glyphs.missing} not seen yet", "dim"
    gauges = Gauges.of(view)
    if state.startswith("device ") and gauges is not None:
        return device_state(gauges, glyphs)
    if stray is not None:
        return f"{glyphs.alert} {stray_words(stray)}", "bad"
    if state == "starting":
        return f"{glyphs.starting} starting", "dim"
    if outlier is not None:
        return f"{glyphs.alert} {_outlier(outlier, unit, glyphs)}", "bad" if outlier.difference > 0 else "warn"
    ails = health_word(gauges) if gauges is not None else ""
    return (f"{glyphs.alert} {ails}", "warn") if ails else ("  ok", "good")


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
        return plain(end.detail.split(":")[0]) or f"exit {end.code}"
    return "vanished"


def _outlier(outlier: Outlier, unit: Unit, glyphs: Glyphs) -> str:
    name = SHORT.get(outlier.category, outlier.category)
    ratio = outlier.ratio
    if ratio is not None and abs(ratio) < 0.995:
        return f"{name} {ratio:+.0%}"
    return f"{name} {signed(outlier.difference, unit, 1, glyphs)}"


def outlier_sentence(rank: int, outlier: Outlier) -> str:
    """Say in a sentence how a rank differs from its peers."""
    ratio = outlier.ratio
    more = "more" if outlier.difference > 0 else "less"
    share = "" if ratio is None else f" ({ratio:+.0%})"
    return f"rank {rank} holds {human(abs(outlier.difference))} {more} {outlier.category} than its peers{share}"


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
