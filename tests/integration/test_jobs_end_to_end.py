"""Real torchrun jobs, from the probes in the ranks to what a script reads: expected equals measured to the byte."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import AGENT, TORCHRUN, Viewer, job, output, steps_done, wait_until

from ranktop.budget.live import OTHER_OBJECTS
from ranktop.wire.endpoints import find_jobs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]

STATES = ("parameters", "gradients", "optimizer")
SMALL = ["--minutes", "3", "--layers", "2", "--hidden", "64", "--batch", "2"]

DEEPSPEED = """
import os, torch, deepspeed
from deepspeed.ops import __compatible_ops__
__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles an operator at start
from ranktop.demo.gpt import GPT, GPTConfig
stage = int(os.environ["STAGE"])
config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage, "reduce_bucket_size": 5000,
          "stage3_param_persistence_threshold": 100}, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
          "zero_force_ds_cpu_optimizer": False}
torch.manual_seed(0)
model = GPT(GPTConfig(layers=2, hidden=64))
engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.AdamW(model.parameters()))
for _ in range(4000):
    loss = engine(torch.randint(256, (2, 128))).float().logsumexp(-1).mean()
    engine.backward(loss); engine.step()
"""


def demo(*arguments: str, ranks: int = 2) -> list[str]:
    return [*TORCHRUN, "--nproc-per-node", str(ranks), *AGENT, "-m", "ranktop.demo.train", *SMALL, *arguments]


def assert_exact(state: dict[str, Any]) -> None:
    for rank in state["ranks"]:
        for category in STATES:
            assert rank["measured"][category] == rank["expected"][category], (rank["rank"], category, rank["rules"])
            assert rank["rules"][category]
        alive = rank["expected"]["activations"]
        assert abs(rank["measured"]["activations"] - alive) <= 0.02 * alive + OTHER_OBJECTS
        assert "activations" not in rank["reasons"]
        for memory in (rank["now"], *rank["moments"].values()):
            assert sum(value for key, value in memory.items() if key != "total") == memory["total"]
        assert rank["agent"]["errors"] == 0
        assert rank["state"] == "ok"


@pytest.mark.parametrize(
    ("strategy", "name", "sharding"), [("ddp", "ddp", None), ("fsdp1", "fsdp1", "full"), ("fsdp2", "fsdp2", "full")]
)
def test_torch_strategies(strategy: str, name: str, sharding: str | None, tmp_path: Path, viewer: Viewer) -> None:
    with job(demo("--strategy", strategy, "--accumulate", "2"), tmp_path):
        state = viewer.wait(lambda s: steps_done(s, 12))
    assert_exact(state)
    assert state["state"] == "running"
    assert state["world_size"] == 2
    plan = state["strategy"]
    assert (plan["name"], plan["sharding"], plan["data_parallel"]) == (name, sharding, 2)
    assert (plan["optimizer"], plan["micro_batch"], plan["sequence_length"], plan["accumulation"]) == (
        "AdamW",
        2,
        128,
        2,
    )
    ranks = state["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert all(rank["device"]["kind"] == "host" and rank["device"]["total"] > 0 for rank in ranks)
    for rank in ranks:
        step = rank["step"]
        parts = [step[phase] for phase in ("data", "forward", "backward", "optimizer")]
        assert step["seconds"] == pytest.approx(sum(parts), rel=0.05)
        assert step["micro_batches"] == 2
        assert any(group["enqueued"] for group in rank["collectives"]["groups"])


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
@pytest.mark.parametrize("stage", [1, 3])
def test_deepspeed(stage: int, tmp_path: Path, viewer: Viewer) -> None:
    (tmp_path / "train.py").write_text(DEEPSPEED)
    command = [*TORCHRUN, "--nproc-per-node", "2", *AGENT, "train.py"]
    with job(command, tmp_path, STAGE=str(stage), DS_ACCELERATOR="cpu"):
        state = viewer.wait(lambda s: steps_done(s, 8), 90)
    assert_exact(state)
    assert state["strategy"]["name"] == f"zero{stage}"


def test_a_killed_rank_is_named_and_the_rest_is_told(tmp_path: Path, viewer: Viewer) -> None:
    with job(demo("--strategy", "ddp"), tmp_path) as process:
        state = viewer.wait(lambda s: steps_done(s, 3))
        os.kill(state["ranks"][1]["pid"], signal.SIGKILL)
        state = viewer.wait(lambda s: s["state"] == "ended", 60)
        assert process.wait(30) == 1
    assert state["ranks"][1]["end"] == {"how": "signal", "code": 9, "detail": "SIGKILL"}
    assert state["ranks"][1]["state"] == "killed"
    assert state["ranks"][0]["state"] in {"killed", "failed"}, "torchrun ends it, or gloo fails in it"
    culprit = viewer.session.snapshot().culprit()
    assert culprit is not None
    assert culprit.rank == 1, "the first to go, not the one that failed in a collective because of it"
    assert state["ranks"][1]["measured"]["parameters"] > 0, "the last words outlive the rank"
    assert "ranktop: " not in output(tmp_path), "the agent has nothing to say in the job's log"


def test_a_killed_hub_is_replaced_and_marked(tmp_path: Path, viewer: Viewer) -> None:
    with job(demo("--strategy", "ddp"), tmp_path) as process:
        before = viewer.wait(lambda s: steps_done(s, 3))
        hub = find_jobs().jobs[0].hub_pid
        os.kill(hub, signal.SIGKILL)
        wait_until(lambda: any(entry.hub_pid != hub for entry in find_jobs().jobs), 30)
        reached = max(rank["step"]["index"] for rank in before["ranks"]) + 5
        state = viewer.wait(lambda s: steps_done(s, reached))
        assert process.poll() is None
    assert state["id"] == before["id"]
    assert "hub-replaced" in {event.what for event in viewer.session.marks}


def test_a_stopped_viewer_costs_the_job_nothing(tmp_path: Path, viewer: Viewer) -> None:
    """A viewer that is stopped while it follows is forgotten; a new one has the whole history."""
    import subprocess

    with job(demo("--strategy", "ddp"), tmp_path):
        viewer.wait(lambda s: steps_done(s, 3))
        follower = (
            "import sys, time\nfrom pathlib import Path\nfrom ranktop.tui.session.receiver import HubSource\n"
            "source = HubSource(Path(sys.argv[1]))\nprint('following', flush=True)\n"
            "while True:\n    source.poll(1.0); source.drain()\n"
        )
        directory = str(find_jobs().jobs[0].directory)
        stopped = subprocess.Popen([sys.executable, "-c", follower, directory], stdout=subprocess.PIPE, text=True)
        try:
            assert stopped.stdout is not None
            assert stopped.stdout.readline() == "following\n"
            os.kill(stopped.pid, signal.SIGSTOP)
            before = viewer.state()["ranks"][0]["step"]["index"]
            state = viewer.wait(lambda s: steps_done(s, before + 25))
            assert all(rank["agent"]["dropped"] == 0 for rank in state["ranks"])
        finally:
            stopped.kill()
            stopped.communicate()
        late = Viewer()
        late.wait(lambda s: steps_done(s, before + 25))
        history = late.session.ranks[0].history
        late.close()
    assert history.column("step")[0] <= 3, "a viewer that comes late has the history from the start"
