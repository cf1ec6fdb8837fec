"""Scripts as people write them, run as real jobs through the agent: what the viewer must know of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import AGENT, TORCHRUN, Viewer, environment, job, output, steps_done, wait_until

from ranktop.wire.endpoints import find_jobs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]

MODEL = """
import os, sys, time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 16))
def data(): time.sleep(0.01); return torch.randn(8, 64)
"""
NUMEL = 64 * 128 + 128 + 128 * 16 + 16

LOOPS = {
    "no_optimizer": """
for _ in range(4000):
    model(data()).square().mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 1e-3 * p.grad; p.grad = None
""",
    "two_optimizers": """
one = torch.optim.AdamW(model[0].parameters()); two = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
for _ in range(4000):
    model(data()).square().mean().backward()
    for o in (one, two): o.step(); o.zero_grad()
""",
    "compiled": """
model = torch.compile(model, backend="aot_eager"); o = torch.optim.AdamW(model.parameters())
for _ in range(4000):
    model(data()).square().mean().backward(); o.step(); o.zero_grad()
""",
    "one_liner_accumulates": """
from ranktop.agent import attach
o = torch.optim.AdamW(model.parameters())
attach(model, o)
for _ in range(1000):
    for _ in range(4): (model(data()).square().mean() / 4).backward()
    o.step(); o.zero_grad()
""",
    "forks_workers_and_validates": """
from torch.utils.data import DataLoader, TensorDataset
o = torch.optim.AdamW(model.parameters())
for _ in range(80):
    for (x,) in DataLoader(TensorDataset(torch.randn(400, 64)), batch_size=8, num_workers=2):
        model(x).square().mean().backward(); o.step(); o.zero_grad(); time.sleep(0.01)
    with torch.no_grad():
        for _ in range(10): model(data())
""",
    "gan": """
critic = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 1))
g = torch.optim.Adam(model.parameters()); d = torch.optim.Adam(critic.parameters())
for _ in range(4000):
    critic(model(data()).detach()).mean().backward(); d.step(); d.zero_grad()
    critic(model(data())).mean().backward(); g.step(); g.zero_grad()
