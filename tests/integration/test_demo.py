"""``ranktop demo`` where there is no terminal: one snapshot of all ranks after the tenth step, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from jobs import wait_until


@pytest.mark.slow
def test_a_snapshot_of_all_ranks(tmp_path: Path) -> None:
    directory = str(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "ranktop.tui.cli", "demo", "--ranks", "2"],
        env={**os.environ, "RANKTOP_RUN_DIR": directory},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("demo-gpt (demo-")
    assert "FSDP2 full shard" in lines[0]
    assert "2/2 ranks" in lines[0]
    [head] = [number for number, line in enumerate(lines) if line.split()[:1] == ["rank"]]
    assert any(line.split()[:1] == ["loss"] for line in lines[:head])
    ranks = [line.split() for line in lines[head + 1 : head + 3]]
    assert [row[0] for row in ranks] == ["0", "1"]
    for row in ranks:
        assert row[9] == "0.0", "measured equals expected"
        assert int(row[11]) >= 10
    wait_until(lambda: not jobs_of(directory), 20)
    assert not any((tmp_path / "run").iterdir())


def jobs_of(directory: str) -> list[psutil.Process]:
    """Return the processes that a run directory's jobs have left, hubs included."""
    mark = f"RANKTOP_RUN_DIR={directory}"
    entries = psutil.process_iter(["environ"])
    return [entry for entry in entries if mark in [f"{k}={v}" for k, v in (entry.info["environ"] or {}).items()]]
