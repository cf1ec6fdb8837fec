"""Ranks that die, run out of memory, start anew or are unlike the others. All: ``tests/bench/faults_all.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults_cases import Spec, case, checked
from jobs import Viewer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]

UNLIKE = Spec(
    name="another script and no agent",
    ranks=4,
    launch=("both", "0"),
    trains=0,
    cases=(
        case("", 0, "versions", 60),
        case("", 3, "missing", 60),
        case("SIGKILL", 1, "death", 10, severity="critical", words=("SIGKILL",)),
    ),
)


def test_ranks_unlike_the_others_and_one_that_is_killed(tmp_path: Path, viewer: Viewer) -> None:
    checked(UNLIKE, viewer, tmp_path)
