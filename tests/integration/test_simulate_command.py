"""``ranktop simulate`` without a terminal: the simulated job on the real wire, its label, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jobs import wait_until

RANKTOP = (sys.executable, "-m", "ranktop.tui.cli")


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "RANKTOP_RUN_DIR": str(directory)}


def simulate(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RANKTOP, "simulate", *arguments],
        env=environment(directory),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@contextlib.contextmanager
def ctrl_c_reaches_children() -> Iterator[None]:
    """Have what is started within take SIGINT, also where this process is in a shell's background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def left_behind(directory: Path) -> list[int]:
    """Return the processes that belong to a run directory."""
    mark = f"RANKTOP_RUN_DIR={directory}"
    found = []
    for process in psutil.process_iter(["environ"]):
        values = process.info["environ"] or {}
        if f"RANKTOP_RUN_DIR={values.get('RANKTOP_RUN_DIR')}" == mark:
            found.append(process.pid)
    return found


def stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


def test_all_ranks_are_printed_with_the_label_and_nothing_is_left(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    done = simulate(directory, "--ranks", "4", "--seconds", "0.2", "--steps", "8", "--fault", "straggler:rank=2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("SIMULATED, nothing here was measured: simulated-llama-8b (sim-")
    assert "FSDP2 full shard" in lines[0]
    assert "4/4 ranks" in lines[0]
    assert lines[1].startswith("loss 1"), "that of a guess among 128,256 tokens is 11.8"
    rows = [line.split() for line in lines[3:7]]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    for row in rows:
        assert row[9] == "0.0", "measured equals expected"
        assert int(row[11]) >= 8
    said = done.stderr.splitlines()
    assert said[0].startswith("starting a SIMULATED job, simulated-llama-8b, of 4 ranks: straggler on rank 2 by 0.12")
    assert said[-1].startswith("the simulated job has been ended; in it: straggler on rank 2")
    assert left_behind(directory) == []
    assert list(directory.iterdir()) == []


def test_status_and_its_json_say_that_the_job_is_simulated(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    command = [*RANKTOP, "simulate", "--ranks", "2", "--seconds", "0.2", "--steps", "100000"]
    with ctrl_c_reaches_children():
        process = subprocess.Popen(
            command, env=environment(directory), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
    with process:
        try:
            wait_until(lambda: len(ranks_of(directory)) == 2, 40)
            (job,) = status(directory)["jobs"]
            assert job["simulated"] is True
            assert job["name"] == "simulated-llama-8b"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert left_behind(directory) == []
    assert list(directory.iterdir()) == []


def test_nothing_is_left_when_the_command_itself_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    command = [*RANKTOP, "simulate", "--ranks", "2", "--seconds", "0.2", "--steps", "100000", "--fault", "stop:from=3"]
    with subprocess.Popen(
        command, env=environment(directory), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            wait_until(lambda: any(stopped(pid) for pid in left_behind(directory)), 40)
        finally:
            process.kill()
    wait_until(lambda: not left_behind(directory), 20)
    assert list(directory.iterdir()) == []


def status(directory: Path) -> dict[str, list[dict[str, object]]]:
    done = subprocess.run(
        [*RANKTOP, "status", "--json"], env=environment(directory), capture_output=True, text=True, check=False
    )
    found: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
    return found


def ranks_of(directory: Path) -> list[object]:
    jobs = status(directory)["jobs"]
    ranks = jobs[0]["ranks"] if jobs else []
    assert isinstance(ranks, list)
    return [rank for rank in ranks if rank["pid"]]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--fault", "slow"), "no fault 'slow'; there are straggler"),
        (("--fault", "hang:rank=9"), "there is no rank 9 among 8"),
        (("--strategy", "zero3"), "no strategy 'zero3'; there are fsdp2, ddp"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    done = simulate(tmp_path / "run", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("ranktop: ")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_list_of_faults(tmp_path: Path) -> None:
    done = simulate(tmp_path / "run", "--list")
    assert done.returncode == 0
    assert done.stdout.startswith("fault ")
    assert "straggler" in done.stdout
    assert not (tmp_path / "run").exists()
