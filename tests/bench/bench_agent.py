"""What the agent costs a training job: ``python tests/bench/bench_agent.py [--short] [part ...]``.

The same job (``agent_jobs.py``) with nothing beside it, with ranktop, with TraceML and with torchtnt's timer
(``agent_tools.py`` says what is used of them). Parts:

- ``plain``, ``ddp``, ``fsdp2``, ``zero3``: steps of about 1, 10 and 100 ms in one process, or in two ranks of torchrun.
  Within each process blocks of steps with one tool after the other alternate, each group in a random order and
  backwards (A B C C B A); the slow-down is a tool's two blocks over the two without any in the same group.
- ``pairs``: more groups of a plain 10 ms step with ranktop alone.
- ``processes``: whole processes, with and without ``-m ranktop.agent`` (A B B A): the training loop of each.
- ``hooks``: the time between the begin and the end of the agent's hooks themselves, in loops of 10 ms steps.

"off, again" is the job with nothing beside it once more, as one of the tools: what it shows is the machine's doing.
Prints tables; asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import measured
from bench.agent_jobs import KINDS
from bench.agent_tools import AGAIN, OFF, RANKTOP, TORCHTNT, TRACEML, aggregator, installed
from bench.hub_load import end_hub

HERE: Final = Path(__file__).parent
TITLES: Final = {"plain": "plain", "ddp": "DDP", "fsdp2": "FSDP2", "zero3": "ZeRO-3"}
ALL: Final = [OFF, AGAIN, RANKTOP, TRACEML, TORCHTNT]
TENSORS: Final = {1.0: 8, 10.0: 8, 100.0: 100}
"""Parameter tensors of the model by the step's milliseconds: under FSDP2 and ZeRO-3 each costs a step of its own."""

BLOCK: Final = 1.0
"""Seconds of a block: one sample, two steps that are followed."""

WARM: Final = 0.3

LONGEST: Final = 60.0
"""Seconds for a worker's start, after which, and twice what its blocks take, it is given up."""

PARTS: Final = (*KINDS, "pairs", "processes", "hooks")


