"""What stands beside a training loop in the agent's benchmark: nothing, ranktop, TraceML, torchtnt.

Each is put on and taken off within a process, again and again, and gives the step to run meanwhile. All look at the
process once a second.

- TraceML (``traceml-ai``): ``traceml.init(mode="auto")`` and ``traceml.trace_step`` around the step, which times its
  phases; the runtime's thread samples the process and sends to a ``traceml serve`` beside the job. It does not undo
  what it patches, so that is put back here.
- torchtnt has no agent: ``utils.timer.BoundedTimer`` around forward, backward and optimizer, and a thread that reads
  the resident memory (``utils.memory.measure_rss_deltas``), whose numbers stay in the process. It imports
  ``pkg_resources``, which setuptools no longer has, and does not use it here: an empty module stands in.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, Protocol

import torch
from bench.agent_jobs import Job
from torch import nn
from torch.utils.data import DataLoader

OFF: Final = "off"
AGAIN: Final = "off, again"
RANKTOP: Final = "ranktop"
TRACEML: Final = "TraceML"
TORCHTNT: Final = "torchtnt"

PORT: Final = "TRACEML_AGGREGATOR_PORT"
"""Environment variable that tells TraceML where its aggregator listens."""

SECONDS: Final = 1.0
"""Between two looks at the process."""


class Tool(Protocol):
    """Something that watches a job."""

    def on(self, job: Job) -> Callable[[], None]:
        """Begin to watch, and return the step to run meanwhile."""
        ...

    def off(self) -> None:
        """End, and leave nothing behind."""
        ...


class Nothing:
    """The job alone."""

    def on(self, job: Job) -> Callable[[], None]:
        """Return the step as it is."""
        return job.step

    def off(self) -> None:
        """Do nothing."""


class Ranktop:
    """The one-line form of the agent."""

    def on(self, job: Job) -> Callable[[], None]:
        """Attach."""
        from ranktop.agent import attach

        attach(job.model, *([] if job.optimizer is None else [job.optimizer]))
        return job.step

    def off(self) -> None:
        """Detach."""
        from ranktop.agent import detach

        detach()


class TraceML:
    """TraceML's automatic mode."""

    PATCHED: Final = (
        (nn.Module, "__call__"),
        (torch.Tensor, "backward"),
        (torch.Tensor, "to"),
        (torch.autograd, "backward"),
        (DataLoader, "__iter__"),
    )
    MARKS: Final = (
        (nn.Module, "_traceml_forward_patched"),
        (torch, "_traceml_backward_patched"),
        (torch.Tensor, "_traceml_h2d_patched"),
        (DataLoader, "_traceml_patched"),
    )

    def __init__(self) -> None:
        self._before = [(owner, name, getattr(owner, name)) for owner, name in self.PATCHED]

    def on(self, job: Job) -> Callable[[], None]:
        """Initialise it anew, and return a step within ``trace_step``."""
        traceml: Any = importlib.import_module("traceml_ai")
        traceml.init(mode="auto", interval=SECONDS, on_missing_aggregator="raise")

        def step() -> None:
            with traceml.trace_step(job.model):
                job.step()

        return step

    def off(self) -> None:
        """Stop its runtime and put back what it has patched."""
        initial: Any = importlib.import_module("traceml_ai.sdk.initial")
        lifecycle: Any = importlib.import_module("traceml_ai.runtime.lifecycle")
        hooks: Any = importlib.import_module("traceml_ai.instrumentation.hooks.optimizer_hooks")
        initial._stop_runtime_for_init()
        initial._INIT_CONFIG = None
        for name in [name for name in vars(lifecycle) if name.startswith("_ACTIVE")]:
            setattr(lifecycle, name, None)
        hooks.reset_optimizer_timing()
        for owner, name, original in self._before:
            setattr(owner, name, original)
        for owner, name in self.MARKS:
            if name in vars(owner):
                delattr(owner, name)


class Torchtnt:
    """Its timer around the phases, and its thread for the memory."""

    def __init__(self) -> None:
        self._memory: contextlib.AbstractContextManager[None] | None = None

    def on(self, job: Job) -> Callable[[], None]:
        """Start the thread, and return a step with timers."""
        sys.modules.setdefault("pkg_resources", types.ModuleType("pkg_resources"))
        timer: Any = importlib.import_module("torchtnt.utils.timer").BoundedTimer(100, 1000)
        memory: Any = importlib.import_module("torchtnt.utils.memory")
        self._memory = memory.measure_rss_deltas([], timedelta(seconds=SECONDS))
        self._memory.__enter__()

        def step() -> None:
            with timer.time("forward"):
                loss = job.forward()
            with timer.time("backward"):
                job.backward(loss)
            with timer.time("optimizer"):
                job.update()
            job.fill()

        return step

    def off(self) -> None:
        """Tell the thread to end; it sleeps up to a second before it does."""
        if self._memory is not None:
            threading.Thread(target=self._memory.__exit__, args=(None, None, None), daemon=True).start()
        self._memory = None


def tools(names: list[str]) -> dict[str, Tool]:
    """Return the named ones that are installed, in their order."""
    made: dict[str, Callable[[], Tool]] = {
        **{OFF: Nothing, AGAIN: Nothing, RANKTOP: Ranktop, TRACEML: TraceML, TORCHTNT: Torchtnt}
    }
    return {name: made[name]() for name in names if installed(name)}


def installed(name: str) -> bool:
    """Return whether a tool can be had here."""
    package = {TRACEML: "traceml_ai", TORCHTNT: "torchtnt"}.get(name)
    return package is None or importlib.util.find_spec(package) is not None


@contextlib.contextmanager
def aggregator(folder: str) -> Iterator[dict[str, str]]:
    """Run TraceML's aggregator beside a job; yields the environment by which its ranks find it."""
    if not installed(TRACEML):
        yield {}
        return
    import socket
    import time

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {PORT: port, "TRACEML_SESSION_ID": "bench", "TRACEML_LOGS_DIR": folder}
    # Many ranks are awaited, so that it goes on when one has finished.
    command = [sys.executable, "-m", "traceml_ai.launcher.cli", "serve", "--aggregator-port", port]
    command += ["--run-name", "bench", "--logs-dir", folder, "--nproc-per-node", "64"]
    with subprocess.Popen(
        command, env={**os.environ, **env}, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as serve:
        try:
            for _ in range(300):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), 1):
                    break
                time.sleep(0.1)
            yield env
        finally:
            serve.kill()
