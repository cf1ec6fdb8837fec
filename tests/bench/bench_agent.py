"""What the agent costs a training job: run ``python tests/bench/bench_agent.py``.

Within one process, blocks of steps with the agent attached and detached alternate (on, off, off, on), and the medians
of neighbouring blocks are compared, so that the machine's mood cancels out. Whole processes are compared the same way.
Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

WARM_UP = 1.5
"""Seconds of training after the agent has come or gone, before a block is measured."""


def make(step_ms: float) -> tuple[object, object, object]:
    """Return (model, optimizer, step) whose step takes about ``step_ms`` on one thread."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(10)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randn(16, 64)

    def step() -> None:
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(20):
        step()
    began = time.perf_counter()
    for _ in range(20):
        step()
    base = (time.perf_counter() - began) / 20
    # Fill up with real work rather than with sleep: a sleeping thread would hide what the agent's thread takes.
    filler = torch.randn(256, 256)
    began = time.perf_counter()
    for _ in range(20):
        filler @ filler
    unit = (time.perf_counter() - began) / 20
    fills = max(0, round((step_ms / 1000 - base) / unit))

    def full_step() -> None:
        step()
        for _ in range(fills):
            filler @ filler

    return model, optimizer, full_step


def alternate(step_ms: float, pairs: int, block: int) -> dict[str, float]:
    """Return medians of block medians with and without the agent, and of their ratios."""
    from ranktop.agent import attach, detach

    model, optimizer, step = make(step_ms)
    assert callable(step)

    def measure() -> float:
        times = []
        for _ in range(block):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        # The mean of a block sees every cost, rare ones too; the median over blocks drops the machine's hiccups.
        return statistics.fmean(sorted(times)[: int(0.98 * block)])

    on: list[float] = []
    off: list[float] = []
    for index in range(pairs):
        order = (True, False) if index % 2 == 0 else (False, True)
        for attached in order:
            if attached:
                attach(model, optimizer)  # type: ignore[arg-type]
            # Not the start: the hub's process, the first steps and the card are paid once in a job's life.
            until = time.perf_counter() + WARM_UP
            while time.perf_counter() < until:
                step()
            (on if attached else off).append(measure())
            if attached:
                detach()
    ratios = [a / b - 1 for a, b in zip(on, off, strict=True)]
    spread = statistics.quantiles(ratios, n=4)
    return {
        "step_ms": 1e3 * statistics.median(off),
        "slowdown_percent": 100 * statistics.median(ratios),
        "low_percent": 100 * spread[0],
        "high_percent": 100 * spread[2],
    }


def whole_process(step_ms: float, runs: int, steps: int) -> list[float]:
    """Return the slow-down in percent of each pair of whole processes (training loop only)."""
    here = os.path.dirname(os.path.abspath(__file__))
    script = (
        f"import sys, time, statistics; sys.path.insert(0, {here!r})\n"
        "from bench_agent import make\n"
        f"_, _, step = make({step_ms})\n"
        "times = []\n"
        f"for _ in range({steps}):\n    t = time.perf_counter(); step(); times.append(time.perf_counter() - t)\n"
        "print(statistics.fmean(sorted(times)[:int(0.98 * len(times))]))\n"
    )
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.py")
        with open(path, "w") as file:
            file.write(script)
        env = {**os.environ, "RANKTOP_RUN_DIR": os.path.join(folder, "run"), "RANKTOP_HUB_LINGER": "1"}
        env["RANKTOP_STATE_DIR"] = os.path.join(folder, "state")
        for index in range(runs):
            seconds: dict[bool, float] = {}
            for agent in (True, False) if index % 2 == 0 else (False, True):
                prefix = [sys.executable, *(["-m", "ranktop.agent"] if agent else [])]
                done = subprocess.run([*prefix, path], env=env, capture_output=True, text=True, check=True)
                seconds[agent] = float(done.stdout.split()[-1])
            found.append(100 * (seconds[True] / seconds[False] - 1))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RANKTOP_RUN_DIR"] = os.path.join(folder, "run")
        os.environ["RANKTOP_STATE_DIR"] = os.path.join(folder, "state")
        os.environ["RANKTOP_HUB_LINGER"] = "30"
        for step_ms, block in ((1.0, 800), (10.0, 100), (100.0, 12)):
            rows.append({"what": "blocks in one process", **alternate(step_ms, options.pairs, block)})
    pairs = whole_process(10.0, 6, 300)
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'what':<24}{'step ms':>9}{'slow-down %':>13}{'quartiles':>18}")
    for row in rows:
        print(
            f"{row['what']:<24}{row['step_ms']:>9.2f}{row['slowdown_percent']:>13.2f}"
            f"{row['low_percent']:>9.2f} ..{row['high_percent']:>6.2f}"
        )
    print(
        f"{'whole processes':<24}{10.0:>9.2f}{statistics.median(pairs):>13.2f}{min(pairs):>9.2f} ..{max(pairs):>6.2f}"
    )


if __name__ == "__main__":
    main()