def environment(folder: str) -> dict[str, str]:
    """Return the environment of a job whose hub and recording stay in ``folder``."""
    return {
        **os.environ,
        "RANKTOP_RUN_DIR": f"{folder}/run",
        "RANKTOP_STATE_DIR": f"{folder}/state",
        "RANKTOP_HUB_LINGER": "5",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


@contextlib.contextmanager
def place() -> Iterator[str]:
    """Make a folder for a job; its hub, which would write on, ends before the folder goes."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield folder
        for process in psutil.process_iter(["cmdline"]):
            if any(word.startswith(f"{folder}/run") for word in process.info["cmdline"] or ()):
                end_hub(process.pid)


def patience(spec: dict[str, Any]) -> float:
    """Return the seconds that a worker may take: twice its blocks, and some for its start."""
    blocks: int = sum(2 * groups * len(spec.get("tools", ())) for *_, groups in spec["cells"])
    return LONGEST + 2 * blocks * float(spec.get("block", 0.0) + spec.get("warm", 0.0))


def worker(ranks: int, **spec: Any) -> list[dict[str, Any]]:
    """Run ``agent_blocks.py`` in so many ranks and return what rank 0 has written; empty when it failed."""
    with place() as folder:
        out = Path(folder) / "out.json"
        spec["out"] = str(out)
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        command = [sys.executable, *launch, str(HERE / "agent_blocks.py"), json.dumps(spec)]
        with aggregator(folder) as more:
            env = {**environment(folder), **more}
            try:
                done = subprocess.run(
                    command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=patience(spec)
                )
                why = done.stderr
            except subprocess.TimeoutExpired:
                why = f"not done after {patience(spec):.0f} s"
        if not out.exists():
            print(f"  failed: {' '.join(why.split())[-300:]}")
            return []
        found: list[dict[str, Any]] = json.loads(out.read_text())
        return found


def slowdowns(blocks: dict[str, Any], tool: str, which: int) -> list[float]:
    """Return the percent that a tool's blocks took longer than those without any, per group."""
    found = []
    for mine, none in zip(blocks[tool], blocks[OFF], strict=True):
        found.append(100 * (sum(block[which] for block in mine) / sum(block[which] for block in none) - 1))
    return found


def added(blocks: dict[str, Any], tool: str) -> float:
    """Return the median of the microseconds of CPU that a step of the training thread took longer."""
    each: list[float] = []
    for mine, none in zip(blocks[tool], blocks[OFF], strict=True):
        each.append(1e6 * (sum(block[0] for block in mine) - sum(block[0] for block in none)) / 2)
    return statistics.median(each)


def head() -> None:
    """Print the columns' names."""
    print(f"\n{'':<8}{'step ms':>8}{'groups':>7}  {'':<12}{'CPU of the training thread':>32}{'wall clock':>26}")
    print(f"{'':<37}{'us a step':>10}  {'slow-down %: median (quartiles)':<34}{'slow-down %':<24}")


def rows(result: dict[str, Any]) -> None:
    """Print one cell, a line per tool."""
    blocks = result["blocks"]
    for tool in blocks:
        if tool == OFF:
            continue
        cpu, wall = (measured.quartiles(slowdowns(blocks, tool, which), "{:+.2f}") for which in (0, 1))
        first = tool == AGAIN
        start = f"{TITLES[result['kind']]:<8}{result['step_ms']:>8.2f}{len(blocks[tool]):>7}" if first else " " * 23
        print(f"{start}  {tool:<12}{added(blocks, tool):>+10.1f}  {cpu:<34}{wall:<24}", flush=True)


def alternating(kind: str, seconds: float) -> None:
    """Print the three lengths of a step for one kind of job."""
    names = [name for name in ALL if installed(name)]
    # Most of the time for the step that the target is about.
    groups = max(1, int(seconds / (len(names) * 2 * (BLOCK + WARM))))
    cells = [(kind, TENSORS[ms], ms, groups if ms == 10.0 else 1) for ms in (1.0, 10.0, 100.0)]
    for result in worker(1 if kind == "plain" else 2, cells=cells, tools=names, block=BLOCK, warm=WARM):
        rows(result)


def smoke() -> None:
    """Print one short group of every kind of job."""
    names = [name for name in ALL if installed(name)]
    for kinds in (KINDS[:1], KINDS[1:]):
        cells = [(kind, TENSORS[10.0], 10.0, 1) for kind in kinds]
        for result in worker(len(cells[:2]), cells=cells, tools=names, block=0.1, warm=0.05):
            rows(result)


def pairs(seconds: float) -> None:
    """Print more groups of a 10 ms step with ranktop alone."""
    names = [OFF, AGAIN, RANKTOP]
    cells = [("plain", 20, 10.0, max(1, int(seconds / (len(names) * 2 * (BLOCK + WARM)))))]
    for result in worker(1, cells=cells, tools=names, block=BLOCK, warm=WARM):
        rows(result)


def processes(quads: int, short: bool) -> None:
    """Print what whole processes say of their training loops: without, with, with, without the agent."""
    spec = {"cells": [("plain", 20, 10.0, 1)], "tools": [OFF], "block": 0.2 if short else 2.5, "warm": 0.5}
    ratios: dict[str, tuple[list[float], list[float]]] = {AGAIN: ([], []), RANKTOP: ([], [])}
    took: list[float] = []
    for _ in range(quads):
        seen = []
        for agent in (False, True) if short else (False, True, True, False):
            with place() as folder:
                out = Path(folder) / "out.json"
                script = [str(HERE / "agent_blocks.py"), json.dumps({**spec, "out": str(out)})]
                command = [sys.executable, *(["-m", "ranktop.agent"] if agent else []), *script]
                subprocess.run(command, env=environment(folder), capture_output=True, check=True)
                (pair,) = json.loads(out.read_text())[0]["blocks"][OFF]
                seen.append([statistics.fmean(block[which] for block in pair) for which in (0, 1)])
        seen = [*seen, *reversed(seen)][:4]
        for which in (0, 1):
            first, one, other, last = (found[which] for found in seen)
            ratios[RANKTOP][which].append(100 * ((one + other) / (first + last) - 1))
            ratios[AGAIN][which].append(100 * (last / first - 1))
        took += [1e3 * seen[0][1], 1e3 * seen[3][1]]
    print(f"\nwhole processes, {quads} times four, {statistics.median(took):.2f} ms a step")
    for name, (cpu, wall) in ratios.items():
        print(f"  {name:<12}CPU {measured.spread(cpu, '{:+.2f}')} %, wall clock {measured.spread(wall, '{:+.2f}')} %")


def hooks(seconds: float, short: bool) -> None:
    """Print how long the agent's hooks take."""
    print(f"\n{'hooks, us a step':<20}{'step ms':>8}{'counted: median (quartiles)':>36}{'followed':>30}{'share %':>10}")
    cells = [[("plain", 20, 10.0, 1), ("plain", 1000, 40.0, 1)]]
    cells.append([("ddp", 20, 10.0, 1), ("fsdp2", 8, 10.0, 1), ("zero3", 8, 10.0, 1)])
    for ranks, group in enumerate([cells[0][:1]] if short else cells, 1):
        for result in worker(ranks, cells=group, hooks=seconds):
            counted, followed = (sorted(1e6 * value for value in result[name]) for name in ("counted", "followed"))
            spent = sum(counted) + sum(followed)
            share = spent / (len(counted) + len(followed)) / result["step_ms"] / 10
            name = f"{TITLES[result['kind']]}, {result['tensors']} tensors"
            print(
                f"{name:<20}{result['step_ms']:>8.2f}{measured.quartiles(counted, '{:.1f}'):>36}"
                f"{measured.quartiles(followed, '{:.0f}'):>30}{share:>10.2f}",
                flush=True,
            )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--short", action="store_true", help="a smoke run, whose numbers mean nothing")
    parser.add_argument("--seconds", type=float, default=40.0, help="of 10 ms steps of each kind of job")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    parts = options.parts or PARTS
    measured.heading("Agent: real steps with nothing beside them, with ranktop, TraceML, torchtnt", "torchtnt",
                     "traceml-ai", "deepspeed")  # fmt: skip
    seconds, short = options.seconds, options.short
    if set(parts) & {*KINDS, "pairs"}:
        head()
    if short:
        smoke()
    for kind in () if short else KINDS:
        if kind in parts:
            alternating(kind, seconds)
    if "pairs" in parts and not short:
        pairs(1.2 * seconds)
    if "processes" in parts:
        processes(1 if short else 2, short)
    if "hooks" in parts:
        hooks(0.2 if short else 4.0, short)


if __name__ == "__main__":
    main()
