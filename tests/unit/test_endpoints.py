from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranktop.tui.cli import matching
from ranktop.wire import endpoints
from ranktop.wire.endpoints import RunDirectoryError
from ranktop.wire.schema import SCHEMA_VERSION, Job

JOB = Job(id="0123abcd", name="train", world_size=2, launcher="torchrun", run_id="r1")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another user needs root")


@pytest.fixture
def run_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Not pytest's own folder: its paths are too long for a socket.
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as parent:
        path = Path(parent) / "run"
        monkeypatch.setenv("RANKTOP_RUN_DIR", str(path))
        yield path


@pytest.fixture
def listening(run_dir: Path) -> Iterator[Path]:
    """A job's directory with somebody at its viewers' socket."""
    endpoints.run_directory(create=True)
    directory = endpoints.job_directory(JOB.id)
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(endpoints.socket_path(directory, endpoints.VIEWERS_SOCKET))
        server.listen(8)
        yield directory


def test_named_directory_is_made_private_whatever_the_umask(run_dir: Path) -> None:
    before = os.umask(0o777)
    try:
        assert endpoints.run_directory(create=True) == run_dir
    finally:
        os.umask(before)
    assert run_dir.stat().st_mode & 0o7777 == 0o700
    assert endpoints.run_directory(create=True) == run_dir


def test_runtime_directory_is_used_only_when_it_is_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKTOP_RUN_DIR", raising=False)
    fallback = Path(f"/tmp/ranktop-{os.geteuid()}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert endpoints.search_directories()[0] == tmp_path / "ranktop"
    assert fallback in endpoints.search_directories()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert endpoints.search_directories()[0] == fallback
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    # A scheduler's TMPDIR would hide the job from a viewer outside of it.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert endpoints.search_directories()[0] == fallback
    assert Path(f"/run/user/{os.geteuid()}/ranktop") in endpoints.search_directories()


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o770, 0o500])
def test_wrong_mode_is_refused_and_told_how_to_mend(run_dir: Path, mode: int) -> None:
    run_dir.mkdir()
    run_dir.chmod(mode)
    for create in (True, False):
        with pytest.raises(RunDirectoryError) as caught:
            endpoints.run_directory(create=create)
        assert f"{run_dir} has mode {mode:04o}" in str(caught.value)
        assert str(caught.value).endswith(f"chmod 700 {run_dir}")
    found = endpoints.find_jobs()
    assert found.jobs == []
    assert [str(caught.value)] == found.problems


@as_root
def test_directory_of_another_user_is_refused_and_named(run_dir: Path) -> None:
    run_dir.mkdir(mode=0o700)
    os.chown(run_dir, 1, 1)
    with pytest.raises(RunDirectoryError, match="belongs to user daemon: refused; set RANKTOP_RUN_DIR"):
        endpoints.run_directory(create=True)
    assert "belongs to user daemon" in endpoints.find_jobs().problems[0]
    os.chown(run_dir, 54321, 1)
    with pytest.raises(RunDirectoryError, match="belongs to user 54321"):
        endpoints.run_directory(create=True)


@as_root
def test_job_of_another_user_is_refused_and_named(listening: Path) -> None:
    endpoints.write_job_file(listening, endpoints.JobFile.of(JOB, 1.0))
    assert len(endpoints.find_jobs().jobs) == 1
    os.chown(listening, 1, 1)
    found = endpoints.find_jobs()
    assert found.jobs == []
    assert found.problems == [
        f"{listening} belongs to user daemon: refused; set RANKTOP_RUN_DIR to a directory of yours"
    ]


def test_links_and_files_are_refused(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    run_dir.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirectoryError, match="symbolic link"):
        endpoints.run_directory(create=True)
    run_dir.unlink()
    run_dir.write_text("")
    with pytest.raises(RunDirectoryError, match="not a directory"):
        endpoints.run_directory(create=True)


def test_directory_that_cannot_be_made_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKTOP_RUN_DIR", "/proc/nowhere/run")
    with pytest.raises(RunDirectoryError, match=r"cannot be made .*set RANKTOP_RUN_DIR"):
        endpoints.run_directory(create=True)


def test_paths_too_long_for_a_socket_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = "/tmp/" + "x" * (99 - len("/tmp/") - len("/job/viewers.sock"))
    monkeypatch.setenv("RANKTOP_RUN_DIR", directory)
    assert len(endpoints.socket_path(endpoints.job_directory("job"), endpoints.VIEWERS_SOCKET)) == 99
    monkeypatch.setenv("RANKTOP_RUN_DIR", directory + "x")
    with pytest.raises(RunDirectoryError, match=r"100 bytes long.*set RANKTOP_RUN_DIR to a shorter one"):
        endpoints.job_directory("job")


