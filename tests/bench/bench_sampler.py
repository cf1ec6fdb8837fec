"""What one sample costs a rank: run ``python tests/bench/bench_sampler.py [TENSORS ...]``.

A job of one process trains a model of so many parameter tensors with the agent attached. CPU of the agent's threads is
taken from the kernel's accounting per thread (``/proc/self/task/*/schedstat``), not from what the agent says of
itself. With a C compiler the device is a stand-in NVML library that counts every call. Prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from nvml_stub.build import NvmlStub, build_library, compiler, device, device_uuid

from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Received
from ranktop.wire.endpoints import find_jobs
from ranktop.wire.schema import Sample


def thread_cpu() -> dict[str, float]:
    """Return the CPU seconds of this process's ranktop threads by name."""
    ids = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        name = ids.get(int(task.name), "")
        if name.startswith("ranktop"):
            found[name] = found.get(name, 0.0) + int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def train(tensors: int, seconds: float) -> None:
    """Train with the agent attached; prints when the measurement begins, and what the threads cost when it ends."""
    import torch
    from torch import nn

    from ranktop.agent import attach

    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(tensors // 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    data = torch.randn(4, 8)

    def steps(until: float) -> None:
        while time.monotonic() < until:
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    attach(model, optimizer)
    steps(time.monotonic() + 4.0)
    before, began = thread_cpu(), time.monotonic()
    print("begin", flush=True)
    steps(began + seconds)
    took, after = time.monotonic() - began, thread_cpu()
    cpu = {name: after[name] - before.get(name, 0.0) for name in after}
    print(json.dumps({"from": began, "seconds": took, "cpu": cpu}), flush=True)


class Listener(threading.Thread):
    """Follows the only job of the run directory and keeps its samples."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self._done = threading.Event()

    def run(self) -> None:
        """Find the job, then drain until told to stop."""
        while not (jobs := find_jobs().jobs):
            if self._done.wait(0.05):
                return
        source = HubSource(jobs[0].directory)
        while not self._done.is_set():
            source.poll(0.1)
            for item in source.drain():
                if isinstance(item, Received) and isinstance(item.body, Sample):
                    self.samples.append(item.body)
        source.close()

    def stop(self) -> None:
        """End, and wait for it."""
        self._done.set()
        self.join()


def measure(tensors: int, seconds: float, environment: dict[str, str]) -> tuple[dict[str, Any], list[Sample]]:
    """Run one training process; returns its report and the samples of the measured time."""
    listener = Listener()
    listener.start()
    command = [sys.executable, __file__, "--train", str(tensors), str(seconds)]
    with subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        if child.stdout.readline().strip() != "begin":
            raise RuntimeError("the training process failed")
        first = len(listener.samples)
        report: dict[str, Any] = json.loads(child.stdout.readline())
        samples = listener.samples[first:]
    listener.stop()
    return report, samples


def row(device: str, tensors: int, report: dict[str, Any], samples: list[Sample]) -> str:
    """Return one line of the table."""
    told = [1e3 * sample.cost.cpu_s for sample in samples]
    sampling = 1e3 * report["cpu"].get("ranktop-agent", 0.0) / len(samples)
    other = 1e3 * sum(cpu for name, cpu in report["cpu"].items() if name != "ranktop-agent") / len(samples)
    steps = samples[-1].step - samples[0].step
    hooks = 1e6 * sum(sample.cost.hook_s for sample in samples[1:]) / max(1, steps)
    step = 1e3 * report["seconds"] / max(1, steps)
    middle = f"{statistics.median(told):.2f} ({min(told):.2f} .. {max(told):.2f})"
    return f"{device:<14}{tensors:>8}{middle:>26}{sampling:>12.2f}{other:>10.2f}{hooks:>14.0f}{step:>10.1f}"


def nvml_calls(stub: NvmlStub, report: dict[str, Any]) -> str:
    """Return how often each function was called, a second."""
    until = report["from"] + report["seconds"]
    names = [name for when, name in stub.calls() if report["from"] <= when < until]
    each = ", ".join(f"{name} {count / report['seconds']:.2f}" for name, count in Counter(names).most_common())
    return f"NVML calls per rank and second: {len(names) / report['seconds']:.2f}\n  {each}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tensors", nargs="*", type=int, default=[100, 1000, 10000])
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    print(f"{'':>22}{'CPU ms per sample':>26}{'with pumps':>12}{'NVML':>10}{'hooks,':>14}{'step':>10}")
    print(
        f"{'device':<14}{'tensors':>8}{'told by the agent':>26}{'by /proc':>12}{'thread':>10}"
        f"{'us per step':>14}{'ms':>10}"
    )
    for tensors in options.tensors:
        for kind in ("host", "nvml"):
            with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
                os.environ.update(
                    RANKTOP_RUN_DIR=f"{folder}/run", RANKTOP_STATE_DIR=f"{folder}/state", RANKTOP_HUB_LINGER="0"
                )
                stub: NvmlStub | None = None
                environment = {"RANKTOP_DEVICE": "host"}
                if kind == "nvml":
                    if compiler() is None:
                        print("nvml: skipped, no C compiler to build the stand-in library")
                        continue
                    stub = NvmlStub(build_library(Path(folder) / "nvml"), Path(folder))
                    stub.devices(device(0))
                    environment = {**stub.environment(), "RANKTOP_DEVICE": f"nvml:{device_uuid(0)}"}
                report, samples = measure(tensors, options.seconds, environment)
                print(row(kind, tensors, report, samples), flush=True)
                if stub is not None and tensors == options.tensors[-1]:
                    print(nvml_calls(stub, report))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(int(sys.argv[2]), float(sys.argv[3]))
    else:
        main()
