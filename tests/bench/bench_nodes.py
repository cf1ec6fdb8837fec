"""What the hubs of a job of several nodes cost: run ``python tests/bench/bench_nodes.py [NODES RANKS_PER_NODE]``.

Every node has a real hub, whose simulated ranks publish at 1 Hz; the hubs' doors are told by hand, as the agents do
through the job's store. One viewer follows the first node's hub and checks that each rank's samples come without a gap.
Then another one follows the last node's hub, which so has to gather too. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import zmq

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.bench_hub import Watcher
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
        yield jobs


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="?", type=int, default=8)
    parser.add_argument("ranks", nargs="?", type=int, default=64, help="per node")
    parser.add_argument("--segments", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one segment")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["RANKTOP_RUN_DIR"] = f"{folder}/run"
        os.environ["RANKTOP_STATE_DIR"] = f"{folder}/state"
        with cluster(options.nodes, options.ranks) as jobs:
            print(f"{options.nodes} nodes, {options.ranks} ranks each, at 1 Hz; load {os.getloadavg()[0]:.1f}")
            print(f"{'':>9}{'hub CPU, % of a core':>58}{'watched':>9}{'seen by':>9}")
            print(
                f"{'watched':>7}  {'first node / watched node / any other':>58}{'RSS MiB':>9}{'viewer':>9}{'missed':>8}"
                f"{'way, ms':>14}"
            )
            for place in (0, options.nodes - 1):
                print(measure(jobs, place, options.segments, options.seconds), flush=True)


if __name__ == "__main__":
    main()
