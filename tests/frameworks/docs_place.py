"""Where the commands of the documentation are run: a folder with the files and jobs that the pages name.

There are one live job (simulated), past ones under the names and ids of the pages, recordings as files, a training
script, a model, configurations, and an ssh server that every machine of the pages is. Three programs are stand-ins:
`ssh` (which leads every name to that server), `torchrun` (two ranks whatever is asked for), and `ranktop` (this
checkout's).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil
from hand_tape import simulated
from jobs import wait_until
from made_recording import items_of, record
from slow_link import ThrottledPty
from sshd import server, why_not

from ranktop.wire.schema import Job

ROOT = Path(__file__).parents[2]
BEGAN = datetime(2026, 3, 3, 10, 39, 30, tzinfo=timezone.utc).timestamp()
"""When the past jobs began: the pages look at 10:42."""

PAST = {"fsdp": "fa11", "zero2": "2e02", "A": "aaa1", "B": "bbb1", "C": "ccc1", "JOB": "0b00", "train": "3f9c21",
        "ab12": "ab12", "cd34": "cd34", "31aa": "31aa"}  # fmt: skip
"""Name -> id of the past jobs."""

FILES = ("before", "after", "main", "branch", "run", "train", "9f2c41d0aa-1767182400")
"""Recordings as files."""

LIVE = "29e0b1"

TRAIN = '''"""Trains a small model on every rank; what the pages call train.py."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

options = argparse.ArgumentParser()
options.add_argument("--lr", type=float, default=1e-3)
given, _ = options.parse_known_args()
dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr)
for _ in range(5):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
'''

MODEL = '''"""A model of one's own, of which the pages trace the class GPT."""

import torch
from torch import nn


class GPT(nn.Module):
    def __init__(self, hidden: int = 64, layers: int = 4, vocab: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))
            for _ in range(layers)
        )
        self.head = nn.Linear(hidden, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)
