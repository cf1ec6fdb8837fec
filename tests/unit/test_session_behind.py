"""A viewer that gets everything late, or only a part of it yet: what that says of the ranks, and what it does not."""

from __future__ import annotations

import pytest
from fake_job import FakeClock

from ranktop.tui.session.source import Received, Reset, Whole
from ranktop.tui.session.state import Session
from ranktop.wire.schema import Body, Card, Header, Job, Sample

JOB = Job(id="j", name="job", world_size=4)


def message(rank: int, body: Body, *, age: float = 0.0) -> Received:
    return Received(Header(type(body).__name__.lower(), rank, 100 + rank, 0, 0), body, age, 0)


def test_a_stream_that_lags_makes_nobody_silent() -> None:
    """A viewer short of CPU gets everything late: what has not come yet is not known to be missing."""
    clock = FakeClock()
    session = Session(clock)
    session.feed([Reset(JOB, "h", False), *(message(rank, Sample(rank=rank, step=1, step_age=0.1)) for rank in (0, 1))])
    for step in range(2, 12):
        clock.advance(1.0)
        said = Sample(rank=0, step=step, step_age=0.1)
        session.feed([message(0, said, age=min(step - 1.5, 6.0))] if step != 3 else [])
    snapshot = session.snapshot()
    assert snapshot.behind == 6.0
    assert [view.state for view in snapshot.ranks[:2]] == ["ok", "silent"], "one that is missing from the stream is"
    assert snapshot.ranks[0].age == pytest.approx(0.0)
    assert snapshot.state == "running"
    clock.advance(2.0)
    assert session.snapshot().behind == 0.0
    assert session.snapshot().ranks[0].state == "silent", "nothing comes any more"


def test_samples_from_before_the_viewer_came_tell_of_no_lag() -> None:
    session = Session(FakeClock())
    session.feed([Reset(JOB, "h", False), message(0, Sample(rank=0, step=1), age=9.0)])
    assert session.snapshot().behind == 0.0
    assert session.ranks[0].state() == "silent"


def test_nothing_is_said_of_a_snapshot_of_which_parts_are_to_come() -> None:
    """Ranks that are not there yet would be called missing."""
    session = Session(FakeClock())
    began = message(0, Sample(rank=0, step=90, uptime=100.0))
    session.feed([Reset(JOB, "h", False, parts=True), message(0, Card(job=JOB, rank=0, pid=100)), began])
    assert session.snapshot().findings == ()
    session.feed([Whole()])
    assert [finding.rule for finding in session.snapshot().findings] == ["missing"]


def test_a_lost_way_to_the_hub_makes_nobody_silent_and_no_job_stalled() -> None:
    """What was not told since is not known; the connection's own words say how old the picture is."""
    clock = FakeClock()
    session = Session(clock)
    ranks = [message(rank, Sample(rank=rank, step=9, step_age=0.1, uptime=99.0)) for rank in range(4)]
    session.feed([Reset(JOB, "h", False), *ranks])
    clock.advance(600.0)
    assert session.snapshot().state == "stalled"
    session.unheard = 600.0
    session.feed([])
    away = session.snapshot()
    assert (away.state, away.behind) == ("running", 600.0)
    assert {view.state for view in away.ranks} == {"ok"}
    assert away.findings == ()
    session.unheard = 0.0
    session.feed([message(0, Sample(rank=0, step=500, step_age=0.1, uptime=699.0))])
    assert [view.state for view in session.snapshot().ranks[:2]] == ["ok", "silent"]
