"""Healthy jobs raise no finding above ``info``. Half an hour of them: ``tests/bench/healthy.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults_healthy import KINDS, run
from jobs import Viewer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]


def test_a_healthy_job(tmp_path: Path, viewer: Viewer) -> None:
    kind = KINDS["DDP, variable length, saving and validating"]
    report = run(kind, viewer, tmp_path, seconds=12, interval="0.5")
    grave = [(seen.finding.sentence, seen.finding.evidence) for seen in report.seen if seen.gravity]
    assert (grave, report.once, report.trouble) == ([], [], "")
    assert report.steps > 20
