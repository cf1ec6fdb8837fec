"""What one sample costs a rank: ``python tests/bench/bench_sampler.py [host] [nvml] [loop] [--before TREE]``.

``host`` and ``nvml``: a process trains a model of so many parameter tensors with the agent attached. CPU time and
wake-ups of each thread that the agent brings are the kernel's (``/proc/PID/task/TID/schedstat`` and ``status``), read
from outside once between two samples. ``nvml`` reads a stand-in NVML library (needs a C compiler) that counts every
call. ``loop``: the sampling thread's work called in a loop, without anybody beside it. With ``--before`` each process
is run a second time with the packages of another working tree. Prints tables; asserts nothing.
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
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from allocator_statistics import native_values, torch_2_13
from bench.measured import heading, spread
from nvml_stub.build import NvmlStub, build_library, compiler, device, device_uuid

THREADS = {"ranktop-agent": "agent", "ranktop-nvml": "nvml", "ZMQbg/IO/0": "zmq", "ZMQbg/Reaper": "zmq"}
"""A thread's name -> its column."""


# -- in the training process -------------------------------------------------------------------------------------------


def make(tensors: int) -> tuple[Any, Any, Any]:
    """Return (model, optimizer, step) of so many parameter tensors; a step also turns 12 MiB over in the caches."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(tensors // 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    data, filler = torch.randn(4, 8), torch.randn(1024, 1024)

    def step() -> None:
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        filler @ filler

    return model, optimizer, step


def own_threads() -> dict[int, str]:
    """Return the column of each thread that the agent has brought, by the kernel's id."""
    named = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[int, str] = {}
    for task in Path("/proc/self/task").iterdir():
        number = int(task.name)
        name = THREADS.get(named.get(number) or (task / "comm").read_text().strip())
        if name is not None:
            found[number] = name
    return found


def count_as_cuda() -> None:
    """Give the agent the numbers of a CUDA allocator, as torch returns them, in the place of malloc's."""
    from ranktop.agent import attaching
    from ranktop.probes import cuda_allocator

    stats = torch_2_13(**native_values())
    cuda = SimpleNamespace(get_allocator_backend=lambda: "native", device_count=lambda: 1, memory_snapshot=list)
    torch = SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_memoryStats=lambda index: stats))
    cuda_allocator._initialized_torch = lambda: torch
    agent = attaching._agent
    assert agent is not None
    assert agent.watch is not None
    agent.watch.allocator = cuda_allocator.CudaAllocator(0)


def train(kind: str, tensors: int, warm_up: float) -> None:
    """Train with the agent attached until standard input ends; says who the agent's threads are once it is warm."""
    from ranktop.agent import attach, detach

    model, optimizer, step = make(tensors)
    attach(model, optimizer)
    if kind == "nvml":
        step()
        count_as_cuda()
    waiter = threading.Thread(target=sys.stdin.read, daemon=True)
    waiter.start()
    until = time.monotonic() + warm_up
    while time.monotonic() < until:
        step()
    print(json.dumps(own_threads()), flush=True)
    count, began = 0, time.monotonic()
    while waiter.is_alive():
        step()
        count += 1
    print(json.dumps({"step": (time.monotonic() - began) / max(1, count)}), flush=True)
    detach()
    os._exit(0)  # torch takes most of a second to end


def loop(tensors: int, rounds: int) -> None:
    """Print the CPU microseconds of a sample, read, made and encoded, by itself: the median and the least."""
    from ranktop.agent import attach, attaching
    from ranktop.agent.publisher import Publisher

    model, optimizer, step = make(tensors)
    attach(model, optimizer)
    for _ in range(12):
        step()
    agent = attaching._agent
    assert agent is not None
    sampler = agent.sampler
    sampler._stopping.set()
    sampler.join()
    publisher = Publisher(sampler.identity.job, 0, os.getpid(), 0, Path("/nowhere"))
    publisher._connection = lambda: None  # type: ignore[method-assign]
    took = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        sampler._publish(publisher)
        took.append(time.thread_time_ns() - began)
    print(json.dumps({"median": statistics.median(took) / 1e3, "least": min(took) / 1e3}), flush=True)
    os._exit(0)


# -- from outside ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Window:
    """What the agent's threads did within a second: column -> CPU milliseconds, and times woken."""

    cpu: dict[str, float] = field(default_factory=dict)
    woken: dict[str, int] = field(default_factory=dict)


def look(process: int, threads: dict[int, str]) -> Window:
    """Return what the threads have used and how often they have slept since they began."""
    window = Window()
    for number, name in threads.items():
        task = Path(f"/proc/{process}/task/{number}")
        status = (task / "status").read_text()
        slept = next(line for line in status.splitlines() if line.startswith("voluntary"))
        used = int((task / "schedstat").read_text().split()[0]) / 1e6
        window.cpu[name] = window.cpu.get(name, 0.0) + used
        window.woken[name] = window.woken.get(name, 0) + int(slept.split()[1])
    return window


def follow(process: int, threads: dict[int, str], seconds: int) -> list[Window]:
    """Return what each second took, one sample in each; the seconds begin half-way between two samples."""
    first = look(process, threads).cpu["agent"]
    until = time.monotonic() + 3.0
    while look(process, threads).cpu["agent"] - first < 0.15 and time.monotonic() < until:
        time.sleep(0.02)
    due = time.monotonic() + 0.5
    looks: list[Window] = []
    for _ in range(seconds + 1):
        time.sleep(max(0.0, due - time.monotonic()))
        looks.append(look(process, threads))
        due += 1.0
    return [
        Window(
            {name: after.cpu[name] - before.cpu[name] for name in after.cpu},
            {name: after.woken[name] - before.woken[name] for name in after.woken},
        )
        for before, after in pairwise(looks)
    ]


