"""Whether hours of watching take ever more memory: run ``python tests/bench/bench_hours.py [8] [64] [1024] [real]``.

``8``, ``64``, ``1024``: two hours of a job on a clock of their own, as fast as it goes: encoded messages through the
receiver into the session, a snapshot with its findings and a drawn picture of 120x40 for each round. Eight ranks speak
every second, 64 every 4 s and 1024 every 15 s; half an hour of history comes with them, a point a second or, of 1024,
one in 3.9 s, so that every ring is full after 130 samples. Resident memory less that of the process before (what makes
the messages included), and the blocks of Python's allocator. ``real``: the dashboard itself in a pseudo-terminal on 64
ranks that speak ten times a second, by the machine's clock. Prints tables; asserts nothing. Each part is a process of
its own.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from bench.measured import heading
from bench.simulated import running
from bench.stream import VARIANTS, Stream, receiver, taken
from bench.terminal import Terminal

from ranktop.tui.garbage import collect_seldom
from ranktop.tui.screens.habits import habits
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Session
from ranktop.tui.view.frame import frame
from ranktop.tui.view.text import UNICODE

HOURS = 2.0
INTERVALS = {8: 1.0, 64: 4.0, 1024: 15.0}
"""Ranks -> seconds between two of a rank's samples."""

MINUTES = (10, 30, 60, 90, 120)
COMMAND = Path(sys.executable).with_name("ranktop")


def resident() -> float:
    """Return this process's resident memory, MiB."""
    return float(psutil.Process().memory_info().rss / 2**20)


def watch(ranks: int, hours: float) -> None:
    """Print a line of memory over the time of a job."""
    stream = Stream(ranks, INTERVALS[ranks])
    for rank in range(ranks):
        for at in range(VARIANTS):
            stream.sample(rank, at)
    gc.collect()
    gc.freeze()
    collect_seldom(ranks)
    empty, blocks = resident(), sys.getallocatedblocks()
    source, options = receiver(stream.clock), habits(UNICODE)
    session = Session(stream.clock, budget_slice=0.03, findings_every=1.0, keep_views=True)
    session.feed(taken(source, stream.start(1800.0)))
    began, due = stream.clock.now, [hours / HOURS * minute for minute in MINUTES]
    cells: list[str] = []
    while due:
        for answer in stream.parts(1 if ranks <= 64 else 8):
            session.feed(taken(source, [answer]))
        frame(session.snapshot(), Link(state="live"), options, (120, 40), "", stream.clock.now)
        if stream.clock.now - began >= 60 * due[0]:
            due.pop(0)
            cells.append(f"{resident() - empty:.1f} / {(sys.getallocatedblocks() - blocks) / 1000:.0f}")
    heard = f"{ranks} ranks, {stream.rounds} samples each"
    print(f"{heard:<30}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


def real(seconds: float) -> None:
    """Print resident memory of the dashboard on 64 ranks at 10 Hz."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["RANKTOP_RUN_DIR"], os.environ["RANKTOP_STATE_DIR"] = f"{folder}/run", f"{folder}/state"
        with running(64, interval=0.1) as job:
            command = [str(COMMAND)] if COMMAND.exists() else [sys.executable, "-m", "ranktop.tui.cli"]
            terminal = Terminal(command, (120, 40))
            try:
                terminal.appeared(job.job.job.name)
                began, cpu, cells = time.monotonic(), terminal.cpu(), []
                for turn in range(1, 6):
                    time.sleep(max(0.0, began + turn * seconds / 5 - time.monotonic()))
                    cells.append(f"{terminal.resident() / 2**20:.1f} at {time.monotonic() - began:.0f} s")
                used = 100 * (terminal.cpu() - cpu) / (time.monotonic() - began)
            finally:
                terminal.close()
    print(f"\nthe dashboard itself, 64 ranks at 10 Hz, {used:.1f} % of a core; RSS MiB: {', '.join(cells)}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="8, 64, 1024, real; all by default")
    parser.add_argument("--short", action="store_true", help="see that it works, in some seconds")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    wanted = options.what or [*map(str, INTERVALS), "real"]
    if options.one:
        watch(int(wanted[0]), 0.02 * HOURS if options.short else HOURS)
        return
    heading("Two hours of watching")
    minutes = "".join(f"{f'{minute} min':>16}" for minute in MINUTES)
    print(f"\n{'MiB / 1000 blocks more after':<30}{minutes}", flush=True)
    for name in wanted:
        if name == "real":
            real(4.0 if options.short else 100.0)
        else:
            flags = ["--short"] if options.short else []
            subprocess.run([sys.executable, __file__, name, "--one", *flags], check=True)


if __name__ == "__main__":
    main()
