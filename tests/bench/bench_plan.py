"""What ``ranktop plan`` takes: run ``python tests/bench/bench_plan.py``.

Whole processes, the start of Python included, with every strategy of one model; beside them a Python that does nothing,
in turn, so that the machine's mood shows. Then where the time goes inside. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

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
mark("answer")
from ranktop.budget.planning.page import page
mark("imports: page")
page(found, 80, False)
mark("page")
from ranktop.budget.project import project
for strategy in asked.strategies:
    project(asked.run, strategy)
    mark("  " + strategy)
print(json.dumps(marks))
"""


def process(command: list[str]) -> tuple[float, float]:
    """Return wall and CPU seconds of one process."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def inside(arguments: list[str], rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of every part."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", INSIDE, *arguments], check=True, stdout=subprocess.PIPE, text=True)
        for name, seconds in json.loads(done.stdout).items():
            found.setdefault(name, []).append(seconds)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    plan = [sys.executable, "-m", "ranktop.tui.cli", "plan"]
    print(f"{'whole process, ms':32}{'wall':>8}{'best':>8}{'cpu':>8}   target {1000 * TARGET:.0f}")
    for name, arguments in {"python -c pass": None, **CASES}.items():
        command = [sys.executable, "-c", "pass"] if arguments is None else [*plan, *arguments]
        process(command)
        walls, cpus = zip(*(process(command) for _ in range(rounds)), strict=True)
        wall, best, cpu = statistics.median(walls), min(walls), statistics.median(cpus)
        print(f"{name:32}{1000 * wall:8.0f}{1000 * best:8.0f}{1000 * cpu:8.0f}")
    print(f"\n{'inside llama-3-70b, 64 GPUs':32}{'cpu ms':>8}")
    for name, seconds in inside(CASES["llama-3-70b, 64 GPUs"], rounds).items():
        print(f"{name:32}{1000 * seconds:8.1f}")


if __name__ == "__main__":
    main()
