"""``ranktop simulate``: a simulated job on the real wire, watched until you quit; for trying the tool without GPUs."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranktop.tui.cli import FAILED, FOUND, USAGE
from ranktop.tui.stdout import put
from ranktop.tui.terminal.kind import can_draw
from ranktop.wire.endpoints import RunDirectoryError, job_directory, run_directory

if TYPE_CHECKING:
    from ranktop.tui.session.state import Session

MODULE: Final = "ranktop.agent.simulation"

STRATEGIES: Final = ("fsdp2", "ddp")

RANKS_PER_PROCESS: Final = 512

START_SECONDS: Final = 90.0
"""Longest wait for the hub to have every rank."""

SETTLE_SECONDS: Final = 12.0
"""Without a terminal: how long a job that goes on no more is looked at, so that everything is noticed."""

MISSING_SECONDS: Final = 65.0
"""... and one that does not begin: a rank may be late before it is missing."""

END_WITH_PARENT: Final = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Has Linux kill the process when this one dies: one that is stopped does not see its input end."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be simulated."""

    ranks: int = 8
    local: int = 8
    strategy: str = "fsdp2"
    seconds: float = 1.0
    """Of a healthy step."""
    seed: int = 0
    faults: tuple[str, ...] = ()
    steps: int = 30
    """Without a terminal: steps after which all ranks are printed."""

    def arguments(self, job_id: str) -> list[str]:
        """Return it as the publishing process takes it."""
        faults = [word for fault in self.faults for word in ("--fault", fault)]
        return [
            *("--ranks", str(self.ranks), "--local", str(self.local), "--strategy", self.strategy),
            *("--seconds", str(self.seconds), "--seed", str(self.seed), "--id", job_id, *faults),
        ]


def list_faults() -> int:
    """Print what can be made to go wrong."""
    told = subprocess.run([sys.executable, "-m", MODULE, "--list"], stdout=subprocess.PIPE, text=True, check=False)
    put(told.stdout)
    return told.returncode


