"""What planning costs: run ``python tests/bench/bench_plan.py [whole] [catalogue] [inside] [keys] [swept]``.

``whole``: ``ranktop plan`` as a process, the start of Python included, with every strategy of one model; in turn with a
Python that does nothing, and with another checkout of this repository (``--before DIR``). ``catalogue``: the same for
every known model, once. ``inside``: where the time goes. ``keys``: the strategies screen, from a key to the picture in
a real terminal, and the computing alone. ``swept``: 10,000 plans through ``ranktop.budget.compare``, and what memory
they leave. Prints tables; asserts nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measured import heading, ratios, spread
from bench.simulated import running
from bench.terminal import Terminal

from ranktop.budget import compare, model_names
from ranktop.budget.models.catalogue import find
from ranktop.budget.run import STRATEGIES, Run
from ranktop.tui.session.whatif import WhatIf

PARTS = ("whole", "catalogue", "inside", "keys", "swept")
TARGET = 0.3
"""Seconds that every strategy for one model may take, as a whole process."""

CASES = {
    "llama-3-8b, 8 GPUs": ["--model", "llama-3-8b", "--world-size", "8", "--gpu", "h100"],
    "llama-3-70b, 64 GPUs": ["--model", "llama-3-70b", "--world-size", "64", "--gpu", "h100"],
    "llama-3-70b, 1024 GPUs, json": ["--model", "llama-3-70b", "--world-size", "1024", "--gpu", "h100", "--json"],
    "mixtral-8x7b, 64 GPUs": ["--model", "mixtral-8x7b", "--world-size", "64", "--gpu", "h100"],
    "gpt2, 8 GPUs": ["--model", "gpt2", "--world-size", "8", "--gpu", "h100"],
    "7.5e9 parameters, 64 GPUs": ["--params", "7.5e9", "--world-size", "64", "--gpu", "h100"],
}

INSIDE = """
import json, sys, time
began = time.process_time()
marks = {}
def mark(name):
    global began
    marks[name] = time.process_time() - began
    began = time.process_time()
marks["python"] = began
from ranktop.tui.plan_flags import PlanFlags, parser, read
flags = read(PlanFlags, parser(PlanFlags, "plan", ""), sys.argv[1:])
mark("flags")
from ranktop.budget.planning.request import request
mark("imports: request")
asked = request(flags)
mark("request")
import ranktop.budget.activations.closed, ranktop.budget.communication
import ranktop.budget.expected, ranktop.budget.zero.moments
from ranktop.budget.planning.answer import answer
mark("imports: budget")
found = answer(asked)
mark("answer: every strategy")
from ranktop.budget.planning.page import page
mark("imports: page")
page(found, 80, False)
mark("page")
from ranktop.budget.project import project
for strategy in asked.strategies:
    project(asked.run, strategy)
    mark("  alone: " + strategy)
print(json.dumps(marks))
"""

CHANGES = ("micro_batch", "sequence_length", "precision", "checkpointing", "optimizer", "offload")
GRID = (
    ("gpt2", "bert-base", "qwen3-0.6b", "llama-3-8b", "mixtral-8x7b", "llama-3-70b", "t5-base", "vit-b-16"),
    (8, 16, 64, 256), ("bf16-master", "amp-bf16", "fp32"), ("none", "full"), (1, 4), ("adamw", "adafactor", "sgd"),
)  # fmt: skip
"""Models, GPUs, precision, checkpointing, micro-batch, optimizer."""


def environment(tree: Path | None) -> dict[str, str]:
    """Return what makes Python take the product from another checkout."""
    found = dict(os.environ)
    if tree is not None:
        found["PYTHONPATH"] = os.pathsep.join(str(tree / part) for part in ("tui", "agent", "probes"))
    return found


def process(command: list[str], env: Mapping[str, str]) -> tuple[float, float]:
    """Return wall and CPU seconds of one process."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
    wall, after = time.perf_counter() - began, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def ranktop(arguments: list[str]) -> list[str]:
    """Return the installed command, else its module."""
    command = Path(sys.executable).with_name("ranktop")
    return [*([str(command)] if command.exists() else [sys.executable, "-m", "ranktop.tui.cli"]), "plan", *arguments]


def whole(rounds: int, before: Path | None) -> None:
    """Print whole processes, in turn with an empty Python and with the state before."""
    trees = {"now": None} if before is None else {"now": None, "before": before}
    print(f"\n{'whole process, ms':<30}{'':<8}{'wall, median (range)':>26}{'CPU':>7}   target {1000 * TARGET:.0f}")
    for name, arguments in CASES.items():
        walls: dict[str, list[float]] = {}
        cpus: dict[str, list[float]] = {}
        for turn in range(rounds + 1):
            commands = {label: (ranktop(arguments), environment(tree)) for label, tree in trees.items()}
            commands["empty"] = [sys.executable, "-c", "pass"], dict(os.environ)
            for label, (command, env) in commands.items():
                wall, cpu = process(command, env)
                if turn:  # the first one warms the caches
                    walls.setdefault(label, []).append(1000 * wall)
                    cpus.setdefault(label, []).append(1000 * cpu)
        for label in (*trees, "empty"):
            print(f"{name:<30}{label:<8}{spread(walls[label], '{:.0f}'):>26}{statistics.median(cpus[label]):>7.0f}")
        if before is not None:
            print(f"{'':<30}{'now / before':<8}{spread(ratios(walls['now'], walls['before'])):>22}", flush=True)


