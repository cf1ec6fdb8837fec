"""What the hub costs and loses: run ``python tests/bench/bench_hub.py [bytes small large memory] [--short]``.

Ranks with messages made beforehand publish through real publishers and sockets to a real hub that records, as jobs do;
a viewer drains ten times a second, as the dashboard does, and checks that every rank's messages arrive without a gap.
Then the viewer reads at once, which tells what the way itself takes. Lost to the hub is what a rank dropped or never
had confirmed; a viewer on a machine that is too busy may fall behind what the hub still holds, and then misses some.
Part ``bytes`` counts at the sockets what one rank says in a second, ``memory`` what hubs grow to. Asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import hub_bytes, hub_memory
from bench.hub_load import loaded
from bench.measured import heading, spread
from bench.simulated import Running
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
        self.messages = 0
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
            self.messages += 1
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

    def warm_up(self, ranks: int, seconds: float = 2.0) -> None:
        """Take the snapshot, wait until every rank has been heard of, and some seconds more."""
        limit = time.monotonic() + 60
        while len(self._seq) < ranks:
            if time.monotonic() > limit:
                raise RuntimeError(f"only {len(self._seq)} of {ranks} ranks were heard of")
            self.source.poll(0.1)
            self.take()
        self.follow(seconds, at_once=False)
        self.gaps = self.samples = self.messages = 0


@dataclass(frozen=True)
class Result:
    """What one hub was seen to do."""

    ranks: int
    interval: float
    rate: float
    """Messages a second: samples, and what devices say more seldom."""
    cpu: float
    """Median, percent of a core."""
    resident: float


def measure(job: Running, interval: float, segments: int, seconds: float, note: str) -> Result:
    """Print one line of the table."""
    hub = psutil.Process(job.hub)
    watcher = Watcher(job.directory)
    # At first a recorder packs every rank's card: that is over soon.
    watcher.warm_up(job.job.ranks, 2.0 + job.job.ranks / 1024)
    cpu: list[float] = []
    latencies: list[float] = []
    began, watcher.messages = time.monotonic(), 0
    for _ in range(segments):
        before, at = cpu_seconds(job.hub), time.monotonic()
        latencies += watcher.follow(seconds, at_once=False)
        cpu.append(100 * (cpu_seconds(job.hub) - before) / (time.monotonic() - at))
    rate = watcher.messages / (time.monotonic() - began)
    direct = watcher.follow(seconds, at_once=True)
    resident, descriptors, threads = hub.memory_info().rss / 2**20, hub.num_fds(), hub.num_threads()
    totals = job.stop()
    watcher.follow(1.0, at_once=False)
    link = watcher.source.link()
    watcher.source.close()
    lost = totals["dropped"] + totals["unconfirmed"]
    missed = max(watcher.gaps, link.lost) + link.bad
    ranks = job.job.ranks
    per_message = 1e4 * statistics.median(cpu) / rate
    print(
        f"{ranks:>5}{f'{1 / interval:g}':>4}{spread(cpu, '{:.1f}'):>21}{per_message:>6.0f}{resident:>6.0f}"
        f"{descriptors:>6}{threads:>4}{watcher.samples:>8}{lost:>6}{missed:>8}{way(latencies):>15}{way(direct):>15}"
        f"  {note}",
        flush=True,
    )
    return Result(ranks, interval, rate, statistics.median(cpu), resident)


def way(latencies: list[float]) -> str:
    """Write median and 99th percentile in milliseconds."""
    if len(latencies) < 2:
        return "–"
    return f"{1e3 * statistics.median(latencies):.0f} / {1e3 * statistics.quantiles(latencies, n=100)[98]:.0f}"


def run(cases: list[tuple[int, float, bool]], segments: int, seconds: float) -> list[Result]:
    """Print the table of some (ranks, interval, whether it records)."""
    print(
        f"\n{'':>26}{'us a':>10}{'RSS':>6}{'':>11}{'seen by':>7}{'lost':>6}{'missed':>8}{'way, ms: median / p99':>29}"
    )
    print(
        f"{'ranks':>5}{'Hz':>4}{'hub CPU, % of a core':>21}{'msg':>6}{'MiB':>6}{'files':>6}{'thr':>4}{'viewer':>8}"
        f"{'hub':>6}{'viewer':>8}{'at 10 Hz':>15}{'at once':>15}"
    )
    results = []
    for ranks, interval, records in cases:
        os.environ["RANKTOP_RECORD"] = "on" if records else "off"
        with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            places(folder)
            # Each on this node with a process of its own up to 64 ranks; above, they stand for other nodes'.
            with loaded(ranks, interval, own_processes=ranks <= 64) as job:
                note = "" if records else "no recording"
                results.append(measure(job, interval, segments, seconds, note))
    return results


def places(folder: str) -> None:
    """Have everything kept in a folder that goes."""
    for name in ("run", "state"):
        os.environ[f"RANKTOP_{name.upper()}_DIR"] = f"{folder}/{name}"
        Path(folder, name).mkdir(mode=0o700)


def fit(results: list[Result]) -> None:
    """Print straight lines through CPU and memory of the sizes at 1 Hz, and how far from them they are."""
    usual = {result.ranks: result for result in results if result.interval == 1.0}
    if len(usual) < 3:
        return
    ranks = [float(number) for number in usual]
    for name, unit, values in (
        ("CPU", "% of a core", [result.cpu for result in usual.values()]),
        ("RSS", "MiB", [result.resident for result in usual.values()]),
    ):
        slope, start = statistics.linear_regression(ranks, values)
        off = max(abs(value - start - slope * number) for number, value in zip(ranks, values, strict=True))
        print(f"{name}: {start:.1f} {unit} + {1000 * slope:.2f} per 1000 ranks; the farthest from it by {off:.1f}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["bytes", "small", "large", "memory"])
    parser.add_argument("--short", action="store_true", help="a try of each part in 20 s")
    options = parser.parse_args()
    heading("Hub: CPU, memory, bytes, loss, latency")
    short = options.short
    results: list[Result] = []
    segments, seconds = (1, 1.0) if short else (3, 3.0)
    if "bytes" in options.parts:
        with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            places(folder)
            hub_bytes.table(2.0 if short else 10.0, real_jobs=not short)
    if "small" in options.parts:
        cases = [(8, 1.0, True), (64, 1.0, True), (64, 0.1, True), (512, 1.0, True)]
        results += run(cases[:1] if short else cases, segments, seconds)
    if "large" in options.parts:
        results += run(
            [(1024, 1.0, True), (4096, 1.0, True), (4096, 1.0, False)][: 1 if short else 3], segments, seconds
        )
    fit([result for place, result in enumerate(results) if place != len(results) - 1 or short])
    if "memory" in options.parts:
        hub_memory.table((64,) if short else (64, 1024, 4096))


if __name__ == "__main__":
    main()
