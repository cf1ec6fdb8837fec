"""A run of another machine beside one of this: its recording is fetched through OpenSSH by a real ranktop there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compared_runs import Run, ddp, fsdp2
from sshd import Server, needs_sshd, server

from ranktop.tui.compare.command import Wish, run
from ranktop.tui.export.command import Wish as ExportWish
from ranktop.tui.export.command import export
from ranktop.tui.remote.flags import ways

pytestmark = needs_sshd


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path / "far", tmp_path / "far" / "run") as made:
        made.start()
        state = tmp_path / "far" / "state"
        Run(fsdp2(), steps=20, path=state / "f5d9-1700000000.ranktop").record()
        made.ranktop(
            f"#!/bin/sh\nRANKTOP_STATE_DIR={state} RANKTOP_RUN_DIR={tmp_path}/none\n"
            f'export RANKTOP_STATE_DIR RANKTOP_RUN_DIR\nexec {sys.executable} -m ranktop.tui.cli "$@"\n'
        )
        yield made


@pytest.mark.usefixtures("run_directory")
def test_a_run_of_another_machine_is_compared_and_exported(
    far: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Run(ddp(), steps=20).record()
    way = ways(config=str(far.config))
    assert run(["d0d9", "far/f5d9"], Wish(), way) == 0
    told = capsys.readouterr().out
    assert told.startswith("B needs 59.8 GiB less per GPU")
    assert "B  llama-fsdp f5d9" in told
    assert export("far/f5d9", ExportWish(output=str(tmp_path / "x.csv")), way) == 0
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 41
    capsys.readouterr()
    assert run(["d0d9", "far/nosuch"], Wish(), way) == 3
    complaint = capsys.readouterr().err.splitlines()
    assert "nosuch" in complaint[-1]
    assert run(["d0d9", "far/"], Wish(), way) == 2
