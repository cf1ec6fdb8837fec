"""From a key to its picture: run ``python tests/bench/bench_keys.py [8] [64] [1024]`` (ranks; all by default).

The dashboard runs in a pseudo-terminal of 120x40 that answers as xterm does and is read at once; its job stands still,
so that all that comes belongs to the key. For each key: milliseconds from writing it to the first and to the last byte
of the changed picture, and the bytes. A moved selection, an opened screen and the way back are keys of their own.
Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measured import heading
from bench.terminal import Terminal

SCRIPT = Path(__file__).parents[1] / "tui" / "link_dashboard.py"

SIZE = (120, 40)

RANKS = (8, 64, 1024)

STILL = 0.25
"""Seconds without a byte after which a picture is whole."""

KEYS = (
    ("down", "j"), ("up", "k"), ("page down", "\x1b[6~"), ("page up", "\x1b[5~"), ("moment (m)", "m"),
    ("scale (z)", "z"), ("order (o)", "o"), ("page (tab)", "\t"), ("detail off, on (enter)", "\r"),
    ("freeze (space)", " "), ("all ranks (i)", "i"), ("back", "i"), ("strategies (s)", "s"), ("back", "\x1b"),
    ("findings (!)", "!"), ("back", "\x1b"), ("device (d)", "d"), ("back", "d"), ("help (?)", "?"), ("back", "?"),
)  # fmt: skip


def press_all(terminal: Terminal, times: int) -> list[tuple[str, list[float], list[float], list[int]]]:
    """Press every key so many times; returns its name, milliseconds to the first and to the last byte, and bytes."""
    found: list[tuple[str, list[float], list[float], list[int]]] = [(name, [], [], []) for name, _ in KEYS]
    for _ in range(times):
        for (_, keys), (_, firsts, lasts, sizes) in zip(KEYS, found, strict=True):
            before = terminal.bytes
            pressed = terminal.press(keys)
            terminal.still(STILL)
            if terminal.bytes > before:
                firsts.append(1000 * (terminal.first_after(pressed) - pressed))
                lasts.append(1000 * (terminal.last - pressed))
                sizes.append(terminal.bytes - before)
    return found


def measure(ranks: int, times: int) -> list[tuple[str, list[float], list[float], list[int]]]:
    """Return what each key cost beside so many ranks."""
    terminal = Terminal([sys.executable, str(SCRIPT), str(ranks), "0", "dark"], SIZE)
    try:
        terminal.appeared("llama8b")
        terminal.still(4.0 + ranks / 300, 40.0)
        return press_all(terminal, times)
    finally:
        terminal.close()


def show(ranks: int, found: list[tuple[str, list[float], list[float], list[int]]]) -> None:
    """Print the table of one job."""
    print(f"\n{f'{ranks} ranks, 120x40':<26}{'first byte, ms':>22}{'last byte, ms':>22}{'bytes':>10}")
    print(f"{'':<26}{'median      worst':>22}{'median      worst':>22}{'median':>10}")
    for name, firsts, lasts, sizes in found:
        if lasts:
            columns = "".join(f"{statistics.median(some):>11.0f}{max(some):>11.0f}" for some in (firsts, lasts))
            print(f"{name:<26}{columns}{statistics.median(sizes):>10.0f}")
    firsts = [value for _, some, _, _ in found for value in some]
    lasts = [value for _, _, some, _ in found for value in some]
    columns = "".join(f"{statistics.median(some):>11.0f}{max(some):>11.0f}" for some in (firsts, lasts))
    print(f"{'all keys':<26}{columns}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int, nargs="*", help="8 64 1024 by default")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="a smoke run, whose numbers mean nothing")
    options = parser.parse_args()
    heading("From a key to its picture")
    for ranks in (8,) if options.short else options.ranks or RANKS:
        show(ranks, measure(ranks, 1 if options.short else options.times))


if __name__ == "__main__":
    main()
