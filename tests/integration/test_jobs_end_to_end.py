"""Real torchrun jobs, from the probes in the ranks to what a script reads: expected equals measured to the byte."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import AGENT, TORCHRUN, Viewer, job, output, steps_done, wait_until

from ranktop.budget.live import OTHER_OBJECTS
from ranktop.budget.terms import MOMENTS, STATES
from ranktop.tui.session.expected import difference
from ranktop.tui.session.state import Snapshot
from ranktop.wire.endpoints import find_jobs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]

LARGER = ["--minutes", "3", "--layers", "3", "--hidden", "192", "--batch", "8"]
"""Whose activations are far more than what malloc rounds."""
TOLERANCE = 0.02
"""malloc also serves Python and the libraries, and rounds to pages what it maps."""

DEEPSPEED = """
import os, time, torch, deepspeed
from deepspeed.ops import __compatible_ops__
__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles an operator at start
from ranktop.agent import annotate, report
from ranktop.demo.gpt import GPT, GPTConfig
config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3, "reduce_bucket_size": 5000,
          "stage3_param_persistence_threshold": 100}, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
          "zero_force_ds_cpu_optimizer": False}
torch.manual_seed(0)
model = GPT(GPTConfig(layers=2, hidden=64))
engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.AdamW(model.parameters()))
for step in range(1001, 5001):
    loss = engine(torch.randint(256, (2, 128))).float().logsumexp(-1).mean()
    engine.backward(loss); engine.step()
    with annotate("tallying"):
        report(step=step, total_steps=5000, loss=loss, learning_rate=engine.get_lr()[0], tokens=256)
    if step == 1012:
        with annotate("validation"):
            while not os.path.exists("go on"): time.sleep(0.02)
"""


def demo(*arguments: str) -> list[str]:
    return [*TORCHRUN, "--nproc-per-node", "2", *AGENT, "-m", "ranktop.demo.train", *arguments]


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


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_sharded(strategy: str, tmp_path: Path, viewer: Viewer) -> None:
    with job(demo(*LARGER, "--strategy", strategy, "--accumulate", "2"), tmp_path):
        state = viewer.wait(lambda s: steps_done(s, 6), 90)
        snapshot = viewer.session.snapshot()
    check_all_there_is(state, snapshot, strategy, "full")


def test_ddp_and_a_viewer_that_stops_a_hub_that_is_killed_and_a_rank_that_is(tmp_path: Path, viewer: Viewer) -> None:
    with job(demo(*LARGER, "--strategy", "ddp", "--accumulate", "2"), tmp_path) as process:
        state = viewer.wait(lambda s: steps_done(s, 6), 90)
        check_all_there_is(state, viewer.session.snapshot(), "ddp", None)
        check_a_stopped_viewer_costs_the_job_nothing(viewer)
        check_a_killed_hub_is_replaced_and_marked(viewer)
        assert process.poll() is None
        check_a_killed_rank_is_named_and_the_rest_is_told(viewer)
        assert process.wait(30) == 1
    assert "ranktop: " not in output(tmp_path), "the agent has nothing to say in the job's log"


def check_all_there_is(state: dict[str, Any], snapshot: Snapshot, name: str, sharding: str | None) -> None:
    """Two ranks of the demo: what they train, what they hold and where a step's time goes."""
    assert_exact(state)
    check_every_moment(snapshot)
    assert state["state"] == "running"
    assert state["world_size"] == 2
    plan = state["strategy"]
    assert (plan["name"], plan["sharding"], plan["data_parallel"]) == (name, sharding, 2)
    assert (plan["optimizer"], plan["micro_batch"], plan["sequence_length"], plan["accumulation"]) == (
        "AdamW",
        8,
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


def check_every_moment(snapshot: Snapshot) -> None:
    """The budget as the dashboard has it, beside what the agent reads from malloc in a script that is not ours."""
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
            print(f"rank {rank.rank} {moment:14} {wanted:>9} {measured:>9} {measured / wanted - 1:+.2%}")
            assert abs(measured - wanted) <= TOLERANCE * wanted


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_deepspeed(tmp_path: Path, viewer: Viewer) -> None:
    """The other stages, in processes of the tests' own: ``test_deepspeed_states.py``."""
    (tmp_path / "train.py").write_text(DEEPSPEED)
    command = [*TORCHRUN, "--nproc-per-node", "2", *AGENT, "train.py"]
    with job(command, tmp_path, DS_ACCELERATOR="cpu"):
        state = viewer.wait(lambda s: steps_done(s, 8) and all(r["activity"] == "validation" for r in s["ranks"]), 90)
        (tmp_path / "go on").touch()
        later = viewer.wait(lambda s: s["progress"]["step"] > 1020 and s["ranks"][0]["activity"] != "validation", 30)
    assert_exact(state)
    assert state["strategy"]["name"] == "zero3"
    assert [rank["step"]["phase"] for rank in state["ranks"]] == ["eval", "eval"]
    for told in (state["progress"], *(rank["progress"] for rank in state["ranks"])):
        assert (told["step"], told["loss_step"], told["total_steps"], told["source"]) == (1012, 1012, 5000, "script")
        assert 5 < told["loss"] < 7, "the logarithm of 256, and a little"
        assert told["learning_rate"] == 1e-3
    assert later["progress"]["loss_step"] == later["progress"]["step"]
    assert all(0.2 < rank["rate"]["tokens_per_second"] * later["step_seconds"] / 256 < 5 for rank in later["ranks"])
    told = viewer.session.snapshot().ranks[0].history
    assert told is not None
    assert told.last("loss_step") == later["progress"]["step"]


def check_a_stopped_viewer_costs_the_job_nothing(viewer: Viewer) -> None:
    """A viewer that is stopped while it follows is forgotten; a new one has the whole history."""
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


def check_a_killed_hub_is_replaced_and_marked(viewer: Viewer) -> None:
    before = viewer.state()
    hub = find_jobs().jobs[0].hub_pid
    os.kill(hub, signal.SIGKILL)
    wait_until(lambda: any(entry.hub_pid != hub for entry in find_jobs().jobs), 30)
    reached = max(rank["step"]["index"] for rank in before["ranks"]) + 5
    state = viewer.wait(lambda s: steps_done(s, reached))
    assert state["id"] == before["id"]
    assert "hub-replaced" in {event.what for event in viewer.session.marks}


def check_a_killed_rank_is_named_and_the_rest_is_told(viewer: Viewer) -> None:
    known = viewer.wait(lambda state: all(rank["pid"] is not None for rank in state["ranks"]))
    os.kill(known["ranks"][1]["pid"], signal.SIGKILL)
    state = viewer.wait(lambda s: s["state"] == "ended", 60)
    assert state["ranks"][1]["end"] == {"how": "signal", "code": 9, "detail": "SIGKILL"}
    assert state["ranks"][1]["state"] == "killed"
    assert state["ranks"][0]["state"] in {"killed", "failed"}, "torchrun ends it, or gloo fails in it"
    culprit = viewer.session.snapshot().culprit()
    assert culprit is not None
    assert culprit.rank == 1, "the first to go, not the one that failed in a collective because of it"
    assert state["ranks"][1]["measured"]["parameters"] > 0, "the last words outlive the rank"
