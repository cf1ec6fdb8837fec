"""Hugging Face's trainers, unedited, on two ranks: strategy, precision, batch, states, progress and pauses as shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import accelerate
import pytest
import transformers
import trl
from hf_worker import ACCUMULATION, LENGTH, MICRO_BATCH, STEPS
from jobs import AGENT, TORCHRUN, Viewer, environment, job, output

pytestmark = pytest.mark.usefixtures("run_directory")

WORKER = str(Path(__file__).with_name("hf_worker.py"))
TWO = [*TORCHRUN, "--nproc-per-node", "2"]
QUIET = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false"}
STATES = ("parameters", "gradients", "optimizer")
TRAINER = f"transformers {transformers.__version__} Trainer"
TIMES = ("runtime", "_per_second")


def followed(command: list[str], directory: Path, viewer: Viewer, seen: set[str] | None = None) -> dict[str, Any]:
    """Run a job to its end; return the last state of it."""

    def over(state: dict[str, Any]) -> bool:
        if seen is not None:
            seen.update(rank["activity"] or "" for rank in state["ranks"])
        return bool(state["state"] == "ended")

    with job(command, directory, **QUIET, RANKTOP_INTERVAL="0.1") as process:
        state = viewer.wait(over, 150)
        assert process.wait(30) == 0, output(directory)
    assert "agent met an error" not in output(directory), output(directory)
    return state


def healthy(state: dict[str, Any], directory: Path, counted: tuple[str, ...] = STATES) -> None:
    """What a healthy job must show: its batch, bytes as counted and as expected, nothing found."""
    strategy = state["strategy"]
    batch = (strategy["micro_batch"], strategy["accumulation"], strategy["sequence_length"])
    assert batch == (MICRO_BATCH, ACCUMULATION, LENGTH)
    assert [finding["sentence"] for finding in state["findings"]] == []
    assert len(state["ranks"]) == 2
    for rank in state["ranks"]:
        own = json.loads((directory / f"counted-{rank['rank']}.json").read_text()) if counted else {}
        for name in (*STATES, "buffers"):
            assert rank["measured"][name] == rank["expected"][name], (rank["rank"], name)
        for name in counted:
            # Counted after backward, before the step.
            assert rank["moments"]["backward_end"][name] == own[name], (rank["rank"], name)
        off = abs(rank["measured"]["activations"] - rank["expected"]["activations"])
        assert off <= rank["tolerance"]["activations"]


def told(state: dict[str, Any]) -> None:
    """What the Trainer tells of its progress arrives."""
    for rank in state["ranks"]:
        progress = rank["progress"]
        assert progress["source"] == "transformers Trainer"
        assert (progress["step"], progress["total_steps"], progress["loss_step"]) == (STEPS, STEPS, STEPS)
        assert 5.0 < progress["loss"] < 7.5
        assert 0 < progress["learning_rate"] < 5e-5
        assert progress["gradient_norm"] > 0


def test_a_trainer_under_ddp_is_followed_and_does_what_it_does_without_it(tmp_path: Path, viewer: Viewer) -> None:
    watched, alone = tmp_path, tmp_path / "alone"
    alone.mkdir()
    seen: set[str] = set()
    command = [*TWO, *AGENT, WORKER, "ddp"]
    state = followed(command, watched, viewer, seen)
    healthy(state, watched)
    told(state)
    assert {"evaluation", "save"} <= seen
    assert state["strategy"]["words"] == "DDP · dp 2 · fp32 autocast bf16 · AdamW"
    assert state["strategy"]["checkpointing"] == "none"
    assert {rank["trainer"] for rank in state["ranks"]} == {TRAINER}
    assert state["ranks"][0]["progress"]["values"]["eval_loss"]["step"] == STEPS
    assert "callbacks: DefaultFlowCallback AutomaticRanktopCallback Counting PrinterCallback" in output(watched)

    env = environment(alone, **QUIET, RANKTOP_DISABLE="1")
    done = subprocess.run(command, cwd=alone, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "callbacks: DefaultFlowCallback Counting PrinterCallback" in done.stdout
    for step in (10, 20, STEPS):
        one, other = (folder / "out" / f"checkpoint-{step}" for folder in (watched, alone))
        names = {file.name for file in one.iterdir()}
        assert names == {file.name for file in other.iterdir()}
        assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= names
        for name in names - {"trainer_state.json"}:
            assert (one / name).read_bytes() == (other / name).read_bytes(), (step, name)
        assert without_times(one / "trainer_state.json") == without_times(other / "trainer_state.json")


def without_times(file: Path) -> Any:
    """Return a trainer's state without how long things took."""
    state = json.loads(file.read_text())
    state["log_history"] = [
        {name: value for name, value in entry.items() if not name.endswith(TIMES)} for entry in state["log_history"]
    ]
    return state


def test_deepspeed_zero_by_a_trainers_json(tmp_path: Path, viewer: Viewer) -> None:
    state = followed([*TWO, *AGENT, WORKER, "zero3"], tmp_path, viewer)
    # What DeepSpeed holds is counted storage by storage in test_live_budget_jobs.
    healthy(state, tmp_path, counted=())
    told(state)
    assert state["strategy"]["words"] == "ZeRO-3 · dp 2 · bf16 + fp32 master · AdamW"
    assert {rank["trainer"] for rank in state["ranks"]} == {TRAINER}


def test_lora_under_fsdp2_by_a_trainers_arguments(tmp_path: Path, viewer: Viewer) -> None:
    state = followed([*TWO, *AGENT, WORKER, "fsdp2_lora"], tmp_path, viewer)
    healthy(state, tmp_path)
    told(state)
    assert state["strategy"]["words"] == "FSDP2 full shard · dp 2 · bf16/fp32 · AdamW"
    rank = state["ranks"][0]
    assert rank["measured"]["optimizer"] < rank["measured"]["parameters"] / 10
    assert "Llama-like" in rank["rules"]["activations"]


def test_sft_with_lora_and_checkpointing_by_the_explicit_callback(tmp_path: Path, viewer: Viewer) -> None:
    state = followed([*TWO, WORKER, "explicit"], tmp_path, viewer)
    healthy(state, tmp_path)
    told(state)
    # TRL trains in bf16 unless it is told not to.
    assert state["strategy"]["words"] == "DDP · dp 2 · fp32 autocast bf16 · AdamW"
    assert state["strategy"]["checkpointing"] == "full"
    assert {rank["trainer"] for rank in state["ranks"]} == {f"trl {trl.__version__} SFTTrainer"}


def test_accelerate_launch_starts_the_agent(tmp_path: Path, viewer: Viewer) -> None:
    """A plain loop, with Accelerate's plugin for FSDP1."""
    launch = [str(Path(sys.executable).with_name("accelerate")), "launch", "--multi_gpu", "--num_processes", "2"]
    state = followed([*launch, *AGENT, WORKER, "fsdp1"], tmp_path, viewer)
    healthy(state, tmp_path)
    assert state["strategy"]["words"] == "FSDP1 full shard · dp 2 · bf16/fp32 autocast bf16 · AdamW"
    assert {rank["trainer"] for rank in state["ranks"]} == {f"accelerate {accelerate.__version__}"}
