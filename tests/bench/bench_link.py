"""What keys cost over a slow link: run ``python tests/bench/bench_link.py [--rate 10000] [--ranks 8 64 1024]``.

The dashboard runs in a pty behind a link of so many bytes a second, 100 ms each way, with 64 KiB of buffers, and an
emulator (pyte) at its far end. For each key: bytes, pieces, and the seconds from the key to the first sign of an answer
and to the whole picture, as seen at the far end. Then the same keys without a link, to compare the last pictures. At
the end a moving job's bytes a second. Prints tables; asserts nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measured import heading
from slow_link import Cell, ThrottledPty

SCRIPT = Path(__file__).parents[1] / "tui" / "link_dashboard.py"

SIZES = ((80, 24), (120, 40), (200, 50))

KEYS = (
    ("one rank down", "j"), ("30 ranks down, held", "j" * 30), ("all ranks (i)", "i"), ("back", "i"),
    ("help (?)", "?"), ("back", "?"), ("device (d)", "d"), ("back", "d"), ("page down", "\x1b[6~"),
    ("end of the list", "\x1b[F"), ("sort (o)", "o"),
)  # fmt: skip

STILL = 1.0
"""Seconds without a byte after which a picture is whole."""


def start(ranks: int, size: tuple[int, int], rate: float, delay: float, seconds: str) -> ThrottledPty:
    """Open the dashboard at the far end of a link."""
    command = [sys.executable, str(SCRIPT), str(ranks), seconds]
    return ThrottledPty(command, size, rate=rate, delay=delay)


def quiet(terminal: ThrottledPty, least: float = STILL) -> tuple[float, float]:
    """Wait until nothing more comes; returns the seconds to the first and to the last byte."""
    began = last = time.monotonic()
    first: float | None = None
    seen = terminal.emulator.bytes
    while time.monotonic() - last < least:
        if terminal.emulator.bytes != seen:
            seen, last = terminal.emulator.bytes, time.monotonic()
            first = first or last
        time.sleep(0.002)
    return (first or began) - began, last - began


def press_all(terminal: ThrottledPty, ranks: int) -> tuple[list[tuple[str, int, int, float, float]], list[list[Cell]]]:
    """Press every key and wait for its picture; returns what each cost and the last picture."""
    terminal.until(lambda: "llama8b" in terminal.text(), 60)
    quiet(terminal, 4.0 + ranks / 300)
    found = []
    for name, keys in KEYS:
        sent, pieces = terminal.emulator.bytes, terminal.emulator.questions
        terminal.press(keys)
        first, last = quiet(terminal)
        found.append((name, terminal.emulator.bytes - sent, terminal.emulator.questions - pieces, first, last))
    return found, terminal.cells()


def measure(ranks: int, size: tuple[int, int], rate: float, delay: float) -> None:
    """Print the table of one job in one size."""
    slow = start(ranks, size, rate, delay, "0")
    try:
        rows, picture = press_all(slow, ranks)
        most = slow.link.most
    finally:
        slow.close()
    fast = start(ranks, size, 1e9, 0.0, "0")
    try:
        _, same = press_all(fast, ranks)
    finally:
        fast.close()
    verdict = "same picture" if same == picture else "ANOTHER PICTURE"
    print(f"\n{ranks} ranks, {size[0]}x{size[1]}: {verdict} at the end, at most {most} bytes waited in the link")
    print(f"{'key':<22}{'bytes':>8}{'pieces':>8}{'first sign, s':>15}{'whole, s':>10}")
    for name, sent, pieces, first, last in rows:
        print(f"{name:<22}{sent:>8}{pieces:>8}{first:>15.2f}{last:>10.2f}")
    firsts, lasts = [row[3] for row in rows if row[1]], [row[4] for row in rows if row[1]]
    median, worst = (f"{name:<22}{'':>16}" for name in ("median", "worst"))
    print(f"{median}{statistics.median(firsts):>15.2f}{statistics.median(lasts):>10.2f}")
    print(f"{worst}{max(firsts):>15.2f}{max(lasts):>10.2f}", flush=True)


def moving(ranks: int, size: tuple[int, int], link: tuple[float, float], seconds: float) -> None:
    """Print the bytes a second of a job that goes on."""
    terminal = start(ranks, size, *link, "inf")
    try:
        terminal.until(lambda: "llama8b" in terminal.text(), 60)
        time.sleep(6.0)
        sent = terminal.emulator.bytes
        time.sleep(seconds)
        rate = (terminal.emulator.bytes - sent) / seconds
        print(f"{ranks} ranks, {size[0]}x{size[1]}: {rate:.0f} bytes/s", flush=True)
    finally:
        terminal.close()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=10_000, help="bytes a second")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds each way")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 1024])
    parser.add_argument("--seconds", type=float, default=10.0, help="of the moving job")
    parser.add_argument("--short", action="store_true", help="a smoke run, whose numbers mean nothing")
    options = parser.parse_args()
    ranks_and_sizes = [(8, SIZES[0])] if options.short else [(ranks, size) for ranks in options.ranks for size in SIZES]
    heading("A slow link")
    print(f"{options.rate:.0f} bytes/s, {2 * options.delay:.1f} s there and back")
    for ranks, size in ranks_and_sizes:
        measure(ranks, size, options.rate, options.delay)
    print("\na job that goes on, 1 Hz")
    for ranks, size in ranks_and_sizes:
        moving(ranks, size, (options.rate, options.delay), 2.0 if options.short else options.seconds)


if __name__ == "__main__":
    main()
