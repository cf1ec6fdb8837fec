"""A trial: three lines of training under a real agent, in a run directory of its own, heard through its hub.

The same process tells of torch, so that torch is imported once, and never by this one. There is no optimizer, because
the first step of one takes torch as long as half its import.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ranktop.tui.doctor.child import Child, environment
from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.state import Session
from ranktop.wire.endpoints import read_job_file

JOB_ID: Final = "trial"

_LAUNCHERS: Final = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "RANKTOP_", "PET_", "GROUP_", "ROLE_")
_NAMES: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What would make the trial a part of another job."""

SCRIPT: Final = """
import json, sys

def tell(**facts):
    print(json.dumps(facts), flush=True)

try:
    import torch
except Exception as error:
    tell(error=f"{type(error).__name__}: {error}")
    raise SystemExit(1)

tell(version=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip, file=torch.__file__)

def within(read):
    try:
        return read()
    except Exception:
        return None

c10d = within(lambda: torch._C._distributed_c10d)
recorders = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
tell(
    distributed=torch.distributed.is_available(),
    gloo=within(torch.distributed.is_gloo_available),
    nccl=within(lambda: ".".join(map(str, torch.cuda.nccl.version()))),
    flight_recorder=[name for name in recorders if hasattr(c10d, name)],
    device_uuid=hasattr(getattr(torch._C, "_CudaDeviceProperties", None), "uuid"),
)

model = torch.nn.Linear(4, 4)
for _ in range(2):
    model(torch.ones(2, 4)).sum().backward()
tell(trained=True)
available = torch.cuda.is_available()
tell(cuda_available=available, cuda_devices=torch.cuda.device_count() if available else 0)
sys.stdin.read()
"""


@dataclass(slots=True)
class Trial:
    """What the trial gave."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What the script told of torch, as far as it came."""
    heard: float | None = None
    """Seconds from the start of the process to the agent's first sample here; None when it was not heard."""
    model: str = ""
    """The model's class as the agent saw it."""
    notes: tuple[str, ...] = ()
    said: list[str] = field(default_factory=list)
    """Last lines of standard error."""
    code: int | None = None
    """Exit code, when the script ended by itself."""
    seconds: float = 0.0
    """How long it was waited for."""


class TrialRun:
    """Starts the trial at once and follows it on a thread."""

    def __init__(self, environ: Mapping[str, str], until: float) -> None:
        """OSError when there is no place for it or no process can be started."""
        self._until = until
        self._trial = Trial()
        self._problem: list[str] = []
        self._finished = threading.Event()
        usual = tempfile.gettempdir()
        # A socket's path has 99 bytes, some 50 of which come below this.
        base = usual if len(os.fsencode(usual)) < 45 else "/tmp"
        self._folder = Path(tempfile.mkdtemp(prefix="ranktop-doctor-", dir=base))
        self._jobs = self._folder / "run"
        try:
            script = self._folder / "trial.py"
            script.write_text(SCRIPT, encoding="utf-8")
            self._child = Child(
                [sys.executable, "-m", "ranktop.agent", str(script)], self._environment(environ), str(self._folder)
            )
        except OSError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._thread = threading.Thread(target=self._follow, name="doctor-trial", daemon=True)
        self._thread.start()

    def _environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        kept = {k: v for k, v in environment(environ).items() if k not in _NAMES and not k.startswith(_LAUNCHERS)}
        return {
            **kept,
            "RANKTOP_RUN_DIR": str(self._jobs),
            "RANKTOP_JOB_ID": JOB_ID,
            "RANKTOP_INTERVAL": "0.1",
            "RANKTOP_HUB_LINGER": "0",
            "RANKTOP_RECORD": "off",
            "OMP_NUM_THREADS": "1",
        }

    def wait(self) -> Trial:
        """Wait for the end of the trial, at most until its time is over."""
        self._finished.wait(max(0.0, self._until - time.monotonic()) + 0.3)
        return self._trial

    def _follow(self) -> None:
        try:
            self._listen()
            self._child.wait_for(lambda: "cuda_available" in self._told() or "error" in self._told(), self._until)
        except Exception as error:
            self._problem.append(f"{type(error).__name__}: {error}")
        finally:
            self._trial.facts = self._told()
            self._trial.said = [*self._child.errors[-5:], *self._problem]
            self._trial.code = self._child.code(0.0) if self._child.ended else None
            self._trial.seconds = time.monotonic() - self._child.started
            self._finished.set()

    def _told(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for line in list(self._child.lines):
            # Whatever else a site's own start-up files print is passed over.
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                found.update(value if isinstance(value, dict) else {})
        return found

    def _listen(self) -> None:
        """Follow the agent through its hub until a model was seen, or the time is over."""
        source = None
        session = Session()
        try:
            while time.monotonic() < self._until and not self._child.ended:
                if source is None:
                    if not (self._jobs / JOB_ID / "viewers.sock").exists():
                        time.sleep(0.02)
                        continue
                    source = HubSource(self._jobs / JOB_ID)
                source.poll(0.05)
                session.feed(source.drain())
                if self._heard(session):
                    return
        finally:
            if source is not None:
                source.close()

    def _heard(self, session: Session) -> bool:
        state = session.ranks.get(0)
        if state is None or state.sample is None:
            return False
        trial = self._trial
        if trial.heard is None:
            trial.heard = time.monotonic() - self._child.started
        if state.card is not None:
            trial.model, trial.notes = state.card.model, state.card.notes
        return bool(trial.model)

    def close(self) -> bool:
        """End the trial's processes and remove its folder; tells whether they are dead."""
        dead = self._child.close()
        self._end_hub()
        shutil.rmtree(self._folder, ignore_errors=True)
        return dead

    def _end_hub(self) -> None:
        directory = self._jobs / JOB_ID
        until = time.monotonic() + 1.0
        with contextlib.suppress(OSError, ValueError):
            pid = read_job_file(directory).hub_pid
            if pid > 0:
                os.kill(pid, signal.SIGTERM)
            # It removes its directory as the last thing that it does.
            while directory.exists() and time.monotonic() < until:
                time.sleep(0.02)
