"""What many ranks cost the dashboard: run ``python tests/bench/bench_scale.py [64] [256] [1024] [parts] [--short]``.

``64``, ``256``, ``1024``: ``ranktop`` in a pseudo-terminal of 120x40 that answers and is read at once, on so many
simulated ranks at 1 Hz through real publishers and a real hub: CPU in its first 20 s (its start included) and later,
resident memory, CPU of a sample, and a key's first byte. ``parts``: the same work in one process without a terminal,
on a hub's answers that are made beforehand, by what it goes to. Prints tables; asserts nothing.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measured import heading, spread
from bench.simulated import running
from bench.stream import Stream, receiver, taken
from bench.terminal import Terminal

from ranktop.tui.garbage import collect_seldom
from ranktop.tui.screens.habits import habits
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Session, Snapshot
from ranktop.tui.view.frame import frame
from ranktop.tui.view.text import UNICODE

SIZE = (120, 40)
RANKS = (64, 256, 1024)
FIRST = 20.0
"""Seconds from its start in which a dashboard learns what there is."""

COMMAND = Path(sys.executable).with_name("ranktop")
HEAD = (
    f"{'120x40, 1 Hz':<14}{'first 20 s, %':>14}{'later, % of a core':>25}{'us a sample':>13}"
    f"{'RSS MiB':>9}{'a key, ms':>25}"
)
PARTS = ("decode", "session", "findings", "snapshot", "drawing")


def dashboard(ranks: int, segments: int, seconds: float, first: float) -> str:
    """Return the line of the real dashboard on so many ranks."""
    with running(ranks):
        time.sleep(2.0)
        command = [str(COMMAND)] if COMMAND.exists() else [sys.executable, "-m", "ranktop.tui.cli"]
        terminal = Terminal(command, SIZE)
        try:
            time.sleep(first)
            began = time.monotonic()
            start = 100 * terminal.cpu() / (began - terminal.started)
            later: list[float] = []
            for _ in range(segments):
                before, since = terminal.cpu(), time.monotonic()
                time.sleep(seconds)
                later.append(100 * (terminal.cpu() - before) / (time.monotonic() - since))
            resident = terminal.resident() / 2**20
            keys = [1000 * one for one in pressed(terminal, 4 * segments)]
        finally:
            terminal.close()
    each = 1e4 * sorted(later)[len(later) // 2] / ranks
    shares, typed = spread(later, "{:.1f}"), spread(keys, "{:.0f}")
    return f"{ranks:>5} ranks   {start:>14.1f}{shares:>25}{each:>13.0f}{resident:>9.0f}{typed:>25}"


def pressed(terminal: Terminal, times: int) -> list[float]:
    """Return the seconds from pressing a key (one rank down) to the first byte that follows."""
    found: list[float] = []
    for _ in range(times):
        time.sleep(0.23)
        began = terminal.press("j")
        limit = began + 2.0
        while terminal.first_after(began) == began and time.monotonic() < limit:
            time.sleep(0.001)
        found.append(terminal.first_after(began) - began)
    return found


class Watching:
    """A session and what is drawn of it, each part timed by the thread's own clock."""

    def __init__(self, ranks: int) -> None:
        self.stream, self.spent = Stream(ranks), dict.fromkeys(PARTS, 0.0)
        self.source, self.options = receiver(self.stream.clock), habits(UNICODE)
        self.session = Session(self.stream.clock, budget_slice=0.03, findings_every=1.0, keep_views=True)
        look = self.session.findings._look

        def timed(snapshot: Snapshot) -> tuple[Finding, ...]:
            began = time.thread_time()
            found = look(snapshot)
            self.spent["findings"] += time.thread_time() - began
            return found

        self.session.findings._look = timed  # type: ignore[method-assign]
        self.session.feed(taken(self.source, self.stream.start(1800.0)))

    def second(self) -> None:
        """Take a second's messages in ten parts, and draw one picture."""
        clock = time.thread_time
        for answer in self.stream.parts(10):
            began = clock()
            received = taken(self.source, [answer])
            between = clock()
            self.session.feed(received)
            self.spent["session"] += clock() - between
            self.spent["decode"] += between - began
        began, asked = clock(), self.spent["findings"]
        snapshot = self.session.snapshot()
        between = clock()
        frame(snapshot, Link(state="live"), self.options, SIZE, "", self.stream.clock.now)
        self.spent["drawing"] += clock() - between
        self.spent["snapshot"] += between - began - (self.spent["findings"] - asked)


def parts(rounds: int) -> None:
    """Print CPU by what it goes to, per sample, once every window of a rank is full."""
    print(f"\n{'us of CPU a sample':<20}" + "".join(f"{name:>13}" for name in (*PARTS, "in all")))
    for ranks in RANKS:
        watching = Watching(ranks)
        for _ in range(rounds // 2):
            watching.second()
        gc.collect()
        gc.freeze()
        collect_seldom(ranks)
        watching.spent.update(dict.fromkeys(PARTS, 0.0))
        for _ in range(rounds):
            watching.second()
        each = [1e6 * watching.spent[name] / rounds / ranks for name in PARTS]
        print(f"{ranks:>5} ranks{'':<9}" + "".join(f"{one:>13.1f}" for one in (*each, sum(each))), flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="64, 256, 1024, parts; all by default")
    parser.add_argument("--short", action="store_true", help="see that it works, in some seconds")
    options = parser.parse_args()
    wanted = options.what or [*map(str, RANKS), "parts"]
    heading("What many ranks cost the dashboard")
    sizes = [ranks for ranks in RANKS if str(ranks) in wanted]
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["RANKTOP_RUN_DIR"], os.environ["RANKTOP_STATE_DIR"] = f"{folder}/run", f"{folder}/state"
        for ranks in sizes[:1] if options.short else sizes:
            if ranks == sizes[0]:
                print(f"\n{HEAD}")
            how = (1, 2.0, 3.0) if options.short else (5, 4.0, FIRST)
            print(dashboard(ranks, *how), flush=True)
    if "parts" in wanted:
        parts(2 if options.short else 40)


if __name__ == "__main__":
    main()
