"""What a job pays for its guest: ``python tests/bench/bench_guest.py [start] [memory] [gil]``.

``start``: whole processes of one training script by itself, under ``python -m ranktop.agent`` and with ``attach()``,
in turns: wall clock from the start of the process to the script's first line, over torch's import and the first steps,
and from the last line to the end; and when a viewer gets the first sample. ``memory``: of such a process while it
trains, and of its hub. ``gil``: a step that holds Python's lock for seconds in a C call: what the rank's viewers are
told meanwhile, what comes when it lets go, and whether a step is missed. Prints tables; asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measured import heading, quartiles, spread

from ranktop.agent.lifecycle import ensure_hub
from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Received
from ranktop.wire.endpoints import find_jobs, job_directory, read_job_file
from ranktop.wire.schema import Job, Sample

SCRIPT = """
import time
at = [time.monotonic()]
import ctypes, json, os, sys
import torch
from torch import nn
at.append(time.monotonic())
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(50)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
if os.environ.get("GUEST") == "attach":
    from ranktop.agent import attach
    attach(model, optimizer)
data = torch.randn(16, 64)
times = []
def step():
    began = time.monotonic()
    model(data).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.monotonic() - began)
for _ in range(20):
    step()
at.append(time.monotonic())
wish, pause = sys.argv[1], float(os.environ["GUEST_PAUSE"])
if wish == "stay":
    print("here", flush=True)
    until = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < until:
        step()
        time.sleep(0.01)
    print("ready", flush=True)
    sys.stdin.read()
if wish == "hold":
    for seconds in map(float, sys.argv[2:]):
        until = time.monotonic() + pause
        while time.monotonic() < until:
            step()
            time.sleep(0.02)
        before = len(times)
        print(json.dumps({"hold": seconds, "at": time.monotonic()}), flush=True)
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        print(json.dumps({"free": time.monotonic(), "steps": before}), flush=True)
    until = time.monotonic() + pause
    while time.monotonic() < until:
        step()
        time.sleep(0.02)
    print(json.dumps({"steps": len(times)}), flush=True)
    sys.stdin.read()
