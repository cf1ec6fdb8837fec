"""Ranks that are slow in real jobs: which, in what, by how much and why. All cases: ``tests/bench/faults_all.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults_cases import TIME, checked, fact, only
from jobs import Viewer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]


@pytest.mark.timeout(240)
def test_a_slow_rank_of_ddp(tmp_path: Path, viewer: Viewer) -> None:
    (outcome,) = checked(only(TIME[0], "sleep-forward"), viewer, tmp_path)
    slow = outcome.finding
    assert slow is not None
    assert slow.sentence.startswith("rank 1 keeps the ")
    lost = fact(slow, "cost of each step") / fact(slow, "median of")
    assert 0.12 < lost < 0.6, "30 % of the usual step, which is not all own work"
