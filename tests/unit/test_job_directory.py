"""What is removed of a dead job's directory: all that ranktop makes there, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ranktop.wire.endpoints import (
    JOB_DIRECTORY_FILES,
    JobFile,
    find_jobs,
    is_job_file,
    remove_job_directory,
    write_job_file,
)

KEY = "8932f937-d72c-4106-c12f-20bd9faed9f6"
LEFT = ("job.json.4711", f"nvml-{KEY}.lock", f"nvml-{KEY}.json", f"nvml-{KEY}.want", f"nvml-{KEY}.4711")
FOREIGN = (
    "job.json.x", "job.json.", "nvml-.lock", f"nvml-{KEY}.lock.bak", f"nvml-{KEY}", "notes", f"nvml-{KEY}.pt",
    f"nvml-{KEY}.99999999999", f"xnvml-{KEY}.lock", f"nvml-{KEY}.json\n",
)  # fmt: skip


def test_everything_that_killed_processes_leave_goes(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    for name in (*LEFT, *JOB_DIRECTORY_FILES):
        (directory / name).write_text("")
        assert is_job_file(name)
    remove_job_directory(directory)
    assert not directory.exists()


@pytest.mark.parametrize("name", FOREIGN)
def test_what_somebody_else_put_there_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    assert not is_job_file(name)
    remove_job_directory(tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LEFT[1]).write_text("mine")
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / LEFT[1]).symlink_to(elsewhere / LEFT[1])
    (directory / LEFT[2]).symlink_to(elsewhere)
    remove_job_directory(directory)
    assert not directory.exists()
    # A folder under such a name is nobody's file, and one that is a link itself is not gone into.
    (tmp_path / "link").symlink_to(elsewhere)
    remove_job_directory(tmp_path / "link")
    assert (elsewhere / LEFT[1]).read_text() == "mine"


def test_a_dead_jobs_directory_is_cleaned_away_an_hour_after_its_last_rank_did_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKTOP_RUN_DIR", str(tmp_path / "run"))
    directory = tmp_path / "run" / "job"
    directory.mkdir(parents=True, mode=0o700)
    directory.parent.chmod(0o700)
    for name in LEFT:
        (directory / name).write_text("")
        os.utime(directory / name, (0, 0))
    os.utime(directory / LEFT[3])
    os.utime(directory, (0, 0))
    find_jobs()
    assert (directory / LEFT[0]).exists(), "ranks have wanted a reading a moment ago"
    os.utime(directory / LEFT[3], (0, 0))
    find_jobs()
    assert not directory.exists()


def test_nothing_is_left_of_a_job_file_that_can_not_be_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_job_file(tmp_path, JobFile(id="job"))
    assert list(tmp_path.iterdir()) == []