def run_simulation(wish: Wish) -> int:
    """Simulate and watch; returns the exit code: 0, 1 when it could not be started, 2 for what cannot be simulated."""
    job_id = f"sim-{secrets.token_hex(3)}"
    arguments = wish.arguments(job_id)
    asked = subprocess.run(
        [sys.executable, "-m", MODULE, *arguments, "--explain"], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        print(f"ranktop: {(asked.stderr.strip().splitlines() or ['the simulation failed'])[-1]}", file=sys.stderr)
        return USAGE
    told = json.loads(asked.stdout)
    try:
        run_directory(create=True)
        directory = job_directory(job_id)
    except RunDirectoryError as error:
        print(f"ranktop: {error}", file=sys.stderr)
        return FAILED
    print(f"starting a SIMULATED job, {told['name']}, of {wish.ranks} ranks: {in_words(told)}", file=sys.stderr)
    try:
        with publishing(arguments, wish, told, directory):
            return watch(directory) if can_draw() else snapshot(directory, wish)
    except NotStarted as error:
        print(f"ranktop: {error}", file=sys.stderr)
        return FAILED
    finally:
        print(f"the simulated job has been ended; in it: {in_words(told)}", file=sys.stderr)


def in_words(told: dict[str, Any]) -> str:
    """Say which rank has which fault."""
    words = []
    for fault in told["faults"]:
        where = f" on rank {fault['rank']}" if fault["rank"] >= 0 else " on all ranks"
        by = f" by {fault['by']:g}" if fault["by"] else ""
        words.append(f"{fault['name']}{where}{by} from step {fault['from']}")
    return ", ".join(words) or "no fault"


class NotStarted(Exception):
    """The simulated job could not be started; the text says why."""


@contextlib.contextmanager
def publishing(
    arguments: list[str], wish: Wish, told: dict[str, Any], directory: Path
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run the processes that speak for the ranks; ends them and the job's hub on the way out."""
    epoch = time.monotonic() + 1.0
    stopped = sorted({fault["rank"] for fault in told["faults"] if fault["name"] == "stop"})
    processes: list[subprocess.Popen[str]] = []
    try:
        for first in range(0, wish.ranks, RANKS_PER_PROCESS):
            of = f"{first}:{min(RANKS_PER_PROCESS, wish.ranks - first)}"
            without = [word for rank in stopped for word in ("--without", str(rank))]
            processes.append(_start([*arguments, "--epoch", str(epoch), "--of", of, *without]))
        # A rank that is to be stopped has a process of its own: it is stopped in earnest.
        processes += [
            _start([*arguments, "--epoch", str(epoch), "--of", f"{rank}:1", "--stops"], guarded=True)
            for rank in stopped
        ]
        _wait_until_ready(processes)
        yield processes
    finally:
        end(processes, directory)


def _start(arguments: list[str], guarded: bool = False) -> subprocess.Popen[str]:
    lead = [sys.executable, "-c", END_WITH_PARENT] if guarded else [sys.executable]
    return subprocess.Popen(
        [*lead, "-m", MODULE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process, which ends them in order
    )


def _wait_until_ready(processes: Sequence[subprocess.Popen[str]]) -> None:
    deadline = time.monotonic() + START_SECONDS
    for process in processes:
        assert process.stdout is not None
        left = max(0.0, deadline - time.monotonic())
        if not select.select([process.stdout], [], [], left)[0]:
            raise NotStarted(f"the simulated ranks did not reach their hub within {START_SECONDS:.0f} s")
        if process.stdout.readline().strip() != "ready":
            problem = process.stderr.read().strip().splitlines() if process.stderr is not None else []
            raise NotStarted(problem[-1] if problem else "the simulated ranks ended at once")


def end(processes: Sequence[subprocess.Popen[str]], directory: Path) -> None:
    """End the processes, insisting after a few seconds, and then the hub."""
    for process in processes:
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                if stream is not None and stream is not process.stdout:
                    stream.close()
    deadline = time.monotonic() + 6.0
    for process in processes:
        try:
            # One that has been stopped never sees that its input has ended.
            process.wait(0.0 if _is_stopped(process.pid) else max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    end_hub(directory)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def end_hub(directory: Path, patience: float = 5.0) -> None:
    """Have the job's hub end now; it takes its directory with it."""
    from ranktop.wire.endpoints import read_job_file

    try:
        hub = read_job_file(directory).hub_pid
    except (OSError, ValueError):
        return  # it is gone already
    if hub > 1:
        with contextlib.suppress(OSError):
            os.kill(hub, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while directory.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def watch(directory: Path) -> int:
    """Open the dashboard on the job."""
    from ranktop.tui.app import run
    from ranktop.tui.session.receiver import HubSource

    return run(HubSource(directory), find=None, connect=None)


def snapshot(directory: Path, wish: Wish) -> int:
    """Print all ranks once after some steps, or when the job goes on no more."""
    from ranktop.tui.session.receiver import HubSource
    from ranktop.tui.session.state import Session
    from ranktop.tui.status import print_table

    source = HubSource(directory)
    session = Session()
    deadline = time.monotonic() + START_SECONDS + 4 * wish.steps * wish.seconds
    settled: float | None = None
    try:
        while time.monotonic() < deadline:
            source.poll(0.5)
            session.feed(source.drain())
            if settled is None and (patience := _patience(session)) is not None:
                settled = time.monotonic() + patience
            if _has_come_to(session, wish.steps) or (settled is not None and time.monotonic() > settled):
                break
        print_table([session])
        return FOUND
    finally:
        source.close()


def _patience(session: Session) -> float | None:
    """Return how long a job is still looked at that makes no more steps, or none at all; None for one that does."""
    if session.state() in ("stalled", "ended"):
        return SETTLE_SECONDS
    waiting = [state for state in session.ranks.values() if state.sample is not None and state.sample.uptime > 5.0]
    return MISSING_SECONDS if waiting and session.state() == "starting" else None


def _has_come_to(session: Session, steps: int) -> bool:
    known = [state.sample for state in session.ranks.values()]
    complete = session.job is not None and len(known) >= session.job.world_size
    return complete and all(sample is not None and sample.step >= steps and sample.table for sample in known)
