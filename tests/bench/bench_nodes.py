"""What the hubs of a job of several nodes cost: run ``python tests/bench/bench_nodes.py [real many] [--short]``.

``real``: every node has a real hub, whose simulated ranks publish at 1 Hz; the hubs' doors are told by hand, as the
agents do through the job's store. One viewer follows the first node's hub and checks that each rank's samples come
without a gap. Then another one follows the last node's hub, which so has to gather too. ``many``: the first node's hub
of a job of up to 512 nodes with 8 ranks each, whose doors are real and stand in one process. Prints tables; asserts
nothing.
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
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import zmq

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import hub_doors
from bench.bench_hub import Watcher, places, way
from bench.hub_load import end_hub, loaded
from bench.measured import heading
from bench.measured import spread as usual_spread
from bench.simulated import Running, running
from bench.terminal import cpu_seconds

from ranktop.wire.codec import decode_ack, encode_body, encode_header
from ranktop.wire.nodes import Door, Doors
from ranktop.wire.schema import Header


def tell(node: int, job: Running, nodes: int, doors: tuple[Door, ...]) -> Door:
    """Tell a node's hub of doors, as an agent does; returns its own."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        agent = context.socket(zmq.DEALER)
        agent.connect(f"ipc://{job.directory}/agents.sock")
        word = Doors(node_rank=node, nodes=nodes, host=f"node{node}", addresses=("127.0.0.1",), doors=doors)
        agent.send_multipart((encode_header(Header("doors", 0, os.getpid(), 0, 0)), encode_body(word)))
        while True:
            if not agent.poll(20_000):
                raise RuntimeError("a hub does not answer")
            door = decode_ack(agent.recv()).door
            if door is not None:
                return door
    finally:
        context.destroy(linger=0)


@contextlib.contextmanager
def cluster(nodes: int, ranks: int) -> Iterator[list[Running]]:
    """Start the nodes and have their hubs meet."""
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(running(nodes * ranks, job_id=f"node{node}", first=node * ranks, count=ranks))
            for node in range(nodes)
        ]
        doors = tuple(tell(node, job, nodes, ()) for node, job in enumerate(jobs))
        for node, job in reversed(list(enumerate(jobs))):
            tell(node, job, nodes, doors)
        try:
            yield jobs
        finally:
            # They also watch this very process, which has told them of each other.
            for job in jobs:
                for process in job.processes:
                    process.kill()
                end_hub(job.hub)


def measure(jobs: list[Running], place: int, segments: int, seconds: float) -> str:
    """Return one line of the table: what the hubs cost while node ``place`` is watched."""
    watcher = Watcher(jobs[place].directory)
    watcher.warm_up(jobs[0].job.ranks)
    caught_up(watcher)
    lost = watcher.source.link().lost
    cpu: dict[int, list[float]] = {job.hub: [] for job in jobs}
    latencies: list[float] = []
    for _ in range(segments):
        before, began = {hub: cpu_seconds(hub) for hub in cpu}, time.monotonic()
        latencies += watcher.follow(seconds, at_once=True)
        for hub, spent in cpu.items():
            spent.append(100 * (cpu_seconds(hub) - before[hub]) / (time.monotonic() - began))
    link = watcher.source.link()
    watcher.source.close()
    first, watched = cpu.pop(jobs[0].hub), cpu.pop(jobs[place].hub, None)
    others = [share for spent in cpu.values() for share in spent]
    memory = psutil.Process(jobs[place].hub).memory_info().rss / 2**20
    middle = " / ".join(spread(part) if part else "-" for part in (first, watched, others))
    way = f"{1e3 * statistics.median(latencies):.0f} / {1e3 * statistics.quantiles(latencies, n=100)[98]:.0f}"
    missed = max(watcher.gaps, link.lost - lost)
    return f"{place:>7}  {middle:>58}{memory:>9.0f}{watcher.samples:>9}{missed:>8}{way:>14}"


