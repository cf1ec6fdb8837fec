"""Draws the device of a rank of a fake job without a terminal."""

from __future__ import annotations

from typing import Any

from fake_job import FakeClock, FakeJob, FakeSource, fsdp_job

from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Session, Snapshot
from ranktop.tui.view.device import device_block
from ranktop.tui.view.device_screen import Look, device_lines
from ranktop.tui.view.gauges import Gauges
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import UNICODE, Line, length

LIVE = Link(state="live", age=0.1)
NOT_PERMITTED = "not permitted (NVML 4); inside a container only the device or MIG instance given to it may be asked"


def playing(job: FakeJob, seconds: float = 5.0) -> tuple[Session, FakeSource, FakeClock]:
    """Return a session that has followed a job for so long, with its source and its clock."""
    clock = FakeClock()
    source = FakeSource(job, clock)
    session = Session(clock)
    session.feed(source.drain())
    clock.advance(seconds)
    session.feed(source.drain())
    return session, source, clock


def snapshot(job: FakeJob, seconds: float = 5.0) -> Snapshot:
    return playing(job, seconds)[0].snapshot()


def changed(reading: dict[str, Any] | None = None, detail: dict[str, Any] | None = None, rank: int = 0) -> Snapshot:
    job = fsdp_job()
    job.reading_changes[rank] = reading or {}
    job.detail_changes[rank] = detail or {}
    return snapshot(job)


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def gauges_of(view: RankView) -> Gauges:
    gauges = Gauges.of(view)
    assert gauges is not None
    return gauges


def side(picture: Snapshot, width: int = 34, rank: int = 0) -> list[str]:
    lines = device_block(picture.ranks[rank], picture, width, UNICODE)
    assert all(length(line) == width for line in lines)
    return [text(line).rstrip() for line in lines]


def screen(picture: Snapshot, size: tuple[int, int] = (120, 60), rank: int = 0, **choices: Any) -> str:
    options = Options(selected=rank, **choices)
    lines = device_lines(picture, LIVE, Look(), options, size, "")
    assert len(lines) == size[1]
    assert all(length(line) == size[0] for line in lines)
    return "\n".join(text(line).rstrip() for line in lines)
