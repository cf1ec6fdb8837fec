"""``ranktop.recording``: what a script reads is what the ranks said, by the columns of the export."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from compared_runs import GIB, Run, fsdp2
from made_recording import WALL, items_of, record

from ranktop.budget.terms import CATEGORIES
from ranktop.recording import Reader, RecordingError, open_recording
from ranktop.tui.compare.loading import load
from ranktop.tui.export.columns import COLUMNS
from ranktop.tui.export.command import Wish, export
from ranktop.tui.runs import find_run
from ranktop.wire.recording_writer import RecordingWriter
from ranktop.wire.schema import Job

STEPS = 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reader") / "f5d9.ranktop"
    return Run(fsdp2(), steps=STEPS, peak=GIB, how="exception", code=1, path=made).record()


@pytest.fixture
def run(path: Path) -> Iterator[Reader]:
    with open_recording(path) as opened:
        yield opened


def test_it_says_whose_it_is(run: Reader, path: Path) -> None:
    assert (run.job.id, run.job.name, run.job.world_size, run.job.simulated) == ("f5d9", "llama-fsdp", 2, False)
    assert run.ranks == (0, 1)
    assert run.strategy is not None
    assert "FSDP2" in run.strategy
    assert run.cards[1]["device"]["name"] == "NVIDIA B200"
    assert (run.begin, run.job.started, run.steps, run.live) == (WALL, WALL, STEPS, False)
    assert run.job.ended == run.end == pytest.approx(WALL + run.duration)
    assert run.path == str(path)
    assert "\n" not in repr(run)


def test_its_samples_are_the_rows_of_the_export(
    run: Reader, path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert export(str(path), Wish("csv")) == 0
    exported = list(csv.reader(io.StringIO(capfdbinary.readouterr().out.decode())))
    told = [["" if value is None else str(value) for value in sample.values()] for sample in run.samples()]
    assert [list(next(run.samples())), *told] == exported
    assert list(run.columns) == [column.name for column in COLUMNS]
    assert run.columns["power_limit"] == "W"


def test_measured_stands_beside_expected(run: Reader) -> None:
    first = next(run.samples())
    assert sum(first.measured[name] or 0 for name in CATEGORIES) == first.measured["total"]
    assert first.measured["parameters"] == first.expected["parameters"] == 8_030_261_248 * 4 // 2
    assert first.rules["parameters"]
    assert (first.rank, first.step, first.moment) == (0, 1, "forward_end")
    held = run.category("optimizer")
    assert set(held) == {0, 1}
    series = run.series("measured_optimizer", ranks=[1])
    assert set(series) == {1}
    assert held[1].measured == series[1].values
    assert held[1].expected == run.series("expected_optimizer")[1].values
    assert held[1].times == series[1].times == [sample.time for sample in run.samples(ranks=[1])]
    assert set(run.category("other")[0].expected) == {None}, "no strategy says what other processes hold"


@pytest.mark.parametrize("first", ["+20", WALL + 20, datetime.fromtimestamp(WALL + 20)])
def test_a_part_is_asked_for_in_words_or_numbers(run: Reader, first: str | float | datetime) -> None:
    times = [sample.time for sample in run.samples(first, WALL + 40, ranks=[0])]
    assert times
    assert all(WALL + 20 < each <= WALL + 40 for each in times)
    assert times == [each for each in run.series("step")[0].times if WALL + 20 < each <= WALL + 40]
    assert len(list(run.samples(every=10, ranks=[0]))) < STEPS / 2


def test_findings_are_those_of_the_comparison(run: Reader, path: Path) -> None:
    loaded = load(str(path), find_run(str(path)))
    told = run.findings()
    assert {(each["rule"], tuple(each["ranks"])) for each in told} == {(f.rule, f.ranks) for f in loaded.findings}
    assert told
    gravities = [("info", "warning", "critical").index(each["severity"]) for each in told]
    assert gravities == sorted(gravities, reverse=True)
    ended = next(each for each in told if each["severity"] == "critical")
    assert ended["since"]["time"] is None or WALL <= ended["since"]["time"] <= run.end
    assert run.findings("+10") == []


def test_the_job_at_a_time_is_that_of_status(run: Reader) -> None:
    then = run.status("+20")
    assert then["state"] == "running"
    assert 0 < then["step"] < STEPS
    at_end = run.status()
    assert [rank["state"] for rank in at_end["ranks"]] == ["failed", "failed"]
    assert [each["kind"] for each in run.events()] == ["card", "card", "end", "end"]
    assert [each["kind"] for each in run.events(last="+5")] == ["card", "card"]


def test_one_that_is_written_grows_with_a_refresh(tmp_path: Path) -> None:
    # As of now: a recording whose hub has been silent for long is taken for one that was cut off.
    wall = time.time() - 10.0
    target = tmp_path / "live.ranktop"
    items = items_of(Run(fsdp2(), steps=4, how="").told())
    writer = RecordingWriter.create(target, Job(id="live", name="live", world_size=2), hub="hub-1", began=0, wall=wall)
    for item in items[:4]:
        writer.add(item)
    writer.commit(items[3].t, wall + items[3].t)
    with open_recording(target) as run:
        assert run.live
        assert run.job.ended is None
        assert len(list(run.samples())) == 2
        before = run.end
        for item in items[4:]:
            writer.add(item)
        writer.commit(items[-1].t, wall + items[-1].t)
        run.refresh()
        assert run.end > before
        assert len(list(run.samples())) == 8
        assert [sample.step for sample in run.samples(first=before, ranks=[0])] == [2, 3, 4]
    writer.close()


def test_a_job_is_opened_by_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKTOP_STATE_DIR", str(tmp_path / "state"))
    made = fsdp2()
    record(made.job, items_of(Run(made, steps=2).told()))
    for name in ("f5d9", "f5", "llama-fsdp"):
        with open_recording(name) as run:
            assert run.job.id == "f5d9"
    with pytest.raises(RecordingError, match=r"^no job 'none' on this machine, live or past; `ranktop jobs` lists"):
        open_recording("none")


def test_complaints_are_one_line(run: Reader, tmp_path: Path) -> None:
    (tmp_path / "text.ranktop").write_text("no recording")
    for wrong in (tmp_path / "text.ranktop", tmp_path / "gone.ranktop", tmp_path):
        with pytest.raises(RecordingError) as caught:
            open_recording(wrong)
        assert "\n" not in str(caught.value)
    with pytest.raises(RecordingError, match="no time 'soon'; write"):
        list(run.samples("soon"))
    with pytest.raises(RecordingError, match="last is before first"):
        list(run.samples("+20", "+10"))
    with pytest.raises(KeyError, match="measured_activations"):
        run.series("measured_activation")
    with pytest.raises(KeyError, match="no category 'weights'"):
        run.category("weights")
    run.close()
    with pytest.raises(RecordingError, match="the recording was closed"):
        run.series("loss")


def test_without_pandas_one_line_says_so(run: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^to_pandas needs pandas"):
        run.to_pandas()


def test_it_loads_neither_the_dashboard_nor_torch(path: Path) -> None:
    script = (
        "import sys\nfrom ranktop.recording import open_recording\n"
        f"with open_recording({str(path)!r}) as run: list(run.samples()), run.findings(), run.status()\n"
        "assert not {'textual', 'torch', 'pandas', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