def caught_up(watcher: Watcher) -> None:
    """Take what there is to catch up with, and begin to count gaps."""
    limit = time.monotonic() + 90
    while statistics.quantiles(watcher.follow(2.0, at_once=True), n=10)[8] > 1.0:
        if time.monotonic() > limit:
            raise RuntimeError("this machine is too busy: the messages come ever later")
    watcher.gaps = watcher.samples = 0


def spread(values: list[float]) -> str:
    """Write median and range."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} .. {max(values):.1f})"


def many(nodes: int, each: int, segments: int, seconds: float) -> str:
    """Return one line of the table: what the first node's hub costs, the others' doors in one process."""
    ranks = nodes * each
    with loaded(ranks, count=each) as job, contextlib.ExitStack() as stack:
        order = {"ranks": ranks, "each": each, "first": 1, "count": nodes - 1}
        command = [sys.executable, hub_doors.__file__, json.dumps(order)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(child.wait)
        stack.callback(child.kill)
        assert child.stdin is not None
        assert child.stdout is not None
        doors = msgspec.json.decode(child.stdout.readline(), type=tuple[Door, ...])
        child.stdin.write(tell(0, job, nodes, ()).key + "\n")
        child.stdin.flush()
        if child.stdout.readline().strip() != "ready":
            raise RuntimeError("the other nodes' doors did not open")
        tell(0, job, nodes, doors)
        began = time.monotonic()
        watcher = Watcher(job.directory)
        watcher.warm_up(ranks)
        ready = time.monotonic() - began - 2.0
        caught_up(watcher)
        lost = watcher.source.link().lost
        cpu, latencies = [], []
        for _ in range(segments):
            before, at = cpu_seconds(job.hub), time.monotonic()
            latencies += watcher.follow(seconds, at_once=False)
            cpu.append(100 * (cpu_seconds(job.hub) - before) / (time.monotonic() - at))
        hub, link = psutil.Process(job.hub), watcher.source.link()
        watcher.source.close()
        missed = max(watcher.gaps, link.lost - lost) + link.bad
        return (
            f"{nodes:>6}{ranks:>7}{usual_spread(cpu, '{:.1f}'):>22}{hub.memory_info().rss / 2**20:>6.0f}"
            f"{hub.num_fds():>7}{hub.num_threads():>9}{ready:>9.1f}{watcher.samples:>9}{missed:>8}{way(latencies):>15}"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["real", "many"])
    parser.add_argument("--short", action="store_true", help="a try of each part in 20 s")
    options = parser.parse_args()
    heading("Hubs of a job of several nodes, 1 Hz")
    segments, seconds = (1, 2.0) if options.short else (3, 4.0)
    if "real" in options.parts:
        real(2 if options.short else 8, 8 if options.short else 64, segments, seconds)
    if "many" in options.parts:
        print(
            f"\n{'':>13}{'CPU of the first hub':>22}{'RSS':>6}{'':>16}{'all told':>9}{'seen by':>9}{'':>8}"
            f"{'way, ms:':>15}"
        )
        print(
            f"{'nodes':>6}{'ranks':>7}{'% of a core':>22}{'MiB':>6}{'files':>7}{'threads':>9}{'after, s':>9}"
            f"{'viewer':>9}{'missed':>8}{'median / p99':>15}"
        )
        for nodes in (16,) if options.short else (64, 128, 512):
            with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
                places(folder)
                print(many(nodes, 8, segments, seconds), flush=True)


def real(nodes: int, ranks: int, segments: int, seconds: float) -> None:
    """Print the table of nodes that each have a hub process."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        places(folder)
        with cluster(nodes, ranks) as jobs:
            print(f"{nodes} nodes, {ranks} ranks each")
            print(f"{'':>9}{'hub CPU, % of a core':>58}{'watched':>9}{'seen by':>9}")
            print(
                f"{'watched':>7}  {'first node / watched node / any other':>58}{'RSS MiB':>9}{'viewer':>9}{'missed':>8}"
                f"{'way, ms':>14}"
            )
            for place in (0, nodes - 1):
                print(measure(jobs, place, segments, seconds), flush=True)


if __name__ == "__main__":
    main()
