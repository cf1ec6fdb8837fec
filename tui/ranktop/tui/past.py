"""``ranktop status --job`` of a job that is over: what its recording says of its last moment."""

from __future__ import annotations

import json
import time
from typing import Any

from ranktop.tui.cli import FAILED, FOUND
from ranktop.tui.outcome import outcome
from ranktop.tui.runs import NoRun, Run
from ranktop.tui.status_findings import reaches
from ranktop.tui.status_json import job_json
from ranktop.tui.view.text import duration, plain
from ranktop.wire.recording_file import RecordingError


def print_past(run: Run, *, schema: int, as_json: bool, fail_on: str | None = None) -> int:
    """Print how a recorded job stood at its end and return the exit code: 0, or 1 (a finding, an unreadable file)."""
    from ranktop.tui.replay.session_at import session_at
    from ranktop.wire.recording import Recording

    assert run.path is not None
    try:
        with Recording.open(run.path) as recording:
            snapshot = session_at(recording).snapshot()
            ended = recording.ended
            told = {
                "path": str(run.path),
                "host": recording.host or None,
                "started": recording.started,
                "ended": ended,
                "ago": max(0.0, time.time() - ended) if ended is not None else None,
                "state": snapshot.state,
                "how": outcome(recording, recording.job.world_size).words,
            }
    except RecordingError as error:
        raise NoRun(f"{plain(run.path.name)}: {error}", FAILED) from None
    if as_json:
        job = {**job_json(snapshot), "state": "past", "recording": told}
        print(json.dumps({"schema": schema, "jobs": [job]}, indent=2))
    else:
        from ranktop.tui.status_table import print_snapshots

        print(headline(told))
        print_snapshots([snapshot])
    grave = fail_on and any(reaches([finding], fail_on) for finding in snapshot.findings)
    return FAILED if grave else FOUND


def headline(told: dict[str, Any]) -> str:
    """Return the line that says that nothing below is of now."""
    ago = told["ago"]
    when = "being written" if ago is None else f"ended {duration(ago)} ago"
    return f"RECORDED, {when} ({plain(told['how'])}): all below is of its last moment, ages are from then"
