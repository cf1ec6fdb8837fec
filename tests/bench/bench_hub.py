"""What the hub costs and loses: run ``python tests/bench/bench_hub.py [8 64 512 1024 4096]``.

Simulated ranks publish at 1 Hz through real publishers and sockets; a viewer drains ten times a second, as the
dashboard does, and checks that every rank's messages arrive without a gap. Then the viewer reads at once, which tells
what the way itself takes. Lost to the hub is what a rank dropped or never had confirmed; a viewer on a machine
that is too busy may fall behind what the hub still holds, and then misses some. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.simulated import Running, running
from bench.terminal import cpu_seconds

from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Received
from ranktop.wire.schema import Sample

DRAIN_EVERY = 0.1


class Watcher:
    """A viewer that counts gaps and takes the time each sample was on its way."""

    def __init__(self, directory: Path) -> None:
        self.source = HubSource(directory)
        self.gaps = 0
        self.samples = 0
        self.latencies: list[float] = []
        self._seq: dict[int, int] = {}

    def take(self) -> None:
        """Drain, and note what it shows."""
        items = self.source.drain()
        now = time.monotonic()
        for item in items:
            if not isinstance(item, Received) or item.header.kind == "history":
                continue
            rank, seq = item.header.rank, item.header.seq
            # A snapshot gives the last card after the samples that were sent since.
            if rank in self._seq and seq > self._seq[rank] + 1:
                self.gaps += seq - self._seq[rank] - 1
            self._seq[rank] = max(seq, self._seq.get(rank, -1))
            if isinstance(item.body, Sample):
                self.samples += 1
                self.latencies.append(now - item.body.uptime)

    def follow(self, seconds: float, at_once: bool) -> list[float]:
        """Watch for some time; returns the latencies."""
        self.latencies = []
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0:
            if at_once:
                self.source.poll(min(left, 0.1))
            else:
                time.sleep(DRAIN_EVERY)
            self.take()
        return self.latencies

    def warm_up(self, ranks: int) -> None:
        """Take the snapshot and wait until every rank has been heard of."""
        limit = time.monotonic() + 60
        while len(self._seq) < ranks:
            if time.monotonic() > limit:
                raise RuntimeError(f"only {len(self._seq)} of {ranks} ranks were heard of")
            self.source.poll(0.1)
            self.take()
        self.follow(2.0, at_once=False)
        self.gaps = self.samples = 0


def measure(job: Running, segments: int, seconds: float) -> str:
    """Return one line of the table."""
    hub = psutil.Process(job.hub)
    watcher = Watcher(job.directory)
    watcher.warm_up(job.job.ranks)
    cpu: list[float] = []
    latencies: list[float] = []
    for _ in range(segments):
        before, began = cpu_seconds(job.hub), time.monotonic()
        latencies += watcher.follow(seconds, at_once=False)
        cpu.append(100 * (cpu_seconds(job.hub) - before) / (time.monotonic() - began))
    direct = watcher.follow(seconds, at_once=True)
    resident, descriptors, threads = hub.memory_info().rss / 2**20, hub.num_fds(), hub.num_threads()
    totals = job.stop()
    watcher.follow(1.0, at_once=False)
    link = watcher.source.link()
    watcher.source.close()
    lost = totals["dropped"] + totals["unconfirmed"]
    missed = max(watcher.gaps, link.lost) + link.bad
    middle = f"{statistics.median(cpu):.1f} ({min(cpu):.1f} .. {max(cpu):.1f})"
    return (
        f"{job.job.ranks:>6}{middle:>24}{resident:>9.0f}{descriptors:>7}{threads:>9}{watcher.samples:>9}{lost:>6}"
        f"{missed:>8} {way(latencies):>17} {way(direct):>17}"
    )


def way(latencies: list[float]) -> str:
    """Write median and 99th percentile in milliseconds."""
    if len(latencies) < 2:
        return "-"
    return f"{1e3 * statistics.median(latencies):.1f} / {1e3 * statistics.quantiles(latencies, n=100)[98]:.1f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", nargs="*", type=int, default=[8, 64, 512, 1024, 4096])
    parser.add_argument("--segments", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one segment")
    options = parser.parse_args()
    print(f"{'':>55}{'seen by':>9}{'lost':>6}{'missed':>8}{'on the way, ms: median / p99':>36}")
    print(
        f"{'ranks':>6}{'hub CPU, % of a core':>24}{'RSS MiB':>9}{'files':>7}{'threads':>9}{'viewer':>9}{'hub':>6}"
        f"{'viewer':>8}{'drained at 10 Hz':>18}{'read at once':>18}"
    )
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            os.environ["RANKTOP_RUN_DIR"] = f"{folder}/run"
            with running(ranks, processes=2 if ranks > 1024 else 1) as job:
                print(measure(job, options.segments, options.seconds), flush=True)


if __name__ == "__main__":
    main()
