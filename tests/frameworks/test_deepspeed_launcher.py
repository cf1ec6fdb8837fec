"""``deepspeed --module ranktop.agent script.py``: DeepSpeed's own launcher and engine, the script unedited."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from jobs import Viewer, job, output, steps_done

pytestmark = pytest.mark.usefixtures("run_directory")

SCRIPT = str(Path(__file__).with_name("deepspeed_script.py"))
LAUNCHER = [str(Path(sys.executable).parent / "deepspeed"), "--num_gpus", "2", "--master_port", "29517"]


def test_a_job_of_deepspeeds_own_launcher_is_one_and_its_engine_tells_its_steps(tmp_path: Path, viewer: Viewer) -> None:
    command = [*LAUNCHER, "--module", "ranktop.agent", SCRIPT, "--vocabulary", "64"]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    with job(command, tmp_path, DS_ACCELERATOR="cpu", PATH=path) as process:
        state = viewer.wait(lambda state: steps_done(state, 5) and bool((state["progress"] or {}).get("step")), 150)
        (tmp_path / "over").touch()
        assert process.wait(90) == 0, output(tmp_path)
    strategy = state["strategy"]
    assert strategy["words"] == "ZeRO-2 · dp 2 · bf16 + fp32 master · AdamW"
    assert (strategy["micro_batch"], strategy["accumulation"], strategy["sequence_length"]) == (4, 2, 16)
    assert [rank["rank"] for rank in state["ranks"]] == [0, 1]
    assert viewer.session.job is not None
    assert (viewer.session.job.launcher, viewer.session.job.world_size) == ("deepspeed", 2)
    for rank in state["ranks"]:
        assert rank["trainer"] == f"deepspeed {version('deepspeed').split('+')[0]} engine"
        told, said = rank["progress"], json.loads((tmp_path / f"told{rank['local_rank']}.json").read_text())
        step, rate, norm = said[told["step"] - 1]
        assert (told["source"], told["step"], told["loss"]) == ("deepspeed engine", step, None)
        assert (told["learning_rate"], told["gradient_norm"]) == (pytest.approx(rate), pytest.approx(norm))
        for name in ("parameters", "gradients", "optimizer"):
            assert rank["measured"][name] == rank["expected"][name]
        assert rank["agent"]["errors"] == 0
    assert [finding for finding in state["findings"] if finding["severity"] != "info"] == []
