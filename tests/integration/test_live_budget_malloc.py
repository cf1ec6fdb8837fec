"""The budget of a job as the dashboard has it, beside what the agent reads from malloc in a script that is not ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import AGENT, TORCHRUN, Viewer, job, steps_done

from ranktop.budget.terms import MOMENTS, STATES
from ranktop.tui.session.expected import difference

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]

TOLERANCE = 0.02
"""malloc also serves Python and the libraries, and rounds to pages what it maps."""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_the_demo_holds_what_is_expected(
    strategy: str, tmp_path: Path, viewer: Viewer, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--strategy", strategy, "--minutes", "3", "--layers", "3", "--hidden", "192", "--batch", "8"]
    with job([*TORCHRUN, "--nproc-per-node", "2", *AGENT, "-m", "ranktop.demo.train", *options], tmp_path):
        viewer.wait(lambda state: steps_done(state, 6))
        snapshot = viewer.session.snapshot()
    assert len(snapshot.ranks) == 2
    for rank in snapshot.ranks:
        assert rank.budget is not None
        assert rank.sample is not None
        assert rank.sample.table is not None
        for moment in MOMENTS:
            memory, amounts = rank.sample.table.moments[moment], rank.budget.at(moment)
            for category in (*STATES, "buffers"):
                assert getattr(memory, category) == amounts[category].bytes, (moment, category)
            assert difference(memory.activations, amounts["activations"]) == 0, (moment, memory, amounts["activations"])
        for moment in ("forward_end", "backward_start"):
            measured = rank.sample.table.moments[moment].activations
            wanted = rank.budget.at(moment)["activations"].bytes
            assert measured is not None
            assert wanted
            with capsys.disabled():
                print(
                    f"\n{strategy} rank {rank.rank} {moment:14} {wanted:>9} {measured:>9} {measured / wanted - 1:+.2%}"
                )
            assert abs(measured - wanted) <= TOLERANCE * wanted
