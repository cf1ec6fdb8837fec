"""What real jobs leave behind: out of memory in every way, killed by the kernel, stopped, restarted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import AGENT, TORCHRUN, Viewer, job, output, wait_until

from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Reset
from ranktop.tui.session.state import Session
from ranktop.wire.endpoints import AGENTS_SOCKET, find_jobs
from ranktop.wire.schema import Box

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]

MIB = 1 << 20
V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")

TRAIN = """
import glob, os, resource, sys, time
import torch, torch.distributed as dist
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 32)
        self.fault = None
    def forward(self, x, mask=None):
        if self.fault is not None:
            self.fault()
        return self.inner(x)

def raised():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
                                 "79.15 GiB of which 1.06 GiB is free.")

held = []
def limited():
    size = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20),) * 2)
    while True:
        held.append(torch.ones(64 << 18))

def python():
    bytearray(1 << 62)

def eat():
    while True:
        held.append(bytearray(os.urandom(1 << 20)) * 16)
        time.sleep(0.01)

def handled():
    try:
        raised()
    except torch.OutOfMemoryError:
        pass

def told():
    try:
        raised()
    except torch.OutOfMemoryError as error:
        sys.exit(f"no memory: {type(error).__name__}")

rank, restart = int(os.environ.get("RANK", 0)), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
fault, steps, victim = os.environ.get("FAULT"), int(os.environ.get("STEPS", 0)), int(os.environ.get("VICTIM", 1))
if "RANK" in os.environ and not os.environ.get("APART"):
    dist.init_process_group("gloo")
torch.manual_seed(0)
net = Net()
model = nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
if os.environ.get("ATTACH"):
    import ranktop.agent
    ranktop.agent.attach(model)
# Without one, the compiler is not imported, which takes as long as torch.
optimizer = None if os.environ.get("BARE") else torch.optim.AdamW(model.parameters())
step = 0
while True:
    step += 1
    if fault and restart == 0 and rank == victim and step == steps:
        while os.environ.get("HUB") and not glob.glob(os.environ["HUB"]):
            time.sleep(0.02)
        if os.environ.get("IN_LOOP"):
            open("began", "w").write(str(time.monotonic()))
            globals()[fault]()
        net.fault = globals()[fault]
    model(torch.randn(4, 32), mask=torch.ones(4, dtype=torch.bool)).sum().backward()
    if optimizer is not None:
        optimizer.step()
    model.zero_grad()
    time.sleep(0.01)
    if step == 4 * (steps or 10**9) and not os.environ.get("APART"):  # else this rank may end before it is ended
        break
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def torchrun(script: Path, *options: str) -> list[str]:
    return [*TORCHRUN, *options, "--nproc-per-node", "2", *AGENT, str(script)]


def wait_for(viewer: Viewer, wanted: Callable[[RankView], bool], rank: int = 1, seconds: float = 60.0) -> RankView:
    """Return the rank as soon as it is what is wanted."""
    found: list[RankView] = []

    def seen(_: object) -> bool:
        view = viewer.session.snapshot(copy_history=True).rank(rank)
        found[:] = [view] if view is not None and wanted(view) else []
        return bool(found)

    viewer.wait(seen, seconds)
    return found[0]


def late() -> Session:
    """Return what a viewer knows that comes only now."""
    (entry,) = find_jobs().jobs
    source, session = HubSource(entry.directory), Session()
    try:
        deadline = time.monotonic() + 10
        while not source.caught_up:
            assert time.monotonic() < deadline
            source.poll(0.1)
            events = source.drain()
            assert any(isinstance(event, Reset) for event in events) or session.job is not None or not events
            session.feed(events)
    finally:
        source.close()
    assert not session.failure
    return session


def test_a_rank_out_of_memory_leaves_a_box_that_a_late_viewer_reads(
    script: Path, tmp_path: Path, viewer: Viewer
) -> None:
    with job(torchrun(script), tmp_path, FAULT="limited", STEPS="60"):
        followed = wait_for(viewer, lambda view: view.box is not None and view.end is not None)
        view = late().snapshot().rank(1)
    assert view is not None
    assert view.box == followed.box
    box = view.box
    assert box is not None
    assert (view.state, view.end.how if view.end else "") == ("failed", "exception")
    check_what_a_box_holds(box, "limited")
    assert any((group.enqueued or 0) > 50 for group in box.collectives.groups) or box.collectives.reason
    assert view.footprints
    assert view.sample is not None
    assert view.sample.step == 59
    assert box.asked == 64 * MIB
    assert "ulimit -v" in box.reasons["limit"]
    assert box.limit is not None
    assert box.free is not None
    assert box.free < 64 * MIB < box.limit
    assert "DefaultCPUAllocator" in box.error
    other = late_rank_zero(viewer)
    assert other.box is None


def check_what_a_box_holds(box: Box, fault: str) -> None:
    assert (box.step, box.phase, box.inputs) == (59, "forward", ("float32 [4, 32]", "mask: bool [4]"))
    assert box.calls[0].file == "train.py"
    assert box.calls[-1].function == fault
    assert box.memory.parameters == 4 * (32 * 32 + 32)
    assert box.allocator.allocated is not None


def late_rank_zero(viewer: Viewer) -> RankView:
    view = viewer.session.snapshot().rank(0)
    assert view is not None
    return view


BARE = {"STEPS": "10", "VICTIM": "0", "BARE": "1"}
"""For one process without an optimizer."""


