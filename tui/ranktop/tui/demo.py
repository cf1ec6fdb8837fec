"""``ranktop demo``: a real torchrun job of a small GPT on this machine, watched until it ends or you quit."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranktop.tui.terminal.kind import can_draw
from ranktop.wire.endpoints import RunDirectoryError, find_jobs, job_directory, run_directory

if TYPE_CHECKING:
    from ranktop.wire.endpoints import JobEntry

STRATEGIES: Final = ("fsdp2", "fsdp1", "ddp", "single")
"""What ``ranktop.demo.train`` knows; torch is needed to ask it."""

START_SECONDS: Final = 120.0
"""Longest wait for the job to appear, and for its tenth step where there is no terminal."""

SNAPSHOT_STEP: Final = 10

END_WITH_PARENT: Final = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Runs Python with the given arguments and has Linux send it SIGTERM when this process dies, however it dies."""


def run_demo(strategy: str, ranks: int, minutes: float) -> int:
    """Run the demo and return the exit code: 0, or 1 when the job could not be started."""
    if importlib.util.find_spec("torch") is None:
        print("ranktop: the demo trains with torch: pip install 'ranktop[demo]'", file=sys.stderr)
        return 1
    job_id = f"demo-{secrets.token_hex(3)}"
    try:
        run_directory(create=True)
        job_directory(job_id)
    except RunDirectoryError as error:  # the agents would find no hub, and this would wait for them in vain
        print(f"ranktop: {error}", file=sys.stderr)
        return 1
    interactive = can_draw()
    ranks = ranks or (1 if strategy == "single" else gpu_count() or 2)
    print(f"starting torchrun with {ranks} rank{'s' if ranks > 1 else ''} ({strategy}) ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ranktop-demo-") as folder:
        log = Path(folder) / "train.log"
        with training(job_id, strategy, ranks, minutes, log) as process:
            entry = wait_for_job(process, job_id)
            if entry is None:
                print(f"ranktop: the demo's job did not start; its log ends with:\n{tail(log)}", file=sys.stderr)
                return 1
            code = watch(entry) if interactive else snapshot(entry, process, log)
        print("the demo's job has been ended", file=sys.stderr)
        return code


@contextlib.contextmanager
def training(job_id: str, strategy: str, ranks: int, minutes: float, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job in a session of its own; ends it, ranks included, on the way out."""
    command = [
        *(sys.executable, "-c", END_WITH_PARENT),
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
        *("-m", "ranktop.agent", "-m", "ranktop.demo.train"),
        *("--strategy", strategy, "--minutes", str(minutes)),
    ]
    environment = {**os.environ, "RANKTOP_JOB_ID": job_id, "RANKTOP_JOB_NAME": "demo-gpt", "RANKTOP_HUB_LINGER": "5"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask torchrun to end its ranks; insist after a few seconds."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def wait_for_job(process: subprocess.Popen[bytes], job_id: str) -> JobEntry | None:
    """Return the job once its hub is up; None when the process ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for entry in find_jobs().jobs:
            if entry.id == job_id:
                return entry
        time.sleep(0.1)
    return None


def watch(entry: JobEntry) -> int:
    """Open the dashboard on the job."""
    from ranktop.tui.app import run
    from ranktop.tui.session.receiver import HubSource

    return run(HubSource(entry.directory), find=None, connect=None)


def snapshot(entry: JobEntry, process: subprocess.Popen[bytes], log: Path) -> int:
    """Print all ranks once after the tenth step."""
    from ranktop.tui.session.receiver import HubSource
    from ranktop.tui.session.state import Session
    from ranktop.tui.status import print_table

    source = HubSource(entry.directory)
    session = Session()
    deadline = time.monotonic() + START_SECONDS
    try:
        while time.monotonic() < deadline and process.poll() is None:
            source.poll(0.5)
            session.feed(source.drain())
            samples = [state.sample for state in session.ranks.values()]
            complete = session.job is not None and len(samples) >= session.job.world_size
            if complete and all(s is not None and s.step >= SNAPSHOT_STEP and s.table for s in samples):
                print_table([session])
                return 0
    finally:
        source.close()
    print(
        f"ranktop: the demo's job did not reach step {SNAPSHOT_STEP}; its log ends with:\n{tail(log)}", file=sys.stderr
    )
    return 1


def gpu_count() -> int:
    """Return how many GPUs NVML knows; 0 without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
