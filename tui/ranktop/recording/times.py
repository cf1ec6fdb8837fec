"""Times of a recording as a script gives them."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from ranktop.tui.replay.times import NoTime, when
from ranktop.wire.recording import Recording
from ranktop.wire.recording_file import RecordingError

Time = float | str | datetime
"""Seconds since the epoch, a time (without a zone: the local one), or a text as ``ranktop export --from`` takes it."""


def moment(time: Time, recording: Recording) -> float:
    """Return the time on the recording's clock, within the recording. RecordingError for a text that is no time."""
    if isinstance(time, str):
        try:
            return when(time, recording)
        except NoTime as error:
            raise RecordingError(str(error)) from None
    epoch = time.timestamp() if isinstance(time, datetime) else float(time)
    clocks = [*recording.clocks(), (recording.end, recording.wall(recording.end))]
    for (t, wall), (until, _) in pairwise(clocks):
        if wall <= epoch <= wall + (until - t):
            return t + epoch - wall
    return recording.begin if epoch < clocks[0][1] else recording.end