at.append(time.monotonic())
print(json.dumps(at), flush=True)
"""

MODES = {
    "alone": [],
    "-m ranktop.agent": ["-m", "ranktop.agent"],
    "-m, hub is there": ["-m", "ranktop.agent"],
    "attach()": [],
}
"""The third is what all ranks of a node are but the first, which starts the hub."""
PARTS = ("to the first line", "import torch", "20 steps", "last line to the end", "whole process")


@contextlib.contextmanager
def place(tree: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give a folder with the script, and the environment of a job in it, with the packages of ``tree`` if named."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as name:
        os.environ.update(RANKTOP_RUN_DIR=f"{name}/run", RANKTOP_STATE_DIR=f"{name}/state", RANKTOP_HUB_LINGER="0")
        environment = {**os.environ, "RANKTOP_DEVICE": "host", "RANKTOP_JOB_ID": "guest"}
        environment.setdefault("GUEST_PAUSE", "4")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a start without compiled files is another matter
        if tree:
            environment["PYTHONPATH"] = os.pathsep.join(f"{tree}/{root}" for root in ("tui", "agent", "probes"))
        (Path(name) / "train.py").write_text(SCRIPT)
        yield Path(name), environment
        until = time.monotonic() + 10.0
        while any(Path(name).glob("run/*/hub.lock")) and time.monotonic() < until:
            time.sleep(0.02)  # its hub would write into a folder that is being removed


def launch(folder: Path, environment: dict[str, str], mode: str, *words: object) -> subprocess.Popen[str]:
    """Start the script in one of the three ways."""
    return subprocess.Popen(
        [sys.executable, *MODES[mode], str(folder / "train.py"), *map(str, words)],
        env={**environment, "GUEST": "attach" if mode == "attach()" else ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


# -- start -------------------------------------------------------------------------------------------------------------


def parts_of(mode: str, tree: str) -> list[float]:
    """Run the script once; returns the milliseconds of PARTS."""
    with place(tree) as (folder, environment):
        if "hub" in mode:
            os.environ["RANKTOP_HUB_LINGER"] = "20"
            ensure_hub(Job(id="guest", name="train", world_size=1), job_directory("guest"), wait=10.0)
        began = time.monotonic()
        with launch(folder, environment, mode, "go") as child:
            out, _ = child.communicate()
        ended = time.monotonic()
        for job in find_jobs().jobs if "hub" in mode else ():
            os.kill(read_job_file(job.directory).hub_pid, signal.SIGTERM)
    line, torch, stepped, last = json.loads(out)
    return [1e3 * part for part in (line - began, torch - line, stepped - torch, ended - last, ended - began)]


def start(rounds: int, before: str) -> None:
    """Print what the start takes, and what the agent adds to it."""
    ways = [(mode, "") for mode in MODES] + ([("-m ranktop.agent", before)] if before else [])
    found: dict[tuple[str, str], list[list[float]]] = {way: [] for way in ways}
    for way in ways[1:]:
        if rounds > 1:
            parts_of(*way)  # compiled files, and the disk's cache
    for number in range(rounds):
        for way in ways if number % 2 == 0 else ways[::-1]:
            found[way].append(parts_of(*way))
    print(f"\n{'start, ms: median (quartiles)':<26}" + "".join(f"{name:>22}" for name in PARTS[:4]))
    alone = found["alone", ""]
    for (mode, tree), runs in found.items():
        name = f"{mode}{', before' if tree else ''}"
        cells = [quartiles([run[part] for run in runs], "{:.0f}") for part in range(4)]
        print(f"{name:<26}" + "".join(f"{cell:>22}" for cell in cells))
    print(f"{'added':<26}" + "".join(f"{name:>22}" for name in (*PARTS[:2], PARTS[3], PARTS[4])))
    for (mode, tree), runs in found.items():
        if mode != "alone":
            name = f"{mode}{', before' if tree else ''}"
            added = [[a - b for a, b in zip(run, base, strict=True)] for run, base in zip(runs, alone, strict=True)]
            cells = [quartiles([run[part] for run in added], "{:+.0f}") for part in (0, 1, 3, 4)]
            print(f"{name:<26}" + "".join(f"{cell:>22}" for cell in cells))


def first_sample() -> float:
    """Return the seconds from the start of a process to its first sample at a viewer."""
    with place("") as (folder, environment):
        began = time.monotonic()
        with (
            launch(folder, environment, "-m ranktop.agent", "stay", 6) as child,
            contextlib.closing(Listener()) as seen,
        ):
            while not seen.samples and time.monotonic() - began < 20:
                time.sleep(0.005)
            took = seen.samples[0][0] - began
            child.kill()
    return took


class Listener(threading.Thread):
    """Follows the only job of the run directory and keeps its samples with the time at which they came."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, Sample]] = []
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        """Find the job, then drain until told to stop."""
        while not (jobs := find_jobs().jobs):
            if self._done.wait(0.01):
                return
        source = HubSource(jobs[0].directory)
        while not self._done.is_set():
            source.poll(0.02)
            for item in source.drain():
                if isinstance(item, Received) and isinstance(item.body, Sample):
                    self.samples.append((time.monotonic(), item.body))
        source.close()

    def close(self) -> None:
        """End, and wait for it."""
        self._done.set()
        self.join()


# -- memory ------------------------------------------------------------------------------------------------------------


def memory_of(process: int) -> dict[str, float]:
    """Return MiB of a process by the kernel's names, and its threads and descriptors."""
    rows = [line.split() for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]]
    found = {row[0].rstrip(":"): int(row[1]) / 1024 for row in rows}
    found["own"] = found["Private_Dirty"] + found["Private_Clean"]
    found["threads"] = len(list(Path(f"/proc/{process}/task").iterdir()))
    found["files"] = len(list(Path(f"/proc/{process}/fd").iterdir()))
    return found


def memory(rounds: int, seconds: float, before: str) -> None:
    """Print what a process holds with and without the agent, and its hub."""
    columns = ("Rss", "Pss", "own", "threads", "files")
    ways = [(mode, "") for mode in MODES if "hub" not in mode] + ([("-m ranktop.agent", before)] if before else [])
    found: dict[tuple[str, str], list[dict[str, float]]] = {way: [] for way in ways}
    hubs: list[dict[str, float]] = []
    for _ in range(rounds):
        for mode, tree in ways:
            with place(tree) as (folder, environment), launch(folder, environment, mode, "stay", seconds) as child:
                assert child.stdout is not None
                for word in ("here", "ready"):
                    assert child.stdout.readline().strip() == word
                found[mode, tree].append(memory_of(child.pid))
                hubs += [memory_of(read_job_file(job.directory).hub_pid) for job in find_jobs().jobs]
                child.communicate()
    print(
        f"\n{'memory, MiB':<26}"
        + "".join(f"{name:>24}" for name in ("RSS", "PSS", "of its own only"))
        + "  threads  files"
    )
    for (mode, tree), runs in found.items():
        cells = [spread([run[name] for run in runs], "{:.1f}") for name in columns[:3]]
        counts = [f"{statistics.median(run[name] for run in runs):.0f}" for name in columns[3:]]
        name = f"{mode}{', before' if tree else ''}"
        print(f"{name:<26}" + "".join(f"{cell:>24}" for cell in cells) + f"{counts[0]:>9}{counts[1]:>7}")
    alone = found["alone", ""]
    for (mode, tree), runs in found.items():
        if mode != "alone":
            cells = [
                spread([a[name] - b[name] for a, b in zip(runs, alone, strict=True)], "{:+.1f}") for name in columns[:3]
            ]
            print(
                f"{'  added' + (', before' if tree else ''):<26}"
                + "".join(f"{cell:>24}" for cell in cells)
                + f"  {mode}"
            )
    print(f"{'the hub':<26}" + "".join(f"{spread([hub[name] for hub in hubs], '{:.1f}'):>24}" for name in columns[:3]))


