"""``ranktop replay``: the dashboard on a recording; without a terminal what it shows at one time, printed."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ranktop.tui.cli import FAILED, FOUND, USAGE, fail
from ranktop.tui.replay.session_at import session_at
from ranktop.tui.replay.tape import Kept
from ranktop.tui.replay.times import NoTime, clock, when
from ranktop.tui.runs import NoRun, Run, find_run
from ranktop.tui.terminal.kind import can_draw
from ranktop.tui.view.text import duration, plain
from ranktop.wire.recording import Recording
from ranktop.wire.recording_file import RecordingError

if TYPE_CHECKING:
    from pathlib import Path

    from ranktop.tui.remote.ssh import Way

SCHEMA: Final = 1
"""Of the JSON, which is that of ``ranktop status``."""


def replay(
    text: str,
    way: Way | None = None,
    *,
    at: str | None = None,
    as_json: bool = False,
    theme: str | None = None,
    ascii: bool | None = None,
) -> int:
    """Open the dashboard on what ``text`` names, or print, and return the exit code.

    ``at``: the time to begin at (``times.when``), by default the end. ``way``: as ``find_run`` has it.
    """
    try:
        path = _path(find_run(text, way))
    except NoRun as error:
        fail(str(error), error.code)
    try:
        with Recording.open(path) as recording:
            place = recording.end if at is None else when(at, recording)
            if as_json or not can_draw():
                _print(recording, place, as_json)
                return FOUND
            growing = recording.live
    except NoTime as error:
        fail(str(error), USAGE)
    except RecordingError as error:
        fail(f"{plain(path.name)}: {error}", FAILED)
    from ranktop.tui.app import run
    from ranktop.tui.replay.player import Player

    player = Player(partial(Recording.open, path), at=place, growing=growing)
    with closing(player):
        return run(None, player=player, theme=theme, ascii=ascii)


def _path(run: Run) -> Path:
    if run.path is None:
        raise NoRun(f"job {plain(run.job_id)} ({plain(run.name)}) runs here but is not recorded", FAILED)
    return run.path


def _print(recording: Recording, at: float, as_json: bool) -> None:
    snapshot = session_at(recording, at).snapshot()
    spacing = Kept(recording).step(at)
    if as_json:
        told: dict[str, Any] = {
            "path": str(recording.path), "host": recording.host or None, "started": recording.started,
            "ended": recording.ended, "at": recording.wall(snapshot.now), "spacing": spacing,
        }  # fmt: skip
        from ranktop.tui.status_json import job_json

        print(json.dumps({"schema": SCHEMA, "jobs": [{**job_json(snapshot), "recording": told}]}, indent=2))
        return
    from ranktop.tui.status_table import print_snapshots

    end = " (its end)" if at >= recording.end else ""
    kept = f"; samples are kept every {duration(spacing)} there" if spacing else ""
    print(f"RECORDED: as it was at {clock(recording.wall(snapshot.now), dated=True)}{end}, ages are from then{kept}")
    print_snapshots([snapshot])
