"""Where in a recording something is out of line, looked for beside the dashboard."""

from __future__ import annotations

import threading
import time

import pytest
from hand_tape import HandTape, tape

from ranktop.tui.replay import survey as module
from ranktop.tui.replay.spells import Spell, Watch, join, stories
from ranktop.tui.replay.survey import Survey, by_change, parts, spread
from ranktop.tui.session.findings.finding import Finding


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)


def surveyed(recording: HandTape) -> Survey:
    survey = Survey(lambda: recording)
    survey.run()
    assert survey.failure == ""
    return survey


def test_a_fault_is_found_where_it_begins() -> None:
    found = surveyed(tape("hang", 2, seconds=100, start=40)).findings
    assert found.done
    assert [(spell.key[0], spell.key[2], spell.severity) for spell in found.stories] == [("hang", (2,), "critical")]
    hang = found.stories[0]
    assert 1040 < hang.first < 1065
    assert hang.last == pytest.approx(1099, abs=1.5)
    assert found.beside(1000.0, 1) == hang
    assert found.beside(hang.first, 1) is None
    assert found.beside(hang.first, -1) is None
    assert found.beside(hang.first + 5, -1) == hang


def test_what_the_recording_tells_itself() -> None:
    found = surveyed(tape("restart", 2, seconds=100, start=40)).findings
    kinds = [sign.kind for sign in found.signs]
    assert kinds.count("restart") == 1
    assert kinds[0] == "death"
    assert found.signs[0].at < found.signs[-1].at


def test_a_hub_that_was_replaced_is_a_gap() -> None:
    made = tape(seconds=40)
    messages_end = made.all[-1].t
    gapped = HandTape(made.job, [], [(messages_end + 30, "hub-replaced", "the hub was killed")])
    made.all += gapped.all
    made.times = [item.t for item in made.all]
    found = surveyed(made).findings
    assert [(sign.kind, sign.at, sign.until) for sign in found.signs] == [("gap", messages_end, messages_end + 30)]


def test_a_long_recording_is_looked_at_roughly_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 40.0)
    recording = tape("straggler", 1, seconds=200, start=90, by=0.15)
    told = []

    class Told(Survey):
        def _tell(self, done: bool = False) -> None:
            super()._tell(done)
            told.append(self.findings)

    survey = Told(lambda: recording)
    survey.run()
    assert survey.failure == ""
    rough = [found for found in told if not found.seen][-1]
    assert [(spell.key[0], spell.rough) for spell in rough.stories] == [("straggler", True)]
    first_seen = next(found.seen for found in told if found.seen)
    assert first_seen[0][0] == pytest.approx(recording.begin + (recording.end - recording.begin) / 4 * 2, abs=51)
    final = survey.findings
    assert final.done
    assert sum(last - first for first, last in final.seen) == pytest.approx(recording.end - recording.begin)
    assert [(spell.key[0], spell.rough) for spell in final.stories] == [("straggler", False)]
    whole = surveyed_whole(recording, monkeypatch)
    assert final.stories[0].first == pytest.approx(whole.first, abs=10)


def surveyed_whole(recording: HandTape, monkeypatch: pytest.MonkeyPatch) -> Spell:
    monkeypatch.setattr(module, "PART", 1e9)
    return surveyed(recording).findings.stories[0]


def test_it_ends_when_told() -> None:
    recording = tape("straggler", seconds=300)
    survey = Survey(lambda: recording, growing=True)
    survey.start()
    deadline = time.monotonic() + 10
    while not survey.findings.seen and time.monotonic() < deadline:
        time.sleep(0.005)
    survey.stop()
    thread = next((one for one in threading.enumerate() if one.name == "ranktop-survey"), None)
    if thread is not None:
        thread.join(5.0)
        assert not thread.is_alive()
    assert recording.closed


def test_a_failure_costs_the_survey_alone() -> None:
    def broken() -> HandTape:
        raise OSError("the file is gone")

    survey = Survey(broken)
    survey.run()
    assert "the file is gone" in survey.failure
    assert not survey.findings.done


def test_parts_and_their_order() -> None:
    assert parts(10.0, 900.0) == [10.0, 900.0]
    assert len(parts(0.0, 86_400.0)) == 65
    assert sorted(spread(list(map(float, range(9))))) == list(map(float, range(9)))
    assert spread([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])[:3] == [3.0, 1.0, 5.0]
    found = {1.0: (), 2.0: (Finding(rule="hang", severity="critical", ranks=(1,), sentence="x"),)}
    assert by_change([0.0, 1.0, 2.0, 3.0], found)[:2] == [(1.0, 2.0), (2.0, 3.0)]


def test_a_finding_that_flickers_is_one() -> None:
    warning = Finding(rule="straggler", severity="warning", ranks=(1,), sentence="slow")
    worse = Finding(rule="straggler", severity="critical", ranks=(1,), sentence="very slow")
    watch = Watch()
    for at, finding in ((10.0, warning), (11.0, worse), (25.0, warning), (90.0, warning)):
        watch.note([finding], at)
        watch.note([], at + 0.5)
    assert [(one.first, one.last, one.severity) for one in watch.spells] == [(10, 25, "critical"), (90, 90, "warning")]
    parted = [Spell.of(warning, 0.0), Spell.of(warning, 15.0), Spell.of(warning, 60.0)]
    assert [(one.first, one.last) for one in join(parted)] == [(0, 15), (60, 60)]


def test_a_note_that_becomes_a_warning_begins_as_one_then() -> None:
    note = Finding(rule="restart", severity="info", ranks=(), sentence="started anew")
    warning = Finding(rule="restart", severity="warning", ranks=(), sentence="started anew")
    watch = Watch()
    for at, finding in ((10.0, note), (11.0, note), (12.0, warning), (13.0, warning)):
        watch.note([finding], at)
    assert [(one.severity, one.first, one.last) for one in join(watch.spells)] == [
        ("info", 10, 11),
        ("warning", 12, 13),
    ]
    assert [(one.first, one.last) for one in stories(join(watch.spells))] == [(12, 13)]
