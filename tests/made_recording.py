"""Recordings for tests: made of messages by hand, in no time, and without a hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ranktop.wire.codec import encode_body, encode_header
from ranktop.wire.recording_writer import RecordingWriter
from ranktop.wire.recordings import recording_path
from ranktop.wire.schema import Body, Header, Item, Job, Mark

Told = tuple[float, int, Body]
"""(t, rank, body); rank -1 for the job as a whole."""

WALL = 1_700_000_000.0
"""Wall clock at ``t`` 0."""


def items_of(told: Iterable[Told], pid: int = 100, restart: int = 0) -> list[Item]:
    """Return messages as a hub keeps them: numbered, process ``pid`` + rank."""
    made = []
    for number, (t, rank, body) in enumerate(told):
        kind = type(body).__name__.lower()
        header = Header(kind, rank, pid + rank if rank >= 0 else 0, restart, number)
        made.append(Item(number, t, encode_header(header), encode_body(body)))
    return made


def record(
    job: Job, items: Iterable[Item], *, begin: float = 0.0, end: float | None = None, path: Path | None = None,
    finish: bool = True, every: float = 1.0, wall: Callable[[float], float] = lambda t: WALL + t,
) -> Path:  # fmt: skip
    """Write a recording into the state directory (or to ``path``), as a hub would: a transaction ``every`` second.

    ``wall``: the wall clock at ``t``.

    With ``finish`` the job has ended at ``end`` (default: at its last message); else its hub was cut off then.
    """
    path = path or recording_path(job.id, WALL + begin)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    writer = RecordingWriter.create(path, job, hub="hub-1", began=begin, wall=wall(begin))
    newest = begin
    due = begin + every
    for item in items:
        while item.t >= due:
            writer.commit(due, wall(due))
            due += every
        writer.add(item)
        newest = max(newest, item.t)
    last = newest if end is None else end
    if finish:
        writer.finish(last, wall(last))
    else:
        writer.commit(last, wall(last))
        writer.close()
    return path


def gap_mark(t: float) -> Told:
    """Return a mark of the job as a whole, for tests that want an event."""
    return (t, -1, Mark(what="gap", detail="made by a test"))
