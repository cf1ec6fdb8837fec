"""Runs real jobs for the tests and asks for their state as a script would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.state import Session
from ranktop.tui.status import job_json
from ranktop.wire.endpoints import find_jobs

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
AGENT = ["-m", "ranktop.agent"]
LOG = "job.log"


def environment(directory: Path, **extra: str) -> dict[str, str]:
    """Return a job's environment, with a run directory of the test's own."""
    env = {**os.environ, "RANKTOP_INTERVAL": "0.2", "OMP_NUM_THREADS": "1", **extra}
    env.setdefault("RANKTOP_HUB_LINGER", "20")
    env["RANKTOP_RUN_DIR"] = str(directory / "run")
    env.setdefault("RANKTOP_STATE_DIR", str(directory / "state"))
    return env


@contextlib.contextmanager
def job(command: Sequence[str], directory: Path, **extra: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job, its output in ``job.log``; on the way out it and its hub are ended."""
    # Not into a pipe: one that nobody reads stops a talkative rank, and with it the whole job.
    with (directory / LOG).open("wb") as log:
        process = subprocess.Popen(
            command, cwd=directory, env=environment(directory, **extra), stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        end_hubs()


def output(directory: Path) -> str:
    """Return what the job has written so far."""
    return (directory / LOG).read_text(errors="replace")


def end_hubs() -> None:
    """End the hubs in the test's run directory."""
    for entry in find_jobs().jobs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(entry.hub_pid, signal.SIGTERM)
    wait_until(lambda: not find_jobs().jobs, 10)


class Viewer:
    """Follows the only job in the run directory."""

    def __init__(self) -> None:
        self.session = Session()
        self.source: HubSource | None = None

    def state(self) -> dict[str, Any]:
        """Return the job as ``ranktop status --json`` prints it; empty before there is one."""
        self.feed()
        return job_json(self.session.snapshot()) if self.session.job is not None else {}

    def feed(self, wait: float = 0.1) -> None:
        """Take what arrives within ``wait`` seconds; nothing while there is no job."""
        if self.source is None:
            entries = find_jobs().jobs
            if not entries:
                time.sleep(0.02)
                return
            self.source = HubSource(entries[0].directory)
        self.source.poll(wait)
        self.session.feed(self.source.drain())

    def wait(self, wanted: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> dict[str, Any]:
        """Return the first state that is wanted; fails with the last one after ``seconds``."""
        deadline = time.monotonic() + seconds
        state: dict[str, Any] = {}
        while time.monotonic() < deadline:
            state = self.state()
            if state and wanted(state):
                return state
        raise AssertionError(f"waited {seconds} s in vain; last state: {state}")

    def close(self) -> None:
        """Let go of the hub."""
        if self.source is not None:
            self.source.close()


def wait_until(done: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {seconds} s")
        time.sleep(0.02)


def steps_done(state: dict[str, Any], steps: int) -> bool:
    """Whether every rank has a table of a step from ``steps`` on."""
    ranks = state["ranks"]
    return bool(ranks) and all((rank["step"]["index"] or 0) >= steps and rank["moment"] for rank in ranks)
