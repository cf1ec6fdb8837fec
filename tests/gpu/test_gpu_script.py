"""The script for a GPU, as far as a machine without one can run it."""

from __future__ import annotations

import subprocess
import sys

import gpu_cost_checks
import gpu_dry_checks
import gpu_job_checks
import pytest
import torch
from gpu_table import HERE, Check, Group, line, run_groups, verdict

QUICK = [group for name, group in gpu_dry_checks.groups() if name not in ("strategies", "status", "overhead")]


@pytest.mark.parametrize("group", QUICK, ids=lambda group: group.__name__)
def test_what_needs_no_gpu(group: Group) -> None:
    checks = group()
    assert checks
    assert [line(check) for check in checks if check.passed is False] == []


@pytest.mark.slow
def test_a_sharded_job_of_eight_on_the_cpu() -> None:
    checks = gpu_job_checks.strategy("fsdp2", "fake", 8, "cpu")
    assert [line(check) for check in checks if not check.passed] == []


def test_calls_are_counted_by_the_second() -> None:
    calls = gpu_cost_checks.Calls()
    calls.at = [0.5, 10.0, 10.2, 10.9, 11.1, 12.5]
    assert calls.most_in_a_second(9.0) == 3
    assert calls.most_in_a_second(12.0) == 1
    assert calls.most_in_a_second(13.0) == 0


def test_a_group_that_breaks_fails_and_the_others_run(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> list[Check]:
        raise OSError("no nvidia-smi")

    checks = run_groups([("first", broken), ("second", lambda: [Check("fine", True, ""), Check("gone", None, "why")])])
    assert [check.passed for check in checks] == [False, True, None]
    assert verdict(checks) == 1
    assert verdict(checks[1:]) == 0
    written = capsys.readouterr().out
    assert "FAIL  first" in written
    assert "OSError: no nvidia-smi" in written
    assert "1 passed, 1 failed, 1 not possible here" in written


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    run = subprocess.run([sys.executable, HERE / "run_gpu_checks.py"], capture_output=True, text=True, timeout=100)
    assert run.returncode == 2
    assert run.stdout.splitlines() == ["no CUDA device: nothing was checked (--dry-run runs what needs none)"]
