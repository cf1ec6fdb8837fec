"""``ranktop jobs``: live and past jobs, how they ended, and the documented JSON."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from compared_runs import Run, ddp, fsdp2
from made_recording import WALL, Told, items_of, record
from rich.cells import cell_len

from ranktop.tui.jobs import listed, print_jobs, table
from ranktop.tui.outcome import outcome_of
from ranktop.wire.endpoints import VIEWERS_SOCKET, Found, JobFile, find_jobs, write_job_file
from ranktop.wire.recordings import list_recordings, state_directory
from ranktop.wire.schema import Card, End, Job, Mark

KEYS = {
    "id", "name", "state", "world_size", "started", "ended", "directory", "socket", "recording", "bytes", "steps",
    "simulated", "how",
}  # fmt: skip


@pytest.fixture
def live(run_directory: None) -> Iterator[Path]:
    """A job whose hub listens; its recording is still open."""
    from ranktop.wire.endpoints import run_directory as place

    directory = place(create=True) / "1a2b"
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as hub:
        hub.bind(str(directory / VIEWERS_SOCKET))
        hub.listen()
        job = Job(id="1a2b", name="pretrain", world_size=8)
        write_job_file(directory, JobFile.of(job, time.time() - 90.0, hub_pid=os.getpid()))
        yield directory


def ended(id_: str, *ends: End, world_size: int = 2, mark: Mark | None = None) -> str:
    """Record a job that ended so and return how that is told."""
    job = Job(id=id_, name="train", world_size=world_size)
    cards: list[Told] = [(0.1, rank, Card(job=job, rank=rank)) for rank in range(world_size)]
    told: list[Told] = [*cards, *((5.0 + at / 100, end.rank, end) for at, end in enumerate(ends))]
    if mark is not None:
        told.append((6.0, -1, mark))
    path = record(job, items_of(told))
    return outcome_of(path, world_size).words


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_wall_clock_that_was_set_makes_no_job_longer_or_shorter(jump: float) -> None:
    job = Job(id="a1", name="train", world_size=1)
    told: list[Told] = [(0.1, 0, Card(job=job, rank=0)), (600.0, 0, End(rank=0, how="exit", code=0))]
    record(job, items_of(told), wall=lambda t: WALL + t + (jump if t > 300 else 0.0))
    (found,) = listed(Found([], []), list_recordings())
    assert found.seconds(WALL + 1e6) == pytest.approx(600.0, abs=0.1)


def test_how_a_job_ended_is_told_in_a_few_words() -> None:
    well = [End(rank=rank, how="exit", code=0) for rank in (0, 1)]
    assert ended("a1", *well) == "finished"
    error = End(rank=1, how="exception", code=1, detail="RuntimeError: loss is NaN")
    assert ended("a2", error, End(rank=0, how="signal", code=15, detail="SIGTERM")) == (
        "rank 1 failed: RuntimeError: loss is NaN"
    )
    assert ended("a3", End(rank=0, how="signal", code=9, detail="SIGKILL")) == "rank 0 killed: SIGKILL"
    told = [End(rank=rank, how="signal", code=15, detail="SIGTERM") for rank in (0, 1)]
    assert ended("a4", *told) == "stopped (SIGTERM)"
    assert ended("a5") == "cut off"
    assert ended("a6", well[0]) == "cut off"
    assert ended("a9x", well[0], mark=Mark(what="told", detail="SIGTERM")) == "stopped (SIGTERM)"
    assert ended("a7", End(rank=1, how="exit", code=3), well[0]) == "rank 1 failed: exit code 3"
    assert ended("a8", End(rank=1, how="vanished"), well[0]) == "rank 1 vanished"
    assert ended("a9", End(rank=1, how="exception", detail="E\x1b[2J: x\ny"), well[0]) == "rank 1 failed: E: x y"


def test_the_end_of_a_life_that_was_followed_by_another_is_none_of_the_job() -> None:
    job = Job(id="b1", name="train", world_size=1)
    first: list[Told] = [(0.1, 0, Card(job=job, rank=0)), (1.0, 0, End(rank=0, how="exception", code=1))]
    again: list[Told] = [(2.0, 0, Card(job=job, rank=0, restart=1)), (9.0, 0, End(rank=0, how="exit", code=0))]
    items = items_of(first) + [
        msgspec.structs.replace(item, number=item.number + 2) for item in items_of(again, pid=300, restart=1)
    ]
    assert outcome_of(record(job, items), 1).words == "finished"


def test_a_recording_that_cannot_be_read_says_so() -> None:
    path = record(Job(id="c1", name="x", world_size=1), [])
    path.write_bytes(b"SQLite format 3\0" + bytes(9000))
    assert "recording" in outcome_of(path, 1).words or "damaged" in outcome_of(path, 1).words


def test_a_recording_of_no_known_hub_is_cut_off_like_any_other() -> None:
    job = Job(id="c2", name="x", world_size=1)
    path = record(job, items_of([(0.1, 0, Card(job=job, rank=0))]))
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM hubs")
    connection.close()
    assert outcome_of(path, 1).words == "cut off"


def test_the_json_is_as_documented(live: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Run(fsdp2(), steps=5).record()
    assert print_jobs(as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == {"schema", "ranktop", "wire", "host", "jobs"}
    assert (told["schema"], told["wire"], told["host"]) == (1, 1, socket.gethostname())
    running, past = told["jobs"]
    assert running.keys() == past.keys() == KEYS
    assert (running["id"], running["state"], running["ended"]) == ("1a2b", "running", None)
    assert running["socket"] == str(live / VIEWERS_SOCKET)
    assert (running["recording"], running["bytes"]) == (None, None)
    assert (past["id"], past["name"], past["state"], past["how"]) == ("f5d9", "llama-fsdp", "past", "finished")
    assert past["started"] == WALL
    assert past["ended"] == pytest.approx(WALL + 12.0, abs=0.2)
    assert (past["directory"], past["socket"], past["steps"]) == (None, None, 5)
    assert past["bytes"] == os.stat(past["recording"]).st_size
    page = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert all(f'"{key}"' in page for key in KEYS)


def test_a_live_job_is_listed_once_with_its_recording(live: Path) -> None:
    now = time.time()
    job = Job(id="1a2b", name="pretrain", world_size=8)
    old = record(job, items_of([(0.1, 0, Card(job=job, rank=0))]))
    own = state_directory() / f"1a2b-{int(now) - 90}.ranktop"
    record(job, items_of([(0.1, 0, Card(job=job, rank=0))]), begin=now - 90 - WALL, path=own, finish=False)
    jobs = listed(find_jobs(), list_recordings())
    assert [(one.id, one.state, one.recording and one.recording.path) for one in jobs] == [
        ("1a2b", "running", own), ("1a2b", "past", old),
    ]  # fmt: skip


def test_of_recordings_that_nodes_wrote_side_by_side_the_whole_one_is_meant() -> None:
    """Where the folder is shared, each node's hub writes one; the first node's holds all ranks."""
    from ranktop.tui.runs import find_past

    whole, part = Run(fsdp2(8), steps=20), Run(fsdp2(2), steps=20)
    paths = [whole.record(), part.record(begin=3.0)]
    assert paths[0] != paths[1]
    assert find_past("f5d9", list_recordings()).path == paths[0]
    later = Run(fsdp2(2), steps=5)
    again = record(later.job.job, items_of((t + 9000.0, rank, body) for t, rank, body in later.told()), begin=9000.0)
    assert find_past("f5d9", list_recordings()).path == again
    assert find_past(paths[0].stem, list_recordings()).path == paths[0]


def test_a_recording_that_another_machine_still_writes_is_told_as_running() -> None:
    job = Job(id="e1", name="train", world_size=1)
    now = time.time()
    record(job, items_of([(now - WALL - 1.0, 0, Card(job=job, rank=0))]), begin=now - WALL - 2.0, finish=False)
    (one,) = listed(Found(), list_recordings())
    assert (one.state, one.ended, one.how) == ("past", None, f"running on {socket.gethostname()}")


@pytest.mark.usefixtures("run_directory")
def test_nothing_at_all_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_jobs(as_json=False) == 3
    assert "no job on this machine, live or past" in capsys.readouterr().err
    assert print_jobs(as_json=True) == 3
    assert json.loads(capsys.readouterr().out)["jobs"] == []


@pytest.mark.usefixtures("run_directory")
def test_a_damaged_file_costs_one_line_and_no_other_job(capsys: pytest.CaptureFixture[str]) -> None:
    Run(fsdp2(), steps=3).record()
    (state_directory() / "bad0-1.ranktop").write_bytes(b"no database at all, whatever its name says" * 30)
    assert print_jobs(as_json=False) == 0
    said = capsys.readouterr()
    assert "f5d9" in said.out
    assert said.err.startswith("ranktop: bad0-1.ranktop: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_keeps_ids_whole(width: int) -> None:
    for at, run in enumerate((Run(ddp(), steps=4), Run(fsdp2(), steps=4, how="exception", code=1))):
        run.job.job = Job(id=f"{at}c0ffee{'0' * 20}", name="a-name-that-is-much-too-long-for-it", world_size=4096)
        run.record()
    lines = table(listed(Found(), list_recordings()), width, WALL + 3600.0)
    assert len(lines) == 3
    assert all(cell_len(line) <= width for line in lines), lines
    assert all(f"{at}c0ffee{'0' * 20}" in "".join(lines) for at in (0, 1))


def test_times_are_local_and_as_long_as_they_must_be() -> None:
    from ranktop.tui.jobs import length, size, when

    noon = time.mktime((2026, 11, 30, 12, 0, 0, 0, 0, -1))
    assert when(noon - 3600, noon) == "11:00"
    assert when(noon - 86400, noon) == "29 Nov 12:00"
    assert when(noon - 400 * 86400, noon).endswith("2025")
    assert [length(each) for each in (45, 600, 9000, 4 * 86400, -5)] == ["45 s", "10 min", "2.5 h", "4.0 d", "–"]
    assert [size(each) for each in (5, 3 << 20, 512 << 20, 3 << 29)] == ["5 B", "3.0 MiB", "512 MiB", "1.5 GiB"]
