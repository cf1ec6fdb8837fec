"""Memory that goes wrong in real jobs. All cases: ``tests/bench/faults_all.py``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from faults_cases import MEMORY, case, checked, fact
from jobs import Viewer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]


@pytest.mark.timeout(240)
def test_sharding_without_effect_and_a_leak(tmp_path: Path, viewer: Viewer) -> None:
    spec = next(spec for spec in MEMORY if spec.name == "fsdp2 no_sync")
    leaks = case("leak", 1, "growth", 40, also=("memory",))
    spec = replace(spec, arguments=(*spec.arguments, "--leak-mib", "2"), cases=(*spec.cases, leaks))
    no_sync, leak = (outcome.finding for outcome in checked(spec, viewer, tmp_path))
    assert no_sync is not None
    assert no_sync.confidence == "high"
    assert leak is not None
    assert leak.subject == "activations"
    assert fact(leak, "more after each step") == pytest.approx(2 * 2**20, rel=0.35)