""",
}


def watch(loop: str, tmp_path: Path, viewer: Viewer, steps: int = 12) -> dict[str, Any]:
    (tmp_path / "train.py").write_text(MODEL + LOOPS[loop])
    prefix = [] if loop.startswith("one_liner") else AGENT
    with job([sys.executable, *prefix, "train.py"], tmp_path):
        return viewer.wait(lambda state: steps_done(state, steps))


def test_without_an_optimizer(tmp_path: Path, viewer: Viewer) -> None:
    state = watch("no_optimizer", tmp_path, viewer)
    rank = state["ranks"][0]
    assert state["world_size"] == 1
    assert rank["measured"]["parameters"] == 4 * NUMEL == rank["expected"]["parameters"]
    assert rank["measured"]["optimizer"] == 0 == rank["expected"]["optimizer"]
    # Nothing tells the end of backward but the next forward, and by then this loop has dropped its gradients.
    assert rank["moments"]["backward_end"]["gradients"] == 0


def test_two_optimizers_on_one_model(tmp_path: Path, viewer: Viewer) -> None:
    rank = watch("two_optimizers", tmp_path, viewer)["ranks"][0]
    first, second = 64 * 128 + 128, 128 * 16 + 16
    states = 2 * 4 * first + 2 * 4 + 4 * second  # AdamW: two moments and a step per tensor; SGD: momentum
    assert rank["measured"]["optimizer"] == states == rank["expected"]["optimizer"]
    assert rank["step"]["micro_batches"] == 1


def test_the_states_of_a_compiled_model_are_exact(tmp_path: Path, viewer: Viewer) -> None:
    check_usual_states(watch("compiled", tmp_path, viewer)["ranks"][0])


def check_usual_states(rank: dict[str, Any]) -> None:
    for moment, gradients in (("step_start", 0), ("backward_end", 4 * NUMEL)):
        assert rank["moments"][moment]["parameters"] == 4 * NUMEL
        assert rank["moments"][moment]["gradients"] == gradients
        assert rank["moments"][moment]["optimizer"] == 2 * 4 * NUMEL + 4 * 4
    assert rank["agent"]["errors"] == 0
    assert rank["agent"]["dropped"] == 0


def test_a_second_model_counts_too(tmp_path: Path, viewer: Viewer) -> None:
    rank = watch("gan", tmp_path, viewer, steps=20)["ranks"][0]
    numel = NUMEL + 16 * 8 + 8 + 8 + 1
    assert rank["measured"]["parameters"] == 4 * numel == rank["expected"]["parameters"]
    assert rank["moments"]["backward_end"]["optimizer"] == 2 * 4 * numel + 4 * 8 == rank["expected"]["optimizer"]
    assert rank["step"]["micro_batches"] == 2, "the generator runs twice, but only its own optimizer ends its step"


def check_every_memory_adds_up(rank: dict[str, Any]) -> None:
    for memory in (rank["now"], rank["measured"], *rank["moments"].values()):
        parts = [value for key, value in memory.items() if key != "total"]
        assert None not in parts
        assert sum(parts) == memory["total"]
    assert set(rank["moments"]) == {"step_start", "forward_end", "backward_start", "backward_end", "step_end"}


def test_one_line_does_and_accumulation_is_seen(tmp_path: Path, viewer: Viewer) -> None:
    state = watch("one_liner_accumulates", tmp_path, viewer, steps=20)
    check_usual_states(state["ranks"][0])
    assert state["ranks"][0]["step"]["micro_batches"] == 4
    assert state["strategy"]["accumulation"] == 4
    assert state["strategy"]["micro_batch"] == 8


def test_forked_workers_do_not_speak_and_states_are_exact_beside_validation(tmp_path: Path, viewer: Viewer) -> None:
    (tmp_path / "train.py").write_text(MODEL + LOOPS["forks_workers_and_validates"])
    with job([sys.executable, *AGENT, "train.py"], tmp_path) as process:
        state = viewer.wait(lambda s: steps_done(s, 250))
    assert [rank["pid"] for rank in state["ranks"]] == [process.pid]
    assert state["ranks"][0]["restart"] == 0
    check_usual_states(state["ranks"][0])
    check_every_memory_adds_up(state["ranks"][0])


WAIT = "import os, sys, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
"""A script ends when its rank has been heard of: how one ended that was gone before its hub is up, nobody can tell."""


def let_go(tmp_path: Path, viewer: Viewer, ranks: int) -> None:
    viewer.wait(lambda s: sum(rank["pid"] is not None for rank in s["ranks"]) == ranks)
    (tmp_path / "go").touch()


ENDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "os_exit": ("os._exit(9)", {"how": "exit", "code": 9}),
    "exit_code": ("sys.exit(4)", {"how": "exit", "code": 4}),
    "error": ("raise ValueError('bad learning rate')", {"how": "exception", "detail": "ValueError: bad learning rate"}),
    "killed": ("os.kill(os.getpid(), 9)", {"how": "signal", "code": 9, "detail": "SIGKILL"}),
    "plain": ("", {"how": "exit", "code": 0}),
}


@pytest.mark.parametrize("ending", sorted(ENDINGS))
def test_the_end_is_told(ending: str, tmp_path: Path, viewer: Viewer) -> None:
    last_words, expected = ENDINGS[ending]
    (tmp_path / "train.py").write_text(f"{WAIT}{last_words}\n")
    with job([sys.executable, *AGENT, "train.py"], tmp_path) as process:
        let_go(tmp_path, viewer, 1)
        state = viewer.wait(lambda s: s["state"] == "ended", 20)
        process.wait(10)
    end = state["ranks"][0]["end"]
    assert {key: end[key] for key in expected} == expected
    alone = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, check=False)
    assert process.returncode == alone.returncode


def test_a_first_line_that_dies_under_torchrun(tmp_path: Path, viewer: Viewer) -> None:
    (tmp_path / "train.py").write_text(f"{WAIT}no_such_name\n")
    command = [*TORCHRUN, "--nproc-per-node", "2", *AGENT, "train.py"]
    with job(command, tmp_path) as process:
        let_go(tmp_path, viewer, 2)
        state = viewer.wait(lambda s: s["state"] == "ended", 30)
        assert process.wait(30) == 1
    check_traceback(tmp_path)
    hows = {rank["end"]["how"] for rank in state["ranks"]}
    assert "exception" in hows
    assert hows <= {"exception", "signal"}
    assert state["world_size"] == 2


def check_traceback(directory: Path) -> None:
    assert "NameError: name 'no_such_name' is not defined" in output(directory)
    assert "ranktop/agent" not in output(directory)


def test_elastic_restarts_of_a_module_are_counted_in_one_job(tmp_path: Path, viewer: Viewer) -> None:
    (tmp_path / "train.py").write_text(f"{WAIT}if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': no_such_name\n")
    command = [*TORCHRUN, "--nproc-per-node", "1", "--max-restarts", "2", *AGENT, "-m", "train"]
    with job(command, tmp_path, PYTHONPATH=str(tmp_path)):
        let_go(tmp_path, viewer, 1)
        state = viewer.wait(lambda s: s["ranks"][0]["restart"] == 1 and s["state"] == "ended", 40)
    assert state["ranks"][0]["end"]["code"] == 0
    check_traceback(tmp_path)
    assert len(find_jobs().jobs) == 0


def test_nothing_is_left_behind(tmp_path: Path, viewer: Viewer) -> None:
    (tmp_path / "train.py").write_text(MODEL + LOOPS["no_optimizer"].replace("4000", "60"))
    done = subprocess.run(
        [sys.executable, *AGENT, "train.py"],
        cwd=tmp_path,
        env=environment(tmp_path, RANKTOP_HUB_LINGER="0.5"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    wait_until(lambda: not any((tmp_path / "run").iterdir()), 15)