# -- the interpreter's lock --------------------------------------------------------------------------------------------


def asked() -> dict[str, Any]:
    """Return the only job as ``ranktop status --json`` tells it now."""
    done = subprocess.run(
        [sys.executable, "-m", "ranktop.tui.cli", "status", "--json"], capture_output=True, text=True, check=False
    )
    told: dict[str, Any] = json.loads(done.stdout)
    job: dict[str, Any] = told["jobs"][0] if "jobs" in told else told
    return job


def gil(holds: list[float]) -> None:
    """Print what is told of a rank whose training thread holds the interpreter's lock, and what comes afterwards."""
    print(f"\n{'lock held':>9}  ranktop status --json, asked up to 2.5 s before the end{'':>24}samples  largest")
    print(f"{'s':>9}  {'age told (truth: from .. to), state, process; findings':<75}{'in 1 s':>11}{'gap, s':>9}")
    with place("") as (folder, environment), launch(folder, environment, "-m ranktop.agent", "hold", *holds) as child:
        assert child.stdout is not None
        with contextlib.closing(Listener()) as seen:
            for seconds in holds:
                held = json.loads(child.stdout.readline())
                time.sleep(max(0.0, held["at"] + seconds - min(2.5, 0.5 + 0.4 * seconds) - time.monotonic()))
                last, begun = seen.samples[-1][0], time.monotonic()
                job = asked()
                told = f"({begun - last:.1f} .. {time.monotonic() - last:.1f})"
                freed = json.loads(child.stdout.readline())["free"]
                time.sleep(1.5)
                tell(seconds, job, told, freed, seen.samples)
            made = json.loads(child.stdout.readline())["steps"]
            time.sleep(1.5)
            sample = seen.samples[-1][1]
            counted = f"{sample.step} counted (the last one when the next begins)"
            print(f"steps: {made} made, {counted}; messages dropped: {sample.cost.dropped}")
        child.kill()


def tell(seconds: float, job: dict[str, Any], truth: str, freed: float, samples: list[tuple[float, Sample]]) -> None:
    """Print the line of one hold."""
    rank = job["ranks"][0]
    findings = ", ".join(sorted({finding["rule"] for finding in job["findings"]})) or "no finding"
    words = f"{rank['age']:.1f} s {truth}, {rank['state']}, {rank['process'] or '-'}; {findings}"
    burst = sum(freed <= when < freed + 1.0 for when, _ in samples)
    gap = max(after - before for (before, _), (after, _) in pairwise(samples))
    print(f"{seconds:>9.0f}  {words:<75}{burst:>11}{gap:>9.1f}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="start, memory, gil; all of them where none is named")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--before", default="", metavar="TREE", help="another working tree to compare with")
    parser.add_argument("--short", action="store_true", help="a smoke run of some seconds")
    options = parser.parse_args()
    if options.short:
        os.environ["GUEST_PAUSE"] = "1"
        for mode in ("-m, hub is there", "attach()"):
            del MODES[mode]
    wanted = options.parts or ["start", "memory", "gil"]
    heading("The agent as a guest of the training process")
    if "start" in wanted:
        start(1 if options.short else options.rounds, options.before)
        samples = [first_sample() for _ in range(0 if options.short else 3)]
        print(f"{'first sample at a viewer':<26}{spread(samples):>22} s after the start of the process")
    if "memory" in wanted:
        memory(1 if options.short else 3, 0.5 if options.short else 4.0, options.before)
    if "gil" in wanted:
        gil([1.0] if options.short else [1.0, 3.0, 10.0])


if __name__ == "__main__":
    main()
