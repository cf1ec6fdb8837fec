"""A session as a viewer would have it who asked at one time of a recording."""

from __future__ import annotations

from itertools import chain

from ranktop.tui.replay.tape import Kept, Tape, is_sample, received
from ranktop.tui.session.source import Reset, Whole
from ranktop.tui.session.state import Session

HUB = "recording"


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