def test_a_handled_out_of_memory_leaves_no_box(script: Path, tmp_path: Path, viewer: Viewer) -> None:
    with job([sys.executable, *AGENT, str(script)], tmp_path, FAULT="handled", **BARE) as process:
        view = wait_for(viewer, lambda view: view.end is not None, rank=0)
        assert process.wait(60) == 0
    assert (view.state, view.box) == ("ended", None)


def alone(script: Path, directory: Path, agent: list[str], **extra: str) -> tuple[int, bytes, bytes, float]:
    """Run the script as one process; returns its exit code, its output and its seconds from the fault to the end."""
    env = {**os.environ, "RANKTOP_RUN_DIR": str(directory / "run"), "RANKTOP_HUB_LINGER": "20", **BARE}
    env |= {"RANKTOP_INTERVAL": "0.2", "OMP_NUM_THREADS": "1", "STEPS": "5", **extra}
    done = subprocess.run(
        [sys.executable, *agent, str(script)], cwd=directory, env=env, capture_output=True, timeout=60, check=False
    )
    ended = time.monotonic()
    return done.returncode, done.stdout, done.stderr, ended - float((directory / "began").read_text())


@pytest.mark.parametrize(
    ("fault", "way"),
    [("raised", "runner"), ("told", "runner"), ("python", "attach")],
)
def test_exit_code_and_output_are_what_they_are_without_the_agent(
    fault: str, way: str, script: Path, tmp_path: Path, viewer: Viewer
) -> None:
    agent = AGENT if way == "runner" else []
    # Not within forward: there torch itself shows one frame more of a module that has hooks.
    extra = {"FAULT": fault, "IN_LOOP": "1", "ATTACH": "1" if way == "attach" else ""}
    off = alone(script, tmp_path, agent, RANKTOP_DISABLE="1", **extra)
    # Where the machine is busy, so short a script would be over before its hub is up.
    on = alone(script, tmp_path, agent, HUB=str(tmp_path / "run" / "*" / AGENTS_SOCKET), **extra)
    assert on[:3] == off[:3]
    assert b"Error" in on[2]
    assert b"ranktop" not in on[2]
    # On a machine that is busy either takes longer, in proportion.
    assert on[3] < 5.0 + 4 * off[3], "the end of the process waits for the last words no longer than EXIT_DEADLINE"
    view = wait_for(viewer, lambda view: view.end is not None, rank=0)
    assert view.box is not None
    assert view.box.calls[-1].function in {fault, "raised"}
    assert view.box.inputs == ()
    assert view.box.reasons["inputs"].endswith("of an earlier step: 4 samples")


@pytest.fixture
def cgroup() -> Iterator[tuple[Path, str]]:
    """Make a memory cgroup, where this machine lets us; gives its folder and the name of its limit."""
    made = next(filter(None, map(make_group, ((V1, "memory.limit_in_bytes"), (V2, "memory.max")))), None)
    if made is None:
        pytest.skip("no memory cgroup can be made here")
    yield made
    folder, _ = made
    wait_until(lambda: not (folder / "cgroup.procs").read_text().strip(), 20)
    folder.rmdir()


def make_group(kind: tuple[Path, str]) -> tuple[Path, str] | None:
    root, limit = kind
    folder = root / f"ranktop-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        return None
    if os.access(folder / limit, os.W_OK):
        return folder, limit
    folder.rmdir()
    return None


def test_the_kernels_oom_killer_is_named(
    script: Path, tmp_path: Path, viewer: Viewer, cgroup: tuple[Path, str]
) -> None:
    folder, limit = cgroup
    (folder / limit).write_text(f"{1536 * MIB}")
    inside = ["/bin/sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    with job([*inside, sys.executable, *AGENT, str(script)], tmp_path, FAULT="eat", **BARE):
        view = wait_for(viewer, lambda view: view.end is not None, rank=0, seconds=90)
        again = late().snapshot().rank(0)
    assert view.end is not None
    assert (view.end.how, view.end.code) == ("signal", 9)
    assert view.end.detail == "SIGKILL by the kernel's OOM killer: its cgroup's limit is 1.5 GiB"
    assert again is not None
    assert again.end == view.end
    assert view.box is None


def test_a_restarted_rank_tells_of_its_former_life(script: Path, tmp_path: Path, viewer: Viewer) -> None:
    with job(torchrun(script, "--max-restarts", "1"), tmp_path, FAULT="raised", STEPS="60", APART="1"):
        followed = wait_for(viewer, lambda view: view.restart == 1 and view.sample is not None and view.sample.step > 3)
        other = wait_for(viewer, lambda view: view.restart == 1 and view.former is not None, rank=0)
        session = late()
        told = session.snapshot().rank(1)
    assert told is not None
    for view in (followed, told):
        assert view.former is not None
        assert (view.former.how, view.former.code) == ("exception", 1)
        assert view.former_box is not None
        check_what_a_box_holds(view.former_box, "raised")
        assert (view.former_box.asked, view.former_box.limit) == (2 << 30, round(79.15 * (1 << 30)))
        assert view.box is None
        assert view.end is None
        assert [mark.what for mark in view.marks] == ["restart"]
        assert view.former_footprints
    assert other.former is not None
    assert other.former.how in {"signal", "exception"}
    assert followed.marks[0].at == pytest.approx(told.marks[0].at, abs=0.5)
    assert re.search(r"OutOfMemoryError: CUDA out of memory", output(tmp_path))
