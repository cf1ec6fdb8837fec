"""How a recorded job ended, in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranktop.tui.session.findings.death import culprit, told_to_go
from ranktop.tui.session.rank_view import RankView, end_state
from ranktop.tui.view.text import plain
from ranktop.wire.codec import WireError, decode_body, decode_header
from ranktop.wire.recording_file import TOLD_TO_GO, RecordingError, unpack_body
from ranktop.wire.schema import End, Header, Mark

if TYPE_CHECKING:
    from ranktop.wire.recording import Recording

FINISHED: Final = "finished"
CUT_OFF: Final = "cut off"
"""Nobody has told how it ended: its machine or its hub went away."""

TOLD: Final = "stopped (SIGTERM)"
"""All that was recorded is that the job's processes were told to go; whoever told them did not wait."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, as far as was recorded."""

    words: str
    """``finished``, ``stopped (SIGTERM)``, ``rank 3 failed: RuntimeError: ...``, ``cut off``."""
    ended: float | None
    """Wall clock of the last rank's end, seconds since the epoch; None when no rank's end is known."""


def outcome_of(path: Path, world_size: int) -> Outcome:
    """Return how the job of a recording ended; of one that cannot be read, that."""
    from ranktop.wire.recording import Recording

    try:
        with Recording.open(path) as recording:
            return outcome(recording, world_size)
    except RecordingError as error:
        return Outcome(str(error), None)


def outcome(recording: Recording, world_size: int) -> Outcome:
    """Return how the job ended; RecordingError."""
    lives = recording.rows("SELECT rank, restart, pid FROM lives ORDER BY number LIMIT 1000000")
    last_life = {rank: (restart, pid) for rank, restart, pid in lives}
    ends: dict[int, RankView] = {}
    for t, packed, body in recording.rows(
        "SELECT t, header, body FROM events WHERE kind = 'end' ORDER BY t, number LIMIT 1000000"
    ):
        read = _read(packed, body)
        if read is None:
            continue
        header, end = read
        if last_life.get(header.rank, (header.restart, header.pid)) == (header.restart, header.pid):
            view = RankView(header.rank, end_state(end), None, end=end, ended=float(t), restart=header.restart)
            ends.setdefault(header.rank, view)
    views = tuple(ends.values())
    last = max((view.ended or 0.0 for view in views), default=None)
    ended = None if last is None or len(ends) < len(last_life) else recording.wall(last)
    guilty = culprit(views)
    if guilty is not None and guilty.end is not None:
        return Outcome(_of_culprit(guilty, guilty.end), ended)
    if not views or len(ends) < min(world_size, max(len(last_life), 1)):
        return Outcome(TOLD if _was_told(recording) else CUT_OFF, ended)
    return Outcome(FINISHED, ended)


def _read(packed: bytes, body: bytes) -> tuple[Header, End] | None:
    """Decode one end; None for what can't be read, which must not cost the others."""
    try:
        header = decode_header(packed)
        end = decode_body(header, unpack_body(body))
    except (WireError, RecordingError):
        return None
    return (header, end) if isinstance(end, End) else None


def _was_told(recording: Recording) -> bool:
    """Tell whether the last hub was told to go while its ranks lived, and none has come after it."""
    marks = recording.rows(
        "SELECT header, body FROM events WHERE kind = 'mark' AND rank < 0 "
        "AND t >= (SELECT began FROM hubs ORDER BY id DESC LIMIT 1) ORDER BY number DESC LIMIT 1000"
    )
    for packed, body in marks:
        try:
            mark = decode_body(decode_header(packed), unpack_body(body))
        except (WireError, RecordingError):
            continue
        if isinstance(mark, Mark) and mark.what == TOLD_TO_GO:
            return True
    return False


def _of_culprit(view: RankView, end: End) -> str:
    detail = plain(end.detail)
    if told_to_go(end):
        return f"stopped ({detail or f'signal {end.code}'})"
    if end.how == "signal":
        return f"rank {view.rank} killed: {detail or f'signal {end.code}'}"
    if end.how == "vanished":
        return f"rank {view.rank} vanished"
    return f"rank {view.rank} failed: {detail or f'exit code {end.code}'}"