def catalogue(step: int) -> None:
    """Print how long the slowest of all known models take, on three numbers of GPUs."""
    found = []
    for name, world in product(model_names()[::step], ("8", "64", "1024")):
        arguments = ["--model", name, "--world-size", world, "--gpu", "h100"]
        found.append((process(ranktop(arguments), os.environ)[0], name, world))
    walls = sorted(1000 * wall for wall, _, _ in found)
    over = sum(wall > 1000 * TARGET for wall in walls)
    print(f"\n{len(found)} runs of {len(found) // 3} models, ms: {spread(walls, '{:.0f}')}; {over} over the target")
    for wall, name, world in sorted(found, reverse=True)[:5]:
        print(f"  {name:<26}{world:>5} GPUs{1000 * wall:8.0f}", flush=True)


def inside(rounds: int) -> None:
    """Print the median CPU time of every part of one process."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        command = [sys.executable, "-c", INSIDE, *CASES["llama-3-70b, 64 GPUs"]]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for name, seconds in json.loads(done.stdout).items():
            found.setdefault(name, []).append(1000 * seconds)
    print(f"\n{'inside llama-3-70b, 64 GPUs':<32}{'CPU, ms: median (range)':>28}")
    for name, values in found.items():
        print(f"{name:<32}{spread(values, '{:.1f}'):>28}", flush=True)


def keys(rounds: int) -> None:
    """Print the time from a key to the picture, and what is computed for it."""
    first: list[float] = []
    last: list[float] = []
    with running(8) as job:
        terminal = Terminal(ranktop([])[:-1], (120, 40))
        try:
            terminal.appeared(job.job.job.name)
            terminal.press("s")
            terminal.still(0.4)
            for turn in range(rounds):
                pressed = terminal.press("bBlLpPcCoOfF"[turn % 12])
                terminal.still(0.25)
                if terminal.last > pressed:
                    first.append(1000 * (terminal.first_after(pressed) - pressed))
                    last.append(1000 * (terminal.last - pressed))
        finally:
            terminal.close()
            job.stop()
    print(f"\n{'strategies screen, ms from a key':<44}{'median (range)':>28}")
    print(f"{'to the first byte of the new picture':<44}{spread(first, '{:.0f}'):>28}")
    print(f"{'to its last byte, every row filled in':<44}{spread(last, '{:.0f}'):>28}")
    for name, world in (("llama-3-8b", 8), ("gpt2", 8), ("llama-3-70b", 64)):
        own, rows = computing(name, world, rounds)
        print(f"{f'computing alone, {name}, {world} ranks: own row':<44}{spread(own, '{:.1f}'):>28}")
        print(f"{f'  all {len(STRATEGIES)} rows':<44}{spread(rows, '{:.1f}'):>28}", flush=True)


def computing(name: str, world: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of CPU that a key asks for: until the job's own row is there, and until all are."""
    run = Run(model=find(name), world_size=world, device_memory=80 * 2**30, sequence_length=1024, loss="auto")
    what = WhatIf(run=run, own="fsdp-full")
    own: list[float] = []
    rows: list[float] = []
    for turn in range(rounds):
        what.change(CHANGES[turn // 2 % len(CHANGES)], -1 if turn % 2 else 1)
        began = time.thread_time()
        missing = what.more(0.0)
        own.append(1000 * (time.thread_time() - began))
        while missing:
            missing = what.more(1.0)
        rows.append(1000 * (time.thread_time() - began))
    return own, rows


def grid() -> Iterator[dict[str, Any]]:
    """Yield real runs, over and over."""
    while True:
        for model, world, precision, checkpointing, batch, optimizer in product(*GRID):
            yield {
                "model": model, "world_size": world, "precision": precision, "checkpointing": checkpointing,
                "micro_batch": batch, "optimizer": optimizer, "gpu": "h100",
            }  # fmt: skip


def plans(count: int, skip: int = 0) -> Iterator[int]:
    """Compare runs from the grid, one here and one there, until so many strategies were answered; yield how many."""
    done = 0
    for asked in islice(grid(), skip, None, 7):
        done += len(compare(**asked).to_dict()["strategies"])
        yield done
        if done >= count:
            return


def swept(count: int) -> None:
    """Print plans per second, and what memory holds after each quarter of them."""
    before, began = time.thread_time(), time.perf_counter()
    done = max(plans(count))
    cpu, wall = time.thread_time() - before, time.perf_counter() - began
    print(
        f"\n{done:,} plans in {wall:.1f} s: {done / wall:.0f} plans/s ({done / cpu:.0f} per second of CPU)", flush=True
    )
    tracemalloc.start()
    levels: list[int] = []
    each = max(1, count // 100)
    for quarter in range(4):
        for _ in plans(each, 7 * quarter):
            pass
        gc.collect()
        levels.append(tracemalloc.get_traced_memory()[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    told = ", ".join(f"{level / 1024:.0f}" for level in levels)
    print(f"KiB held after each {each:,} plans more, after the sweep: {told}; peak {peak / 1024:.0f}", flush=True)


def main() -> None:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--before", type=Path, help="another checkout to run in turn")
    parser.add_argument("--short", action="store_true", help="a smoke run")
    given = parser.parse_args()
    heading("Planning")
    wanted, short = given.parts or PARTS, given.short
    if "whole" in wanted:
        whole(1 if short else 7, given.before)
    if "catalogue" in wanted:
        catalogue(12 if short else 1)
    if "inside" in wanted:
        inside(1 if short else 5)
    if "keys" in wanted:
        keys(4 if short else 36)
    if "swept" in wanted:
        swept(100 if short else 10_000)


if __name__ == "__main__":
    main()
