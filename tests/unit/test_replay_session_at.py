"""A session out of a recording is the one of a viewer that asked then."""

from __future__ import annotations

from hand_tape import tape

from ranktop.tui.replay.session_at import session_at


def test_before_the_fault_and_after_it() -> None:
    hung = tape("hang", rank=2, start=30, seconds=100)
    before = session_at(hung, hung.begin + 20).snapshot()
    assert (before.state, before.findings) == ("running", ())
    after = session_at(hung).snapshot()
    assert after.state == "stalled"
    assert [(one.rule, one.ranks) for one in after.findings] == [("hang", (2,))]
    assert after.now == hung.end


def test_times_beyond_the_recording_are_its_ends() -> None:
    whole = tape(seconds=20)
    assert session_at(whole, whole.end + 100).snapshot().now == whole.end
    first = session_at(whole, whole.begin - 100).snapshot()
    assert first.now == whole.begin
    assert first.ranks[0].card is not None
