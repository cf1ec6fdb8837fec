"""Memory that goes wrong in real jobs. All cases: ``tests/bench/faults_all.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults_cases import MEMORY, checked, fact, only
from jobs import Viewer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]

MODEL = 4 * (2 * 8192 * 256 + 16 * 256 + 2 * (12 * 256**2 + 13 * 256) + 2 * 256)
"""Bytes of the wide model's parameters: embedding and head, positions, two blocks, the last norm."""


@pytest.mark.timeout(240)
def test_a_leak_and_a_copy(tmp_path: Path, viewer: Viewer) -> None:
    leak, copy = (outcome.finding for outcome in checked(only(MEMORY[0], "leak", "copy"), viewer, tmp_path))
    assert copy is not None
    assert leak is not None
    assert copy.subject == "activations", "nothing that trains holds it"
    assert fact(copy, "too much") == pytest.approx(MODEL, rel=0.1)
    assert fact(leak, "more after each step") == pytest.approx(2 * 2**20, rel=0.35)


@pytest.mark.parametrize("name", ["fsdp2 over one rank", "fsdp2 no_sync"])
def test_sharding_without_effect(name: str, tmp_path: Path, viewer: Viewer) -> None:
    spec = next(spec for spec in MEMORY if spec.name == name)
    (outcome,) = checked(spec, viewer, tmp_path)
    assert outcome.finding is not None
    assert outcome.finding.confidence == "high"
