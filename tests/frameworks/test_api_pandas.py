"""``to_pandas`` of plans and recordings, and the examples of docs/api.md that need pandas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas
from compared_runs import Run, fsdp2
from docs_pages import ROOT, blocks

from ranktop.budget import compare
from ranktop.recording import open_recording
from ranktop.tui.export.columns import COLUMNS


def test_a_plan_is_a_frame_whose_gaps_are_missing() -> None:
    table = compare(params="7.5B", world_size=64)
    frame = table.to_pandas()
    assert list(frame.index) == [each.name for each in table]
    assert frame.index.name == "strategy"
    assert int(frame.loc["zero2", "parameters"]) == 15_000_000_000
    assert frame.loc["zero2", "activations"] is pandas.NA
    assert frame.loc["zero2", "fits"] is pandas.NA
    assert str(frame["total"].dtype) == "Int64"
    whole = compare("gpt2", world_size=2, gpu="h100")
    told = whole.to_pandas()
    for each in whole:
        if each.refused is None:
            assert (told.loc[each.name, "total"], told.loc[each.name, "fits"]) == (each.total, each.fits)
        else:
            assert told.loc[each.name, "refused"] == each.refused
    plans = whole.search()
    assert list(plans.to_pandas().index) == [one["plan"] for one in plans.to_dict()["fit"]["fitting"]]


def test_a_recording_is_a_frame_with_the_columns_of_the_export(tmp_path: Path) -> None:
    path = Run(fsdp2(), steps=5, path=tmp_path / "run.ranktop").record()
    with open_recording(path) as run:
        frame = run.to_pandas()
        samples = list(run.samples())
    assert list(frame.columns) == [column.name for column in COLUMNS]
    assert len(frame) == len(samples) == 10
    for at, sample in enumerate(samples):
        row = frame.iloc[at]
        for name, value in sample.items():
            assert (row[name] is pandas.NA) if value is None else (row[name] == value), name
    assert {str(kind) for kind in frame.dtypes} == {"Int64", "Float64", "string"}


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    Run(fsdp2(), steps=5, path=tmp_path / "run.ranktop").record()
    mine = [
        block
        for block in blocks(ROOT / "docs" / "api.md")
        if "test_api_pandas.py" in block.said.get("run by", "") and block.language == "python"
    ]
    assert len(mine) == 2
    paths = ":".join(str(ROOT / root) for root in ("tui", "agent", "probes"))
    for block in mine:
        done = subprocess.run(
            [sys.executable, "-c", block.text], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout
