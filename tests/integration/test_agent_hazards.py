"""Scripts that an agent could break: each must do the same, to the byte, with and without one."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from test_run_unchanged import run

SCRIPTS = {
    # The interpreter's own state.
    "annotations": (
        "from dataclasses import dataclass, fields\n@dataclass\nclass A:\n    x: int = 1\nprint(fields(A)[0].type)\n"
    ),
    "builtins": "__builtins__.profile = 1\nprint(profile, sorted(globals()))\n",
    "text_of_an_error_raises": "class E(Exception):\n    def __str__(self): raise ValueError('no text')\nraise E\n",
    "no_stderr": "import sys\nsys.stderr = None\nimport time; time.sleep(0.3); print('on')\n",
    "broken_stderr": (
        "import sys, time\nclass Broken:\n    def write(self, text): raise BrokenPipeError\n    flush = write\n"
        "sys.stderr = Broken()\ntime.sleep(0.3); print('on')\n"
    ),
    # Processes, signals, descriptors.
    "waits_for_any_child": (
        "import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(0.7); os._exit(3)\nprint(os.wait()[0] == pid)\n"
    ),
    "counts_ended_children": (
        "import signal, time\nended = []\nsignal.signal(signal.SIGCHLD, lambda *_: ended.append(1))\n"
        "until = time.time() + 0.7\nwhile time.time() < until: time.sleep(0.02)\nprint(ended)\n"
    ),
    "waits_for_a_signal": (
        "import os, signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\ntime.sleep(0.3)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\nprint(signal.sigwait({signal.SIGUSR1}))\n"
    ),
    "closes_descriptors": (
        "import os, time\ntime.sleep(0.8)\nos.closerange(3, 1000)\n"
        "file = open('saved', 'wb', 0)\nfor _ in range(5):\n    file.write(b'a' * 10); time.sleep(0.3)\n"
        "print(os.path.getsize('saved'))\n"
    ),
    "few_descriptors": (
        "import resource, time\ntime.sleep(0.6)\nresource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))\n"
        "time.sleep(0.6)\nprint('on')\n"
    ),
    "no_current_folder": (
        "import os, tempfile, time\nfolder = tempfile.mkdtemp(); os.chdir(folder); os.rmdir(folder)\n"
        "time.sleep(0.5); print('on')\n"
    ),
}


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_script_is_its_own(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPTS[name])
    assert run(["train.py"], tmp_path, agent=True) == run(["train.py"], tmp_path, agent=False)


def test_a_script_that_looks_torch_up_before_it_imports_it_is_watched(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import importlib.util\nprint(importlib.util.find_spec('torch').name)\nimport torch\n"
        "from ranktop.agent import attaching\nassert attaching._agent.watch is not None\n"
    )
    assert run(["train.py"], tmp_path, agent=True) == (0, "torch\n", "")


def test_an_agent_that_is_made_to_exit_says_so_and_the_script_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys, time, types\nclass Exits(types.ModuleType):\n"
        "    def __getattr__(self, name): raise SystemExit(9)\n"
        "name = 'torch.distributed.distributed_c10d'\nsys.modules[name] = Exits(name)\n"
        "time.sleep(1.5)\nprint('trained')\n"
    )
    code, out, err = run(["train.py"], tmp_path, agent=True)
    assert (code, out) == (0, "trained\n")
    assert "the agent of rank 0 has ended, training goes on: SystemExit: 9" in err
    assert len(err.splitlines()) <= 2


PATHS = "import sys\nprint(sys.path, sys.argv, __name__, __spec__ and __spec__.name, __file__)\n1 / 0\n"


@pytest.mark.parametrize("target", ["folder", "archive", "module", "script"])
def test_the_import_path_is_the_scripts(target: str, tmp_path: Path) -> None:
    for name in ("folder/__main__.py", "sub/train.py", "module.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(PATHS)
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("__main__.py", PATHS)
    commands = {"module": ["-m", "module"], "script": ["sub/train.py"]}
    command = [*commands.get(target, [target]), "-m", "x"]
    assert run(command, tmp_path, agent=True) == run(command, tmp_path, agent=False)


@pytest.mark.parametrize("flag", ["-I", "-Werror", *(["-P"] if sys.version_info >= (3, 11) else [])])
def test_the_interpreters_options_hold(flag: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.path)\nimport helper\n")
    (tmp_path / "helper.py").write_text("print('found')\n")
    told = []
    for prefix in ([], ["-m", "ranktop.agent"]):
        command = [sys.executable, flag, *prefix, "train.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        told.append((done.returncode, done.stdout, done.stderr))
    assert told[0] == told[1]


def test_files_named_like_libraries_do_not_reach_the_agent(tmp_path: Path) -> None:
    for name in ("queue", "email", "psutil", "zmq"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the library')\n")
    (tmp_path / "train.py").write_text("import time; time.sleep(0.5); print('on')\n")
    assert run(["train.py"], tmp_path, agent=True) == (0, "on\n", "")


@pytest.mark.parametrize("error", ["ImportError", "ValueError"])
def test_a_broken_torch_is_told_as_without_the_agent(error: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"def load():\n    raise {error}('libtorch')\nload()\n")
    (tmp_path / "train.py").write_text(
        f"import traceback\ntry:\n    import torch\nexcept {error}:\n    traceback.print_exc()\nimport torch\n"
    )
    assert run(["train.py"], tmp_path, agent=True) == run(["train.py"], tmp_path, agent=False)


COMPILED = """
import torch
from torch import nn
from torch._dynamo import compiled_autograd, utils
from ranktop.agent import annotate, report
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x):
        return self.two(torch.relu(self.one(x)))
