"""What ``ranktop export`` writes is what the ranks have said, in every form, and nothing is replaced unasked."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from compared_runs import GIB, Run, fsdp2
from made_recording import WALL, gap_mark, items_of, record

from ranktop.budget.terms import CATEGORIES, MOMENTS, Memory
from ranktop.probes.reading import Collectives, DeviceReading, StepTimes
from ranktop.tui.export.columns import COLUMNS
from ranktop.tui.export.command import Wish, export
from ranktop.tui.export.copying import copy_recording
from ranktop.tui.export.events import harmless
from ranktop.tui.export.rows import Stretch, rows
from ranktop.wire.recording import Recording
from ranktop.wire.schema import Box, Job, Sample

STEPS = 12


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Run(fsdp2(), steps=STEPS, peak=GIB, path=tmp_path_factory.mktemp("export") / "f5d9.ranktop").record()


def written(recording: Path, wish: Wish, capfdbinary: pytest.CaptureFixture[bytes]) -> bytes:
    assert export(str(recording), wish) == 0
    said = capfdbinary.readouterr()
    assert said.err == b""
    return said.out


def parsed(data: bytes) -> list[dict[str, Any]]:
    """The rows of a CSV as its documentation says they are to be read."""
    types: dict[str, Any] = {column.name: {"int": int, "float": float, "text": str}[column.type] for column in COLUMNS}
    texts = csv.DictReader(io.StringIO(data.decode()))
    return [{name: types[name](text) if text else None for name, text in row.items()} for row in texts]


def test_csv_gives_back_what_the_ranks_said(recording: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    told = parsed(written(recording, Wish("csv"), capfdbinary))
    assert len(told) == 2 * STEPS
    run = Run(fsdp2(), steps=STEPS, peak=GIB)
    for at, row in enumerate(told):
        rank, step = at % 2, at // 2 + 1
        said = run.one(rank, step)
        assert (row["rank"], row["step"], row["pid"], row["node"]) == (rank, step, 100 + rank, "node1")
        assert row["time"] == pytest.approx(WALL + row["t"])
        assert said.table is not None
        peak = said.table.moments["forward_end"]
        assert (row["moment"], row["moments_step"]) == ("forward_end", step)
        for name in (*CATEGORIES, "total"):
            assert row[f"measured_{name}"] == getattr(peak, name)
            assert row[f"now_{name}"] == getattr(said.now, name)
            for moment in MOMENTS:
                assert row[f"{moment}_{name}"] == getattr(said.table.moments[moment], name)
        assert row["measured_parameters"] == row["expected_parameters"] == 8_030_261_248 * 4 // 2
        assert row["step_seconds"] == said.steps[0].seconds
        assert (row["tokens"], row["steps_timed"], row["phase"]) == (4096, 1, "backward")
        assert (row["power"], row["utilization"]) == (said.device.power, said.device.utilization)
        assert (row["collectives_enqueued"], row["peak_allocated"]) == (226 * step, said.peak_allocated)


def test_json_is_one_object_with_units_events_and_every_step(
    recording: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    told = json.loads(written(recording, Wish("json"), capfdbinary))
    assert told["schema"] == 1
    assert told["job"]["id"] == "f5d9"
    assert [column["name"] for column in told["columns"]] == [column.name for column in COLUMNS]
    assert [one["kind"] for one in told["events"]] == ["card", "card", "end", "end"]
    assert told["events"][0]["body"]["strategy"] == "fsdp2"
    assert told["events"][2]["body"] == {"how": "exit", "code": 0, "detail": ""}
    assert len(told["rows"]) == 2 * STEPS
    assert [step["index"] for row in told["rows"] if row["rank"] == 1 for step in row["steps"]] == [
        *range(1, STEPS + 1)
    ]
    assert told["rows"][3]["groups"][0]["enqueued"] == 452
    flat = parsed(written(recording, Wish("csv"), capfdbinary))
    texts = {column.name for column in COLUMNS if column.type == "text"} | {"groups"}
    for one, other in zip(told["rows"], flat, strict=True):
        assert all(one[name] == value for name, value in other.items() if name not in texts)


def test_parquet_gives_back_the_same_rows_with_their_units(recording: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'ranktop[parquet]'")
    assert export(str(recording), Wish(output=str(tmp_path / "x.parquet"))) == 0
    assert export(str(recording), Wish(output=str(tmp_path / "x.json"))) == 0
    table = parquet.read_table(tmp_path / "x.parquet")
    assert table.schema.names == [column.name for column in COLUMNS]
    for column in COLUMNS:
        field = table.schema.field(column.name)
        assert field.metadata[b"unit"] == column.unit.encode()
        assert str(field.type) == {"int": "int64", "float": "double", "text": "string"}[column.type]
    rows_of_json = json.loads((tmp_path / "x.json").read_text())["rows"]
    for one, other in zip(table.to_pylist(), rows_of_json, strict=True):
        assert all(one[name] == other[name] for name in one if name != "groups")
    assert json.loads(table.schema.metadata[b"ranktop"])["job"]["name"] == "llama-fsdp"


def test_without_pyarrow_one_line_says_what_to_install(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert export(str(recording), Wish(output=str(tmp_path / "x.parquet"))) == 1
    assert capsys.readouterr().err == (
        "ranktop: parquet needs pyarrow, which is not installed: pip install 'ranktop[parquet]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_part_and_a_coarser_grid(recording: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    part = parsed(written(recording, Wish("csv", first="+10", last="+16"), capfdbinary))
    assert {row["step"] for row in part} == {5, 6, 7}
    assert all(row["node"] == "node1" for row in part), "the card came before the part"
    coarse = parsed(written(recording, Wish("csv", every=6.0), capfdbinary))
    assert [row["step"] for row in coarse if row["rank"] == 0] == [1, 2, 5, 8, 12]
    assert [row["steps_timed"] for row in coarse if row["rank"] == 0] == [1, 1, 3, 3, 4]


def test_a_step_is_told_once_and_unknown_is_empty(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    step = (StepTimes(index=4, seconds=0.5), StepTimes(index=5))
    silent = Sample(rank=0, step=5, steps=step, now=Memory(parameters=0), device=DeviceReading())
    told = [(1.0, 0, silent), (2.0, 0, silent), (3.0, 0, msgspec.structs.replace(silent, steps=(), step=6))]
    path = record(Job(id="x", name="x", world_size=1), items_of(told), path=tmp_path / "x.ranktop")
    found = parsed(written(path, Wish("csv"), capfdbinary))
    assert [(row["steps_timed"], row["step_seconds"], row["step"]) for row in found] == [
        (2, None, 5), (0, None, 5), (0, None, 6),
    ]  # fmt: skip
    assert [row["now_parameters"] for row in found] == [0, 0, 0]
    assert {row["power"] for row in found} == {None}
    assert {row["measured_parameters"] for row in found} == {None}
    assert {row["node"] for row in found} == {None}
    assert {row["collectives_enqueued"] for row in found} == {None}


def test_texts_of_a_job_break_out_of_nothing(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = Run(fsdp2(), steps=2, path=tmp_path / "x.ranktop")
    run.card = lambda card: msgspec.structs.replace(card, node='n\x1b[31m,"\n1')
    run.sample = lambda sample: msgspec.structs.replace(sample, collectives=Collectives((), "no\nne"))
    run.record()
    out = written(run.path or tmp_path, Wish("csv"), capfdbinary)
    assert b"\x1b" not in out
    assert len(out.splitlines()) == 5
    assert {row["node"] for row in parsed(out)} == {'n," 1'}
    assert harmless({"a\x07": [float("inf"), 1.5, "b\n"], "c": (None, True)}) == {
        "a": [None, 1.5, "b"],
        "c": [None, True],
    }


def test_a_copy_is_whole_consistent_and_alone(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.ranktop"
    assert export(str(recording), Wish(output=str(path))) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["copy.ranktop"]
    assert os.stat(path).st_mode & 0o777 == 0o600
    with sqlite3.connect(path) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert copy.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    copy.close()
    with Recording.open(recording) as one, Recording.open(path) as other:
        assert [*one.items(0.0, 1e9)] == [*other.items(0.0, 1e9)]


def test_a_copy_of_a_recording_that_is_being_written(tmp_path: Path) -> None:
    from ranktop.wire.recording_writer import RecordingWriter

    run = Run(fsdp2(), steps=40)
    items = items_of(run.told())
    writer = RecordingWriter.create(tmp_path / "live.ranktop", run.job.job, hub="h", began=0.0, wall=WALL)
    for item in items[:40]:
        writer.add(item)
    writer.commit(40.0, WALL + 40.0)
    for item in items[40:]:
        writer.add(item)
    copy_recording(tmp_path / "live.ranktop", tmp_path / "copy.ranktop")
    with Recording.open(tmp_path / "copy.ranktop") as copy:
        assert len([*copy.items(-1.0, 1e9)]) == 40
        assert not copy.finished
    writer.finish(90.0, WALL + 90.0)


def test_nothing_is_replaced_unasked_and_nothing_half_is_left(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("precious")
    for form in ("csv", "json", "recording"):
        assert export(str(recording), Wish(form, output=str(path))) == 2
        assert "x.csv exists: give another name, or --force" in capsys.readouterr().err
    assert path.read_text() == "precious"
    assert export(str(recording), Wish(output=str(path), force=True)) == 0
    assert path.read_text().startswith("time,t,rank,")
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "nowhere")
    assert export(str(recording), Wish(output=str(link))) == 2
    assert {file.name for file in tmp_path.iterdir()} == {"x.csv", "link.csv"}


def test_a_disk_that_is_full_costs_one_line(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    assert export(str(recording), Wish("csv", output="/dev/full")) == 1
    assert capsys.readouterr().err == "ranktop: cannot write /dev/full: No space left on device\n"


def test_exit_codes(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(code: int, source: str, wish: Wish) -> str:
        assert export(source, wish) == code
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        return said.err

    assert "no job 'nosuch'" in complaint(3, "nosuch", Wish())
    assert "no file '/nosuch.ranktop'" in complaint(3, "/nosuch.ranktop", Wish())
    assert "a recording is copied whole" in complaint(2, str(recording), Wish("recording", every=3.0))
    assert "--to is before --from" in complaint(2, str(recording), Wish(first="+20", last="+5"))
    assert complaint(2, str(recording), Wish(first="noon"))
    assert "is a directory" in complaint(2, str(recording), Wish(output=str(tmp_path)))
    assert "No such file or directory" in complaint(1, str(recording), Wish(output=str(tmp_path / "no" / "x.csv")))
    other = tmp_path / "other.ranktop"
    sqlite3.connect(other).execute("CREATE TABLE a (b)").connection.close()
    assert "is no recording of ranktop" in complaint(1, str(other), Wish())
    assert "is no recording of ranktop" in complaint(1, str(other), Wish("recording"))


def test_a_reader_that_leaves_early_is_no_error(recording: Path) -> None:
    script = "from ranktop.tui.cli import main; main()"
    for form in ("csv", "json", "recording"):
        command = [sys.executable, "-c", script, "export", str(recording), "--format", form]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(60) == 0


def test_rows_come_one_by_one(tmp_path: Path) -> None:
    """A day of a large job is never held: after the first row only the first minute has been read."""
    run = Run(fsdp2(), steps=300, path=tmp_path / "long.ranktop")
    run.record()
    asked: list[float] = []

    class Watched(Recording):
        def items(self, after: float, until: float) -> Iterator[Any]:
            for item in super().items(after, until):
                asked.append(item.t)
                yield item

    with Watched.open(run.path or tmp_path) as recording:
        made = rows(recording, Stretch(-1.0, recording.end))
        first = next(made)
        assert first.sample.step == 1
        assert max(asked) < 10.0
        assert sum(1 for _ in made) == 2 * 300 - 1


def test_events_of_every_kind_are_told(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = Run(fsdp2(), steps=2)
    told = [*run.told(), gap_mark(20.0), (21.0, 1, Box(rank=1, error="OutOfMemoryError: no", asked=GIB))]
    path = record(run.job.job, items_of(told), path=tmp_path / "x.ranktop")
    found = json.loads(written(path, Wish("json"), capfdbinary))["events"]
    marks = [one for one in found if one["kind"] == "mark"]
    assert [(one["rank"], one["body"]) for one in marks] == [(None, {"what": "gap", "detail": "made by a test"})]
    (box,) = [one for one in found if one["kind"] == "box"]
    assert (box["rank"], box["body"]["asked"], box["body"]["error"]) == (1, GIB, "OutOfMemoryError: no")


def test_the_columns_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    prefixes = ("measured_", "expected_", "now_", *(f"{moment}_" for moment in MOMENTS))
    for column in COLUMNS:
        prefix = next((one for one in prefixes if column.name.startswith(one)), None)
        assert f"`{column.name}`" in page or (prefix is not None and f"`{prefix}" in page), column.name
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)
