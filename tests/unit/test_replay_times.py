"""Times of a recording as they are typed."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hand_tape import HandTape, tape

from ranktop.tui.replay.times import NoTime, clock, span, when


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


def test_a_time_outside_says_what_there_is(day: HandTape) -> None:
    with pytest.raises(NoTime, match=r"not within the recording, which goes from \d{4}-"):
        when("2001-01-01 10:00", day)


def test_lengths() -> None:
    assert [span(seconds) for seconds in (0, 41, 725.9, 5781)] == ["0:00", "0:41", "12:05", "1:36:21"]
