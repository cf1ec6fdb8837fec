"""Memory that goes wrong in real jobs. All cases: ``tests/bench/faults_all.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults_cases import MEMORY, checked, fact, only
from jobs import Viewer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]


@pytest.mark.timeout(240)
def test_a_leak(tmp_path: Path, viewer: Viewer) -> None:
    (outcome,) = checked(only(MEMORY[0], "leak"), viewer, tmp_path)
    leak = outcome.finding
    assert leak is not None
    assert leak.subject == "activations"
    assert fact(leak, "more after each step") == pytest.approx(2 * 2**20, rel=0.35)


@pytest.mark.parametrize("name", ["fsdp2 no_sync"])
def test_sharding_without_effect(name: str, tmp_path: Path, viewer: Viewer) -> None:
    spec = next(spec for spec in MEMORY if spec.name == name)
    (outcome,) = checked(spec, viewer, tmp_path)
    assert outcome.finding is not None
    assert outcome.finding.confidence == "high"