@contextlib.contextmanager
def place(tree: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give a folder and the environment of a job in it, with the packages of ``tree`` where that is named."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as name:
        environment = {
            **os.environ,
            "RANKTOP_RUN_DIR": f"{name}/run",
            "RANKTOP_STATE_DIR": f"{name}/state",
            "RANKTOP_HUB_LINGER": "0",
            "RANKTOP_DEVICE": "host",
        }
        if tree:
            environment["PYTHONPATH"] = os.pathsep.join(f"{tree}/{root}" for root in ("tui", "agent", "probes"))
        yield Path(name), environment
        until = time.monotonic() + 10.0
        while any(Path(name).glob("run/*/hub.lock")) and time.monotonic() < until:
            time.sleep(0.02)  # its hub would write into a folder that is being removed


def call(*words: object) -> list[str]:
    """Return the command line of this file in another of its parts."""
    return [sys.executable, str(Path(__file__).resolve()), *map(str, words)]


def measure(tensors: int, seconds: int, kind: str, tree: str) -> tuple[list[Window], float, str]:
    """Run one training process; returns its seconds, the step's milliseconds, and how often NVML was called."""
    with place(tree) as (folder, environment):
        stub: NvmlStub | None = None
        if kind == "nvml":
            stub = NvmlStub(build_library(folder / "nvml"), folder)
            stub.devices(device(0))
            environment.update(stub.environment(), RANKTOP_DEVICE=f"nvml:{device_uuid(0)}")
        with subprocess.Popen(
            call("--train", kind, tensors, 4.0 if seconds > 2 else 0.5),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            threads = {int(number): name for number, name in json.loads(child.stdout.readline()).items()}
            began = time.monotonic()
            windows = follow(child.pid, threads, seconds)
            calls = "" if stub is None else nvml_calls(stub, began, time.monotonic())
            child.stdin.close()
            step: float = json.loads(child.stdout.readline())["step"]
        return windows, 1e3 * step, calls


def nvml_calls(stub: NvmlStub, began: float, ended: float) -> str:
    """Return how often each function was called, a second."""
    names = [name for when, name in stub.calls() if began <= when < ended]
    each = ", ".join(f"{name} {count / (ended - began):.2f}" for name, count in Counter(names).most_common(10))
    return f"NVML calls per rank and second: {len(names) / (ended - began):.2f}; of them\n  {each}"


def beside(kind: str, sizes: list[int], seconds: int, before: str) -> None:
    """Print what a sample costs beside a trainer."""
    if kind == "nvml" and compiler() is None:
        print("nvml: skipped, no C compiler to build the stand-in library")
        return
    print(f"\n{'CPU ms per sample (1 s), beside a trainer':<44}{'':>31}{'woken per second':>24}{'step':>9}")
    print(f"{kind:<9}{'tensors':>8}{'agent':>24}{'nvml':>17}{'zmq':>17}{'agent':>10}{'nvml':>7}{'zmq':>7}{'ms':>9}")
    calls = ""
    for tensors in sizes:
        for tree, name in ((before, "before"), ("", "now")) if before else (("", "now"),):
            windows, step, calls = measure(tensors, seconds, kind, tree)
            used = {column: [window.cpu.get(column, 0.0) for window in windows] for column in ("agent", "nvml", "zmq")}
            woken = {
                column: statistics.fmean(window.woken.get(column, 0) for window in windows)
                for column in ("agent", "nvml", "zmq")
            }
            print(
                f"{name:<9}{tensors:>8}{spread(used['agent']):>24}{statistics.median(used['nvml']):>17.2f}"
                f"{statistics.median(used['zmq']):>17.2f}{woken['agent']:>10.1f}{woken['nvml']:>7.1f}"
                f"{woken['zmq']:>7.1f}{step:>9.1f}",
                flush=True,
            )
    print(calls)


def alone(sizes: list[int], rounds: int, before: str) -> None:
    """Print what a sample costs by itself."""
    print(f"\n{'CPU us of a sample by itself, in a loop':<44}{'median':>10}{'least':>10}")
    for tensors in sizes:
        for tree, name in ((before, "before"), ("", "now")) if before else (("", "now"),):
            with place(tree) as (_, environment):
                done = subprocess.run(call("--loop", tensors, rounds), env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr)
            told = json.loads(done.stdout)
            print(f"{name:<9}{tensors:>8} tensors{'':>19}{told['median']:>10.0f}{told['least']:>10.0f}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="host, nvml, loop; all of them where none is named")
    parser.add_argument("--tensors", default="100,1000,10000")
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--before", default="", metavar="TREE", help="another working tree to compare with")
    parser.add_argument("--short", action="store_true", help="a smoke run of some seconds")
    options = parser.parse_args()
    sizes = [100] if options.short else [int(size) for size in options.tensors.split(",")]
    seconds, rounds = (1, 200) if options.short else (options.seconds, 2000)
    heading("The agent's thread: CPU and wake-ups for a sample")
    for kind in ("host", "nvml"):
        if not options.parts or kind in options.parts:
            beside(kind, sizes, seconds, options.before)
    if not options.parts or "loop" in options.parts:
        alone(sizes, rounds, options.before)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    elif sys.argv[1:2] == ["--loop"]:
        loop(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
