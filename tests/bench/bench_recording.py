"""What a recording costs and how large it grows.

Run ``python tests/bench/bench_recording.py [--hours 24] [--ranks 64]``. Simulated ranks speak once a second; time is
the bench's own, so that a day takes minutes. The messages are made once for ten minutes and said again. Prints CPU and
bytes of a sample by number of ranks, then a long job within its limit, and what reading it costs. Asserts nothing.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measured import heading
from bench.simulated import DEVICE_EVERY, SimulatedJob

from ranktop.wire.codec import encode_body, encode_header
from ranktop.wire.recording import Recording
from ranktop.wire.recording_writer import RecordingWriter
from ranktop.wire.recordings import file_bytes
from ranktop.wire.schema import Header, Item, Job

MIB = 2**20
WALL = 1_700_000_000.0


class Tape:
    """Messages of a simulated job, made for some seconds and repeated."""

    def __init__(self, ranks: int, seconds: int) -> None:
        self.job: Job = SimulatedJob(ranks).job
        simulated = SimulatedJob(ranks)
        self._number = 0
        self.cards = [
            (rank, "card", encode_body(simulated.card(rank, 100 + rank))) for rank in range(ranks)
        ]  # fmt: skip
        self._seconds: list[list[tuple[int, str, bytes]]] = []
        for second in range(1, seconds + 1):
            said: list[tuple[int, str, bytes]] = []
            for rank in range(ranks):
                elapsed = second + rank / ranks
                said.append((rank, "sample", encode_body(simulated.sample(rank, elapsed, elapsed - 1, elapsed))))
                if (second + rank) % DEVICE_EVERY == 0:
                    said.append((rank, "device", encode_body(simulated.detail(rank, elapsed))))
            self._seconds.append(said)

    def _items(self, second: int, said: list[tuple[int, str, bytes]]) -> Iterator[Item]:
        for place, (rank, kind, body) in enumerate(said):
            header = encode_header(Header(kind, rank, 100 + rank, 0, second))
            yield Item(self._number, second + place / len(said), header, body)
            self._number += 1

    def seconds(self) -> Iterator[tuple[int, list[Item]]]:
        """Return the messages of one second after the other, without end."""
        yield 0, list(self._items(0, self.cards))
        for second, said in enumerate(itertools.cycle(self._seconds), 1):
            yield second, list(self._items(second, said))


def cpu() -> float:
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def record(folder: Path, tape: Tape, seconds: int, limit: int, told: bool = False) -> tuple[Path, float, float]:
    """Record for some seconds of the job's time; returns the file, CPU seconds, and the largest size on the way."""
    path = folder / f"bench-{len(tape.cards)}-{seconds}.ranktop"
    writer = RecordingWriter.create(path, tape.job, hub="hub", began=0.0, wall=WALL, limit=limit)
    spent, largest = 0.0, 0.0
    for second, items in tape.seconds():
        before = cpu()
        for item in items:
            writer.add(item)
        writer.commit(second + 1.0, WALL + second + 1)
        spent += cpu() - before
        if second % 60 == 0:
            largest = max(largest, file_bytes(path))
            if told and second % 3600 == 0:
                print(f"  {second // 3600:>3} h: {file_bytes(path) / MIB:7.1f} MiB", flush=True)
        if second >= seconds:
            break
    before = cpu()
    writer.finish(seconds + 1.0, WALL + seconds + 1)
    return path, spent + cpu() - before, largest


def costs(folder: Path, numbers: list[int]) -> None:
    """Print CPU and bytes by number of ranks."""
    print(f"{'ranks':>6}{'recorded':>10}{'CPU/sample':>13}{'CPU at 1 Hz':>14}{'bytes/sample':>14}{'MiB/rank-hour':>15}")
    for ranks in numbers:
        seconds = 120 if ranks > 1000 else 300
        tape = Tape(ranks, 60 if ranks > 1000 else 120)
        path, spent, _ = record(folder, tape, seconds, 2**40)
        with Recording.open(path) as recording:
            kept = recording.rows("SELECT sum(count) FROM chunks WHERE kind = 'samples'")[0][0]
            packed = recording.rows("SELECT sum(length(data)) FROM chunks")[0][0]
        said = ranks * seconds
        print(
            f"{ranks:>6}{100 * kept / (1.1 * said):>9.0f}%{1e6 * spent / said:>10.0f} us{100 * spent / seconds:>13.2f}%"
            f"{packed / kept:>14.0f}{packed / ranks / seconds * 3600 / MIB:>15.2f}",
            flush=True,
        )
        path.unlink()


def long(folder: Path, ranks: int, hours: float, limit: int) -> None:
    """Record a long job, print what is left of it, and how long it takes to read."""
    print(f"\n{ranks} ranks, {hours:g} h at 1 Hz, limit {limit / MIB:.0f} MiB")
    began = time.perf_counter()
    path, spent, largest = record(folder, Tape(ranks, 600), int(hours * 3600), limit, told=True)
    print(f"largest {largest / MIB:.1f} MiB, finished {file_bytes(path) / MIB:.1f} MiB")
    print(f"CPU {spent:.0f} s ({spent / hours / 36:.2f} % of a core), made in {time.perf_counter() - began:.0f} s")
    with Recording.open(path) as recording:
        print(f"{'':>4}{'from, h':>9}{'to, h':>9}{'a sample every, s':>20}")
        for part in recording.stretches():
            print(f"{'':>4}{part.first / 3600:>9.2f}{part.last / 3600:>9.2f}{part.step:>20g}")
        for share in (0.02, 0.3, 0.6, 0.99):
            t = recording.begin + share * (recording.end - recording.begin)
            for again in ("first", "again"):
                before = time.perf_counter()
                count = sum(1 for _ in recording.state_at(t))
                print(f"    state at {t / 3600:5.2f} h, {again}: {count} items in {time.perf_counter() - before:.2f} s")
    openings = []
    for _ in range(5):
        before = time.perf_counter()
        Recording.open(path).close()
        openings.append(time.perf_counter() - before)
    print(f"    opening: {1e3 * sorted(openings)[2]:.1f} ms")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--limit", type=int, default=512, help="MiB")
    parser.add_argument("--numbers", type=int, nargs="*", default=[2, 8, 64, 256, 1024, 4096])
    parser.add_argument("--short", action="store_true", help="a smoke run, whose numbers mean nothing")
    options = parser.parse_args()
    if options.short:
        options.hours, options.numbers = 0.05, [2, 8]
    heading("Recording")
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as folder:
        if options.numbers:
            costs(Path(folder), options.numbers)
        if options.hours:
            long(Path(folder), options.ranks, options.hours, options.limit * MIB)


if __name__ == "__main__":
    main()
