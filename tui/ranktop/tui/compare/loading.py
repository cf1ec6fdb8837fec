"""Reads one run for a comparison: its recording, or what its hub still holds of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ranktop.tui.cli import FAILED, NONE
from ranktop.tui.compare.gather import Gathered
from ranktop.tui.compare.side import Loaded
from ranktop.tui.runs import NoRun, Run
from ranktop.tui.session.source import Received, Reset
from ranktop.tui.view.text import plain
from ranktop.wire.codec import WireError, decode_body, decode_header
from ranktop.wire.recording_file import RecordingError
from ranktop.wire.schema import Body, Header, Item, Job

if TYPE_CHECKING:
    from ranktop.wire.recording import Recording

KINDS: Final = frozenset({"card", "sample"})
"""Messages that a comparison is made of."""

SAY_EVERY: Final = 2000
"""Messages between two words on how far it has come."""

ANSWER_SECONDS: Final = 5.0
"""How long a hub is waited for."""


def load(source: str, run: Run, say: Callable[[float], None] | None = None) -> Loaded:
    """Read a run; NoRun says in one line why that is not possible.

    ``source``: as the person named it. ``say`` is told now and then which share of it has been read.
    """
    if run.path is None:
        return _from_hub(source, run)
    from ranktop.wire.recording import Recording

    try:
        with Recording.open(run.path) as recording:
            return from_recording(source, recording, live=run.live, say=say)
    except RecordingError as error:
        raise NoRun(f"{plain(source)}: {error}", FAILED) from None


def from_recording(
    source: str, recording: Recording, *, live: bool = False, say: Callable[[float], None] | None = None
) -> Loaded:
    """Read a whole recording; RecordingError."""
    from ranktop.tui.replay.session_at import last_findings, parting, session_at

    gathered = Gathered(recording.job.world_size)
    notes = []
    bad = 0
    length = max(1e-9, recording.end - recording.begin)
    for count, item in enumerate(recording.items(recording.begin - 1.0, recording.end)):
        if say is not None and count % SAY_EVERY == 0:
            say(min(1.0, max(0.0, (item.t - recording.begin) / length)))
        read = _read(item)
        if read is None:
            bad += 1
        elif read[1] is not None:
            gathered.take(read[0], read[1])
    if bad:
        notes.append(f"{bad} of its messages could not be read")
    thinned = max((stretch.step for stretch in recording.stretches()), default=0.0)
    if thinned > recording.spacing:
        notes.append(f"of its older part one sample in {thinned:.0f} s is left")
    snapshot = session_at(recording).snapshot()
    findings = [finding for finding, _ in last_findings(recording, parting(recording), snapshot).values()]
    live = live or recording.live
    return Loaded(
        source=source, job=recording.job, gathered=gathered, findings=tuple(findings),
        state=snapshot.state if live else "past", at_end=snapshot.state, started=recording.started,
        ended=None if live else recording.ended, host=recording.host, notes=notes,
    )  # fmt: skip


def _read(item: Item) -> tuple[Header, Body | None] | None:
    """Decode what a comparison is made of; the body of anything else stays unread. None for what can't be read."""
    try:
        header = decode_header(item.header)
        return header, decode_body(header, item.body) if header.kind in KINDS else None
    except WireError:
        return None


def _from_hub(source: str, run: Run) -> Loaded:
    """Ask the hub of a live job that is not recorded."""
    from ranktop.tui.session.receiver import HubSource
    from ranktop.tui.session.state import Session

    assert run.entry is not None
    hub, session = HubSource(run.entry.directory), Session()
    gathered = Gathered(run.entry.world_size)
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        while not (hub.caught_up and session.ranks):
            if time.monotonic() > deadline:
                raise NoRun(f"{plain(source)}: its hub did not answer within {ANSWER_SECONDS:.0f} s", FAILED)
            hub.poll(0.1)
            received = hub.drain()
            session.feed(received)
            for item in received:
                if isinstance(item, Reset):
                    gathered = Gathered(item.job.world_size)
                elif isinstance(item, Received):
                    gathered.take(item.header, item.body)
    finally:
        hub.close()
    snapshot = session.snapshot()
    if snapshot.job is None:
        raise NoRun(f"{plain(source)}: no rank has said anything yet", NONE)
    job: Job = snapshot.job
    return Loaded(
        source=source, job=job, gathered=gathered, findings=snapshot.findings, state=snapshot.state,
        at_end=snapshot.state, started=run.entry.started,
        notes=["it is not recorded: only its last samples could be compared"],
    )  # fmt: skip
