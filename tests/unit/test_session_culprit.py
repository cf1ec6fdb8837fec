"""Which rank broke the job, whatever the order in which the ends of its ranks are heard of."""

from __future__ import annotations

import pytest
from fake_job import FakeClock

from ranktop.tui.session.source import Received
from ranktop.tui.session.state import Session
from ranktop.wire.schema import Body, End, Header, Sample


def message(rank: int, body: Body, *, age: float = 0.0, restart: int = 0, pid: int = 100) -> Received:
    return Received(Header(type(body).__name__.lower(), rank, pid + rank, restart, 0), body, age, 0)


def test_the_culprit_is_the_first_that_was_not_told_to_go() -> None:
    clock = FakeClock()
    session = Session(clock)
    session.feed([message(rank, Sample(rank=rank, step=1, step_age=0.1)) for rank in range(4)])
    assert session.snapshot().culprit() is None
    session.feed(
        [
            message(3, End(rank=3, how="exit", code=0), age=9.0),
            message(0, End(rank=0, how="signal", code=15), age=3.0),
            message(1, End(rank=1, how="exception", code=1, detail="ValueError: x"), age=1.0),
            message(2, End(rank=2, how="signal", code=9), age=2.0),
        ]
    )
    culprit = session.snapshot().culprit()
    assert culprit is not None
    assert culprit.rank == 2
    assert session.state() == "ended"


GLOO = "RuntimeError: Connection closed by peer"
FAILED = End(rank=0, how="exception", code=1, detail=GLOO)
TERMINATED = End(rank=2, how="signal", code=15, detail="SIGTERM")


@pytest.mark.parametrize("killed_first", [True, False], ids=["killed heard first", "failed heard first"])
@pytest.mark.parametrize(
    ("end", "apart", "who"),
    [
        (End(rank=1, how="signal", code=9, detail="SIGKILL"), 1.5, 1),
        (End(rank=1, how="signal", code=11, detail="SIGSEGV"), 1.5, 1),
        (End(rank=1, how="vanished"), 1.5, 1),
        (End(rank=1, how="signal", code=9), 40.0, None),
        (End(rank=1, how="signal", code=6, detail="SIGABRT"), 1.5, None),
        (End(rank=1, how="signal", code=15, detail="SIGTERM"), 1.5, None),
        (End(rank=1, how="exception", code=1, detail="ValueError: x"), 1.5, 1),
    ],
    ids=["SIGKILL", "SIGSEGV", "vanished", "killed long after", "SIGABRT", "SIGTERM", "exception"],
)
def test_what_struck_a_rank_itself_goes_before_failures_for_want_of_a_peer(
    end: End, apart: float, who: int | None, killed_first: bool
) -> None:
    """``who`` None: it is the first to be heard of."""
    session = Session(FakeClock())
    session.feed([message(rank, Sample(rank=rank, step=1, step_age=0.1)) for rank in range(3)])
    first, second = (end, FAILED) if killed_first else (FAILED, end)
    session.feed([message(first.rank, first, age=50.0), message(second.rank, second, age=50.0 - apart)])
    session.feed([message(2, TERMINATED, age=49.9)])
    culprit = session.snapshot().culprit()
    assert culprit is not None
    assert culprit.rank == (first.rank if who is None else who)
