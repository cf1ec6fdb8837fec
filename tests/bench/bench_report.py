"""What ``report`` and ``annotate`` take: run ``python tests/bench/bench_report.py``.

Each is called in a loop of its own, in blocks that alternate, in a process without a hub; the agent's thread does not
run, so that the calls alone are seen. CPU time: others on the machine do not count. Prints a table of medians and what
10,000 calls a second take of a core.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measured import heading

from ranktop.agent import annotate, progress, report

CALLS = 2_000
BLOCKS = 15


def _annotated() -> None:
    with annotate("save"):
        pass


def cases() -> dict[str, Callable[[], None]]:
    loss, graph = torch.tensor(0.5), (torch.ones(1, requires_grad=True) * 2).sum()
    return {
        "report: step, loss, learning rate": lambda: report(step=7, loss=0.5, learning_rate=1e-3),
        "report: ... and tokens, total, norm, one more": lambda: report(
            step=7, total_steps=9, loss=0.5, learning_rate=1e-3, gradient_norm=0.5, tokens=4096, accuracy=0.5
        ),
        "report: loss as a CPU tensor": lambda: report(step=7, loss=loss),
        "report: loss as a CPU tensor with its graph": lambda: report(step=7, loss=graph),
        "annotate: in and out": _annotated,
    }


def seconds_a_call(call: Callable[[], None]) -> float:
    began = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - began) / CALLS


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a smoke run, whose numbers mean nothing")
    blocks = 1 if parser.parse_args().short else BLOCKS
    heading("ranktop.agent.report and annotate, called by a script")
    found: dict[str, list[float]] = {}
    for _ in range(blocks):
        for agent in (True, False):
            reports = progress.begin(lambda: None) if agent else None
            for name, call in cases().items():
                found.setdefault(f"{name}{'' if agent else ', no agent'}", []).append(seconds_a_call(call))
            if reports is not None:
                progress.end(reports)
    print(f"{'call':<58}{'us':>7}{'10,000/s':>11}")
    for name, times in sorted(found.items()):
        middle = statistics.median(times)
        print(f"{name:<58}{1e6 * middle:>7.2f}{1e4 * middle:>10.2%}")


if __name__ == "__main__":
    main()
