"""What ``ranktop export --prometheus`` costs: run ``python tests/bench/bench_export.py [ranks ...] [--short]``.

The exporter is a process of its own on a job that publishes at 1 Hz through real publishers to a real hub. Its
CPU is read from its own ``process_cpu_seconds_total``, between two scrapes half a minute apart, and
over scrapes one after the other. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measured import heading, spread
from bench.simulated import running

ADDRESS = "127.0.0.1:9463"
ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5"
"""As a server of version 2.42 asks."""

SCRAPES = 8
IDLE_SECONDS = 30.0
ENOUGH = 0.5
"""Share of the ranks whose samples come in time, from which on it is worth measuring: fewer on a busy machine."""

HEAD = ("ranks", "fresh", "series", "MB", "scrape s, median (range)", "CPU s a scrape", "CPU between, %", "memory MB")


def scrape() -> tuple[float, str]:
    """Seconds that one took, and what it gave."""
    request = urllib.request.Request(f"http://{ADDRESS}/metrics", headers={"Accept": ACCEPT})
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=30) as answer:
        text: str = answer.read().decode()
    return time.perf_counter() - began, text


def number(text: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def up(text: str) -> int:
    """Ranks that are told of as speaking."""
    return len(re.findall(r"^ranktop_rank_up\{[^}]*\} 1\.0$", text, re.MULTILINE))


def measure(ranks: int, idle: float = IDLE_SECONDS, scrapes: int = SCRAPES) -> tuple[str, ...]:
    """One row of the table; ``idle``: seconds between the two scrapes of which the first column of CPU tells."""
    with running(ranks):
        command = [sys.executable, "-m", "ranktop.tui.cli", "export", "--prometheus", "--listen", ADDRESS]
        exporter = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            deadline, text = time.monotonic() + 90, ""
            while True:
                try:
                    _, text = scrape()
                    if up(text) >= ENOUGH * ranks and "ranktop_memory_expected_bytes" in text:
                        break
                except OSError:
                    pass
                if time.monotonic() > deadline:
                    raise SystemExit(f"{up(text)} of {ranks} ranks were told of within 90 s: the machine is too busy")
                time.sleep(1.0)
            before = number(text, "process_cpu_seconds_total"), time.monotonic()
            time.sleep(idle)
            _, text = scrape()
            spent, since = number(text, "process_cpu_seconds_total") - before[0], time.monotonic() - before[1]
            first = number(text, "process_cpu_seconds_total")
            began = time.monotonic()
            taken = [scrape() for _ in range(scrapes)]
            text = taken[-1][1]
            scraped = number(text, "process_cpu_seconds_total") - first
        finally:
            exporter.terminate()
            exporter.wait()
    seconds = [one for one, _ in taken]
    # What following costs meanwhile is no part of a scrape.
    each = max(0.0, scraped - spent / since * (time.monotonic() - began)) / scrapes
    series = sum(1 for line in text.splitlines() if not line.startswith("#"))
    return (
        str(ranks), str(up(text)), str(series), f"{len(text) / 1e6:.2f}", spread(seconds), f"{each:.3f}",
        f"{100 * spent / since:.1f}", f"{number(text, 'process_resident_memory_bytes') / 1e6:.0f}",
    )  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", nargs="*", type=int, help="sizes of the job; 8, 64 and 1024 by default")
    parser.add_argument("--short", action="store_true", help="see that it works, in some seconds")
    options = parser.parse_args()
    heading("The Prometheus exporter")
    print("\n" + "  ".join(HEAD))
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["RANKTOP_RUN_DIR"], os.environ["RANKTOP_STATE_DIR"] = f"{folder}/run", f"{folder}/state"
        for ranks in options.ranks or ([8] if options.short else [8, 64, 1024]):
            row = measure(ranks, 3.0, 2) if options.short else measure(ranks)
            print("  ".join(f"{cell:>{len(name)}}" for cell, name in zip(row, HEAD, strict=True)), flush=True)


if __name__ == "__main__":
    main()
