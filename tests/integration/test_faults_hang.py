"""Jobs that stand still: for whom, and where those are. All cases: ``tests/bench/faults_all.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults_cases import HANG, checked, only
from jobs import Viewer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]


@pytest.mark.timeout(240)
def test_a_job_that_stands(tmp_path: Path, viewer: Viewer) -> None:
    outcomes = checked(only(HANG[0], "loop", "SIGSTOP", "skip"), viewer, tmp_path)
    for outcome in outcomes:
        assert outcome.seconds is not None
        assert outcome.seconds < 15, "ten seconds and three steps, on a machine that is busy"