@pytest.mark.parametrize("job_id", ["", "..", "a/b", "-x", "a" * 33, "a\n", "é"])
def test_impossible_job_ids_are_refused(run_dir: Path, job_id: str) -> None:
    with pytest.raises(RunDirectoryError, match="no job's id"):
        endpoints.job_directory(job_id)


def test_live_job_is_found_with_what_its_file_says(listening: Path, run_dir: Path) -> None:
    endpoints.write_job_file(listening, endpoints.JobFile.of(JOB, 12.5, hub_pid=77))
    (run_dir / "empty").mkdir(mode=0o700)
    found = endpoints.find_jobs()
    assert found.problems == []
    entry = endpoints.JobEntry(JOB.id, "train", listening, 2, 12.5, SCHEMA_VERSION, 77)
    assert found.jobs == [entry]
    assert endpoints.read_job_file(listening).job() == JOB
    assert sorted(path.name for path in listening.iterdir()) == ["job.json", "viewers.sock"]


@pytest.mark.parametrize(
    ("schema", "words"), [(SCHEMA_VERSION + 1, "this side is older"), (0, "the other side is older")]
)
def test_job_of_another_schema_is_a_problem_that_says_who_is_older(listening: Path, schema: int, words: str) -> None:
    (listening / "job.json").write_text(f'{{"id": "x", "name": "train\\u001b[2J", "schema": {schema}}}')
    found = endpoints.find_jobs()
    assert found.jobs == []
    assert len(found.problems) == 1
    assert words in found.problems[0]
    assert "\x1b" not in found.problems[0]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": 3}', b"[" * 60_000, b" " * 70_000, b"\xff"])
def test_unreadable_job_file_is_one_problem(listening: Path, content: bytes) -> None:
    (listening / "job.json").write_bytes(content)
    found = endpoints.find_jobs()
    assert found.jobs == []
    assert len(found.problems) == 1
    assert "job.json cannot be read" in found.problems[0]
    assert "\n" not in found.problems[0]


def left_by_a_killed_hub(run_dir: Path, age: float) -> Path:
    endpoints.run_directory(create=True)
    directory = endpoints.job_directory("dead01")
    directory.mkdir(mode=0o700)
    for name in ("hub.lock", "job.json", "hub.id", "viewers.sock"):
        (directory / name).touch()
        os.utime(directory / name, (time.time() - age,) * 2)
    os.utime(directory, (time.time() - age,) * 2)
    return directory


def test_old_leftovers_of_a_killed_hub_are_cleaned(run_dir: Path) -> None:
    directory = left_by_a_killed_hub(run_dir, endpoints.STALE_AFTER + 60)
    assert endpoints.find_jobs() == endpoints.Found()
    assert not directory.exists()


def test_young_leftovers_stay_for_the_next_hub(run_dir: Path) -> None:
    directory = left_by_a_killed_hub(run_dir, 60)
    assert endpoints.find_jobs() == endpoints.Found()
    assert directory.exists()


def test_leftovers_stay_while_somebody_holds_the_lock(run_dir: Path) -> None:
    directory = left_by_a_killed_hub(run_dir, endpoints.STALE_AFTER + 60)
    lock = endpoints.take_lock(directory)
    assert lock is not None
    for path in (directory, directory / "hub.lock"):
        os.utime(path, (time.time() - endpoints.STALE_AFTER - 60,) * 2)
    assert endpoints.take_lock(directory) is None
    endpoints.find_jobs()
    assert directory.exists()
    os.close(lock)
    endpoints.find_jobs()
    assert not directory.exists()


def test_foreign_files_in_a_stale_directory_survive(run_dir: Path) -> None:
    directory = left_by_a_killed_hub(run_dir, 0)
    (directory / "precious").write_text("x")
    for path in (*directory.iterdir(), directory):
        os.utime(path, (time.time() - endpoints.STALE_AFTER - 60,) * 2)
    endpoints.find_jobs()
    assert [path.name for path in directory.iterdir()] == ["precious"]


def test_a_job_of_several_nodes_is_found_by_its_own_id_and_by_that_of_its_directory(listening: Path) -> None:
    job = Job(id="of-the-first", name="train", world_size=4)
    endpoints.write_job_file(listening, endpoints.JobFile.of(job, 1.0))
    (entry,) = endpoints.find_jobs().jobs
    assert (entry.id, entry.directory) == ("of-the-first", listening)
    for wanted in ("of-the-first", JOB.id, "train", "of-the"):
        assert matching([entry], wanted) == [entry]
