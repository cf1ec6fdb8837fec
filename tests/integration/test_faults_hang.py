"""A job with a slow rank, which then stands still: who, in what, where. All cases: ``tests/bench/faults_all.py``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from faults_cases import HANG, TIME, checked, fact, only
from jobs import Viewer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]


@pytest.mark.timeout(300)
def test_a_slow_rank_and_a_job_that_stands(tmp_path: Path, viewer: Viewer) -> None:
    stands = only(HANG[0], "loop", "SIGSTOP", "skip")
    first = next(case for case in TIME[0].cases if case.fault == "sleep-forward")
    spec = replace(stands, cases=(first, *stands.cases))
    slow, *still = checked(spec, viewer, tmp_path)
    assert slow.finding is not None
    assert slow.finding.sentence.startswith("rank 1 keeps the ")
    lost = fact(slow.finding, "cost of each step") / fact(slow.finding, "median of")
    assert 0.12 < lost < 0.6, "30 % of the usual step, which is not all own work"
    for outcome in still:
        assert outcome.seconds is not None
        assert outcome.seconds < 15, "ten seconds and three steps, on a machine that is busy"
