"""A session as a viewer would have it who asked at one time of a recording."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from ranktop.tui.replay.tape import Kept, Tape, is_sample, received
from ranktop.tui.session.source import Reset, Whole
from ranktop.tui.session.state import Session, Snapshot
from ranktop.wire.codec import WireError, decode_header

if TYPE_CHECKING:
    from ranktop.tui.session.findings.finding import Finding

HUB = "recording"

BEFORE_THE_END: Final = 0.01
"""Seconds before the first rank's end at which the findings of a run are asked for."""


def session_at(recording: Tape, t: float | None = None) -> Session:
    """Return the job as it was at ``t`` seconds on the recording's clock, by default at its end.

    The session's clock stands there: ages, silence and findings are those of that time. Where samples are kept seldom,
    it stands at the last of them: what was thinned out is not missing.
    """
    at = recording.end if t is None else min(max(t, recording.begin), recording.end)
    told = list(recording.state_at(at))
    if Kept(recording).step(at):
        at = max((item.t for item in told if is_sample(item)), default=at)
    session = Session(lambda: at)
    start = Reset(job=recording.job, hub=HUB, replaced=False, parts=True)
    session.feed(chain([start], received(told, at, recording.spacing), [Whole()]))
    return session


def parting(recording: Tape) -> float | None:
    """Return when the first rank of those that spoke last has ended; None while none has."""
    found: float | None = None
    for item in recording.events():
        try:
            kind = decode_header(item.header).kind
        except WireError:
            continue
        if kind == "card":
            found = None
        elif kind == "end" and found is None:
            found = item.t
    return found


def last_findings(
    recording: Tape, parted: float | None, at_end: Snapshot | None = None
) -> dict[tuple[str, str, tuple[int, ...]], tuple[Finding, Snapshot]]:
    """Return the findings of a run's end, each with the look that found it, by what makes them the same.

    What is out of line is found by comparing ranks that speak: once all have gone, nothing is. So they are asked for
    before the first rank ended (``parted``, None: none has) too. ``at_end``: the end, where it was looked at already.
    """
    looks = [session_at(recording, parted - BEFORE_THE_END).snapshot()] if parted is not None else []
    looks.append(at_end if at_end is not None else session_at(recording).snapshot())
    return {finding.key: (finding, look) for look in looks for finding in look.findings}