class Scripted(torch.jit.ScriptModule):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 4))
    @torch.jit.script_method
    def forward(self, x):
        return x @ self.weight
def loop(model, step=None):
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(optimizer.step, backend="eager") if step else optimizer.step
    for _ in range(4):
        model(torch.ones(2, 8)).sum().backward(); step(); optimizer.zero_grad()
whole = dict(backend="eager", fullgraph=True)
def inside():
    model = Model(); loop(model); model.compile(**whole); loop(model)
def backward():
    model = Model(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        with compiled_autograd._enable(torch.compile(backend="eager")):
            model(torch.ones(2, 8)).sum().backward()
        optimizer.step(); optimizer.zero_grad()
model = Model()
@torch.compile(**whole)
def telling(x):
    with annotate("validation"):
        loss = model(x).sum()
    report(step=1, loss=loss)
    return loss
cases = dict(around=lambda: loop(torch.compile(Model(), **whole)), inside=inside, step=lambda: loop(Model(), True),
             backward=backward, scripted=lambda: loop(Scripted()), told=lambda: telling(torch.ones(2, 8)))
for name, case in cases.items():
    torch._dynamo.reset(); utils.counters.clear()
    case()
    print(name, dict(utils.counters["stats"]), dict(utils.counters["graph_break"]))
"""


def test_compilers_see_the_same_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMPILED)
    watched = run(["train.py"], tmp_path, agent=True)
    assert watched[0] == 0, watched[2]
    alone = run(["train.py"], tmp_path, agent=False)
    assert watched[1] == alone[1]
    assert len(watched[2].splitlines()) == len(alone[2].splitlines()), watched[2]


def test_no_descriptor_left_costs_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, resource, time\nfrom ranktop.agent import attach\nused = len(os.listdir('/proc/self/fd'))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, used + 3))\nattach()\ntime.sleep(0.7)\nprint('on')\n"
    )
    code, out, err = run(["train.py"], tmp_path, agent=False)
    assert (code, out) == (0, "on\n")
    assert len(err.splitlines()) == 1
    assert "Too many open files" in err


SPAWNED = """
import torch, torch.multiprocessing as mp, torch.distributed as dist, sys
from torch import nn
def work(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    model = nn.Linear(4, 4)
    from ranktop.agent import attach, attaching
    attach(model)
    identity = attaching._agent.sampler.identity
    told = [None, None]
    dist.all_gather_object(told, (identity.rank, identity.job.world_size, identity.job.id))
    if rank == 0:
        print(told[0][:2], told[1][:2], told[0][2] == told[1][2], flush=True)
    dist.destroy_process_group()
    sys.exit(3 * rank)
if __name__ == "__main__":
    try:
        mp.spawn(work, (sys.argv[1],), nprocs=2)
    except mp.ProcessExitedException as error:
        print(error.exit_code)
"""


@pytest.mark.slow
def test_spawned_ranks_are_one_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    code, out, err = run(["train.py", str(tmp_path / "store")], tmp_path, agent=False)
    assert (code, out) == (0, "(0, 2) (1, 2) True\n3\n"), err
