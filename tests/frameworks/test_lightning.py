"""Lightning's scripts, unedited, under torchrun, Lightning's own launcher and ``fabric run``: what is shown of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import AGENT, TORCHRUN, Viewer, environment, job, output, steps_done, wait_until

pytestmark = pytest.mark.usefixtures("run_directory")

WORKER = str(Path(__file__).with_name("lightning_worker.py"))
BINARIES = Path(sys.executable).parent
TWO = [*TORCHRUN, "--nproc-per-node", "2", *AGENT, WORKER]
QUIET = {"RANKTOP_JOB_NAME": "lit", "MPLBACKEND": "agg"}
DDP_BYTES = 30_080 * 4
"""Bytes of the model: 30,080 parameters."""


def end(directory: Path, process: subprocess.Popen[bytes], words: str) -> None:
    """Let the job end by itself; it must have said ``words``."""
    (directory / "over").touch()
    assert process.wait(90) == 0, output(directory)
    assert words in output(directory), output(directory)


def states(rank: dict[str, Any]) -> tuple[int, ...]:
    return tuple(rank["measured"][name] for name in ("parameters", "gradients", "optimizer"))


def test_a_trainer_tells_what_it_does_and_an_explicit_callback_beside_the_automatic_one_is_one(
    tmp_path: Path, viewer: Viewer
) -> None:
    seen: set[str] = set()

    def wanted(state: dict[str, Any]) -> bool:
        seen.update(rank["activity"] or "" for rank in state["ranks"])
        told = state["progress"] or {}
        return steps_done(state, 9) and {"validation", "save"} <= seen and "val_loss" in (told.get("values") or {})

    with job([*TWO, "ddp"], tmp_path, **QUIET) as process:
        state = viewer.wait(wanted, 120)
        end(tmp_path, process, "AutomaticRanktopCallback")
    strategy = state["strategy"]
    assert strategy["words"] == "DDP · dp 2 · fp32 autocast bf16 · AdamW"
    assert (strategy["micro_batch"], strategy["accumulation"], strategy["sequence_length"]) == (4, 2, 17)
    assert {rank["trainer"] for rank in state["ranks"]} == {f"lightning {version()} Trainer"}
    for rank in state["ranks"]:
        told = rank["progress"]
        assert (told["source"], told["total_steps"]) == ("lightning", 6_000)
        assert abs(told["step"] - rank["step"]["index"]) <= 2
        assert 3.0 < told["loss"] < 5.5
        assert 3e-4 < told["learning_rate"] < 1e-3
        assert rank["step"]["micro_batches"] == 2
        # The optimizer calls forward and backward itself: their time is theirs. Each forward waits 0.05 s.
        assert rank["step"]["forward"] > 0.1 > rank["step"]["optimizer"]
        assert rank["step"]["backward"] > 0
        assert rank["measured"]["parameters"] == rank["expected"]["parameters"] == DDP_BYTES
        assert [rank["agent"]["errors"], rank["notes"].get("trainer")] == [0, None]
    assert [finding["rule"] for finding in state["findings"] if finding["severity"] != "info"] == []
    assert saved_callbacks(tmp_path) == ["ModelCheckpoint"]
    assert pushed(tmp_path) >= {"ranktop/memory/parameters", "ranktop/memory/expected/parameters"}


def test_ranks_that_lightning_starts_itself_are_one_job_and_train_as_without(tmp_path: Path, viewer: Viewer) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    command = [sys.executable, *AGENT, WORKER, "own"]
    subprocess.run(command, cwd=plain, env=environment(plain, RANKTOP_DISABLE="1"), check=True, capture_output=True)
    with job(command, tmp_path, **QUIET) as process:
        state = viewer.wait(lambda state: len(state["ranks"]) == 2 and steps_done(state, 3), 120)
        assert process.wait(90) == 0, output(tmp_path)
        state = viewer.wait(lambda state: state["state"] == "ended")
    assert [(rank["rank"], rank["local_rank"], rank["end"]["how"]) for rank in state["ranks"]] == [
        (0, 0, "exit"),
        (1, 1, "exit"),
    ]
    assert (state["world_size"], state["strategy"]["words"]) == (2, "DDP · dp 2 · fp32 · AdamW")
    assert {states(rank)[0] for rank in state["ranks"]} == {DDP_BYTES}
    for name in ("step=4.ckpt", "step=8.ckpt"):
        ours, theirs = (torch.load(folder / "saved" / name, weights_only=False) for folder in (tmp_path, plain))
        assert ours.keys() == theirs.keys()
        assert [each.split("{")[0] for each in ours["callbacks"]] == [
            each.split("{")[0] for each in theirs["callbacks"]
        ]
        for parameter, value in theirs["state_dict"].items():
            assert torch.equal(value, ours["state_dict"][parameter])


def test_fsdp_with_checkpointing_is_told_apart_and_counted(tmp_path: Path, viewer: Viewer) -> None:
    with job([*TWO, "fsdp"], tmp_path, **QUIET) as process:
        state = viewer.wait(lambda state: steps_done(state, 4) and bool(state["progress"]), 120)
        end(tmp_path, process, "ended 0 2")
    strategy = state["strategy"]
    assert strategy["words"] == "FSDP1 full shard · dp 2 · bf16/fp32 · AdamW"
    assert (strategy["micro_batch"], strategy["accumulation"], strategy["checkpointing"]) == (4, 2, "full")
    for rank in state["ranks"]:
        assert rank["measured"]["parameters"] == DDP_BYTES // 2
        for name in ("parameters", "gradients", "optimizer"):
            assert rank["measured"][name] == rank["expected"][name]


def test_fabric_run_with_the_agents_own_file(tmp_path: Path, viewer: Viewer) -> None:
    path = subprocess.run([sys.executable, *AGENT, "--path"], capture_output=True, text=True, check=True).stdout.strip()
    command = [str(BINARIES / "fabric"), "run", "--accelerator", "cpu", "--devices", "2", path, WORKER, "fabric"]
    with job(command, tmp_path, **QUIET) as process:
        state = viewer.wait(lambda state: len(state["ranks"]) == 2 and steps_done(state, 3), 120)
        end(tmp_path, process, "ended 0 2")
    assert state["strategy"]["words"] == "DDP · dp 2 · fp32 autocast bf16 · AdamW"
    assert {rank["trainer"] for rank in state["ranks"]} == {f"lightning {version()} Fabric"}
    assert {states(rank)[0] for rank in state["ranks"]} == {DDP_BYTES}
    assert state["findings"] == []


def version() -> str:
    from importlib.metadata import version as installed

    return installed("lightning")


def saved_callbacks(directory: Path) -> list[str]:
    """Return the callbacks whose state is in the newest checkpoint."""
    newest = max((directory / "saved").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    return [name.split("{")[0] for name in torch.load(newest, weights_only=False)["callbacks"]]


def pushed(directory: Path) -> set[str]:
    """Return the names of the scalars in the script's own TensorBoard log."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (directory / "logs").glob("*/*/")
    events = EventAccumulator(str(folder))
    wait_until(lambda: bool(events.Reload().Tags()["scalars"]), 10)
    return set(events.Tags()["scalars"])
