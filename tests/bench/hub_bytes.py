"""What crosses the wire for one rank in a second, counted at the sockets: the part ``bytes`` of ``bench_hub.py``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.hub_load import end_hub, loaded
from bench.simulated import SimulatedJob
from bench.wire_tap import Tap

from ranktop.agent.lifecycle import ensure_hub
from ranktop.tui.session.receiver import HubSource
from ranktop.wire.endpoints import AGENTS_SOCKET, VIEWERS_SOCKET, job_directory, read_job_file

_REAL_JOB = """
import sys, time
import torch
from ranktop.agent import attach, publisher
publisher.AGENTS_SOCKET = "tapped.sock"
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20)))
optimizer = torch.optim.AdamW(model.parameters())
attach(model, optimizer)
while True:
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(float(sys.argv[1]))
"""

KINDS = ("sample", "device", "card", "answer", "handshake")


def table(seconds: float, *, real_jobs: bool = True) -> None:
    """Print bytes by kind for made-up GPU ranks and for a real CPU job, and what a viewer gets."""
    print(f"\n{'':>34}{'bytes per rank and second':>40}{'once, bytes':>26}")
    print(
        f"{'':<34}{'sample':>8}{'device':>8}{'answer':>8}{'heartbeat':>10}{'all':>6}{'card':>14}{'handshake':>12}"
        f"{'B/sample':>10}"
    )
    simulated(8, 1.0, seconds)
    simulated(8, 0.1, seconds)
    for name, step in (("a real CPU job, a step a second", 0.9), ("the same, 20 steps a second", 0.05)):
        if not real_jobs:
            break
        real(name, step, seconds)


def simulated(ranks: int, interval: float, seconds: float) -> None:
    """Measure made-up ranks of an FSDP2 job on 80 GB devices, and one viewer of them."""
    job = SimulatedJob(ranks)
    directory = job_directory(job.job.id)
    ensure_hub(job.job, directory, wait=20.0)
    os.rename(directory / AGENTS_SOCKET, directory / "behind.sock")
    tap = Tap(directory / AGENTS_SOCKET, directory / "behind.sock")
    beside = directory.parent / "tap"
    beside.mkdir(mode=0o700, exist_ok=True)
    (beside / VIEWERS_SOCKET).unlink(missing_ok=True)
    viewers = Tap(beside / VIEWERS_SOCKET, directory / VIEWERS_SOCKET)
    try:
        with loaded(ranks, interval):
            source = HubSource(beside)
            name = f"{ranks} made-up GPU ranks, {1 / interval:g} Hz"
            counted = [0, 0.0]

            def watch() -> None:
                end = time.monotonic() + 2.0
                while time.monotonic() < end:
                    time.sleep(0.1)
                    source.drain()

            watch()
            before = sum(viewers.counted()[0].values())

            def follow() -> None:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    time.sleep(0.1)
                    source.drain()
                counted[0] = sum(viewers.counted()[0].values()) - before
                counted[1] = seconds

            line(name, tap, ranks, follow)
            print(f"{'  to a viewer, questions included':<34}{counted[0] / counted[1] / ranks:>40.0f}", flush=True)
            source.close()
    finally:
        tap.close()
        viewers.close()


def real(name: str, step: float, seconds: float) -> None:
    """Measure the agent of a real process that trains on the CPU, one step every ``step`` seconds about."""
    run = Path(os.environ["RANKTOP_RUN_DIR"])
    known = set(run.glob("*"))
    script = Path(os.environ["RANKTOP_STATE_DIR"]) / "train.py"
    script.write_text(_REAL_JOB)
    job = subprocess.Popen([sys.executable, str(script), str(step)])
    tap = None
    try:
        limit = time.monotonic() + 60
        while tap is None:
            if time.monotonic() > limit:
                raise RuntimeError("the job did not start its hub")
            time.sleep(0.05)
            for directory in set(run.glob("*")) - known:
                if (directory / AGENTS_SOCKET).exists():
                    tap = Tap(directory / "tapped.sock", directory / AGENTS_SOCKET)
        while tap.counted()[1]["sample"] < 4:
            if time.monotonic() > limit:
                raise RuntimeError("the job's agent says nothing")
            time.sleep(0.05)
        line(name, tap, 1, lambda: time.sleep(seconds))
    finally:
        job.kill()
        job.wait()
        if tap is not None:
            tap.close()
        for directory in set(run.glob("*")) - known:
            end_hub(read_job_file(directory).hub_pid)


def line(name: str, tap: Tap, ranks: int, meanwhile: Callable[[], None]) -> None:
    """Print one line of the table."""
    before, messages = tap.counted()
    began = time.monotonic()
    meanwhile()
    after, later = tap.counted()
    each = ranks * (time.monotonic() - began)
    rate = {kind: (after[kind] - before[kind]) / each for kind in after}
    beats = sum(size for kind, size in rate.items() if kind in ("PING", "PONG"))
    known = ("sample", "device", "answer")
    once = [after["card"] / ranks, after["handshake"] / ranks]
    print(
        f"{name:<34}{rate.get('sample', 0):>8.0f}{rate.get('device', 0):>8.0f}{rate.get('answer', 0):>8.0f}"
        f"{beats:>10.0f}{sum(rate.get(kind, 0) for kind in known) + beats:>6.0f}{once[0]:>14.0f}{once[1]:>12.0f}"
        f"{(after['sample'] - before['sample']) / max(1, later['sample'] - messages['sample']):>10.0f}",
        flush=True,
    )