'''

SSH = """#!/bin/bash
# Every machine is the one on this port, and every user the one that runs this.
words=() skip=
for word in "$@"; do
  if [ -n "$skip" ]; then skip=; continue; fi
  if [ "$word" = -p ]; then skip=1; continue; fi
  words+=("${{word#me@}}")
done
exec {ssh} -F {config} "${{words[@]}}"
"""

TORCHRUN = """#!/bin/bash
# No machine of a test has eight GPUs: two ranks, whatever is asked for.
words=() ranks=
for word in "$@"; do
  if [ -n "$ranks" ]; then word=2 ranks=; fi
  case "$word" in
    --nproc-per-node | --nproc_per_node) ranks=1 ;;
    --nproc-per-node=* | --nproc_per_node=*) word=--nproc-per-node=2 ;;
  esac
  words+=("$word")
done
exec {python} -m torch.distributed.run --rdzv-backend c10d --rdzv-endpoint localhost:0 "${{words[@]}}"
"""


@dataclass
class Place:
    """The prepared folder, and how commands are run in it: each page has a copy of its own."""

    folder: Path
    environment: dict[str, str]

    def of(self, page: str) -> Place:
        """Return the copy for a page, in which its commands are run in their order."""
        folder = self.folder.with_name(page.replace("/", "-").removesuffix(".md"))
        if not folder.exists():
            shutil.copytree(self.folder, folder, symlinks=True)
        return Place(folder, self.environment)

    def run(self, command: str, seconds: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run a command of the shell without a terminal; one that takes too long is ended with all that it started."""
        words = ["bash", "-o", "pipefail", "-c", command]
        process = subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            out, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # torchrun ends its ranks, which have sessions of their own
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(words, process.returncode, out, errors)

    def look(self, command: str, seconds: float = 60.0) -> tuple[int, str]:
        """Run what opens a screen in a terminal, press `q` once it is there; returns the exit code and the picture."""
        words = ["bash", "-c", f"cd {self.folder} && {command}"]
        terminal = ThrottledPty(words, (120, 40), rate=1e9, delay=0.0, environment=self.environment)
        try:
            terminal.until(lambda: " quit" in terminal.text() or terminal.over, seconds)
            picture = terminal.text()
            terminal.press("q")
            return terminal.ended(20.0), picture
        finally:
            terminal.close()


@contextlib.contextmanager
def place(folder: Path) -> Iterator[Place]:
    """Make it; ends what it started on the way out."""
    environment = variables(folder)
    for name in ("bin", "work", "home", "run"):
        (folder / name).mkdir(mode=0o700)
    program(folder / "bin" / "ranktop", f'#!/bin/bash\nexec {sys.executable} -m ranktop.tui.cli "$@"\n')
    program(folder / "bin" / "torchrun", TORCHRUN.format(python=sys.executable))
    for name in ("python", "python3"):
        program(folder / "bin" / name, f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    files(folder / "work")
    past(folder / "state", folder / "work")
    try:
        with live(environment), far(folder, environment):
            yield Place(folder / "work", environment)
    finally:
        wait_until(lambda: not hubs(folder), 20)


def hubs(folder: Path) -> list[int]:
    """Return the process ids of the hubs that still write into the folder; they end soon after their job."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(word.startswith(str(folder / "run")) for word in process.cmdline()):
                found.append(process.pid)
    return found


def variables(folder: Path) -> dict[str, str]:
    """Return the environment: nothing of the user's own."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "VIRTUAL_ENV") if name in os.environ}
    return {
        **kept,
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "RANKTOP_RUN_DIR": str(folder / "run"),
        "RANKTOP_STATE_DIR": str(folder / "state"),
        "RANKTOP_HUB_LINGER": "1",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": ":".join(str(ROOT / root) for root in ("tui", "agent", "probes")),
    }


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def files(folder: Path) -> None:
    """Write what the pages name."""
    shapes = json.loads((ROOT / "tests" / "data" / "model_configs.json").read_text())
    llama = json.dumps(shapes["Meta-Llama-3-8B"]["config"])
    zero = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "overlap_comm": True}}  # fmt: skip
    (folder / "config.json").write_text(llama)
    (folder / "ds.json").write_text(json.dumps(zero))
    (folder / "train.py").write_text(TRAIN)
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(llama)
    (folder / "mypackage").mkdir()
    (folder / "mypackage" / "__init__.py").touch()
    (folder / "mypackage" / "model.py").write_text(MODEL)
    for name in ("docs", "tests"):
        (folder / name).symlink_to(ROOT / name)


def past(state: Path, folder: Path) -> None:
    """Record the past jobs, and copy some of them to where the pages have files."""
    bodies = {seed: simulated(seconds=180, seed=seed, ranks=2) for seed in (3, 4)}
    made: dict[str, Path] = {}
    for at, (name, identity) in enumerate(PAST.items()):
        told = [(t - 1000.0, header.rank, body) for t, header, body in bodies[3 + at % 2]]
        job = Job(id=identity, name=name, world_size=2, launcher="torchrun")
        path = state / f"{identity}-{int(BEGAN)}.ranktop"
        made[name] = record(job, items_of(told), path=path, wall=lambda t: BEGAN + t)
    for at, name in enumerate(FILES):
        shutil.copy(made[("fsdp", "zero2")[at % 2]], folder / f"{name}.ranktop")


@contextlib.contextmanager
def live(environment: dict[str, str]) -> Iterator[None]:
    """Run the live job."""
    command = [sys.executable, "-m", "ranktop.agent.simulation", "--ranks", "4", "--seconds", "0.5", "--id", LIVE]
    job = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout is not None
        assert job.stdout.readline().strip() == "ready"
        yield
    finally:
        job.communicate(timeout=20)


@contextlib.contextmanager
def far(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run the ssh server that all machines of the pages are, where there can be one."""
    if why_not():
        yield
        return
    with server(folder / "far", folder / "run") as made:
        made.configure("Host *", "  HostName 127.0.0.1")
        made.start(path=environment["PATH"], RANKTOP_STATE_DIR=environment["RANKTOP_STATE_DIR"], TZ="UTC")
        program(folder / "bin" / "ssh", SSH.format(ssh=shutil.which("ssh"), config=made.config))
        yield
