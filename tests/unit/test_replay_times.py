"""Times of a recording as they are typed."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hand_tape import HandTape, tape
from made_recording import WALL, items_of, record

from ranktop.tui.replay.times import NoTime, clock, span, when
from ranktop.wire.recording import Recording
from ranktop.wire.recordings import clock_set
from ranktop.wire.schema import Job, Sample


@pytest.fixture(scope="module")
def day() -> HandTape:
    made = tape(seconds=5)
    made.times = [1000.0, 1000.0 + 20 * 3600]
    return made


@pytest.mark.parametrize(
    ("text", "after"),
    [("+90", 90), ("+5m", 300), ("+1:30:00", 5400), ("+2:30", 150), ("-1h", 19 * 3600), ("-0", 20 * 3600),
     ("50%", 10 * 3600), ("0%", 0), ("+99h", 20 * 3600), ("+ 1.5 h", 5400)],
)  # fmt: skip
def test_from_the_start_and_before_the_end(day: HandTape, text: str, after: float) -> None:
    assert when(text, day) - day.begin == pytest.approx(after)


def test_the_wall_clock(day: HandTape) -> None:
    began = datetime.fromtimestamp(day.wall(day.begin))
    for hours in (0.5, 3, 19.9):
        then = began + timedelta(hours=hours)
        for text in (then.strftime("%H:%M:%S"), then.strftime("%Y-%m-%d %H:%M:%S"), then.strftime("%Y-%m-%dT%H:%M:%S")):
            assert when(text, day) - day.begin == pytest.approx(hours * 3600, abs=1.1), text
    assert clock(day.wall(when(then.strftime("%H:%M"), day))) == then.strftime("%H:%M:00")


@pytest.mark.parametrize("text", ["", "noon", "25:99", "+", "-x", "x%", "12", "1:2:3:4", "2020-13-40 10:00"])
def test_what_is_no_time(day: HandTape, text: str) -> None:
    with pytest.raises(NoTime, match="no time"):
        when(text, day)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_wall_clock_that_was_set_meanwhile(tmp_path: Path, jump: float) -> None:
    path = record(
        Job(id="j1", name="train", world_size=1), items_of([(t, 0, Sample(rank=0)) for t in range(1, 600)]),
        path=tmp_path / "set.ranktop", wall=lambda t: WALL + t + (jump if t > 300 else 0.0),
    )  # fmt: skip
    with Recording.open(path) as recording:
        for t in (60, 290, 320, 540):
            assert when(clock(recording.wall(t)), recording) == pytest.approx(t, abs=1.1)
        assert clock_set(recording) == pytest.approx(jump)
        if jump > 0:
            assert when(clock(WALL + 2000.0), recording) == pytest.approx(301, abs=1.1), "a time that never was"
        else:
            with pytest.raises(NoTime):
                when(clock(WALL + 2000.0), recording)


def test_a_time_outside_says_what_there_is(day: HandTape) -> None:
    with pytest.raises(NoTime, match=r"not within the recording, which goes from \d{4}-"):
        when("2001-01-01 10:00", day)


def test_lengths() -> None:
    assert [span(seconds) for seconds in (0, 41, 725.9, 5781)] == ["0:00", "0:41", "12:05", "1:36:21"]
