"""What the findings find: run ``python tests/bench/bench_findings.py [scale] [table]``.

``scale``: 1024 simulated ranks on the real wire, one 8 % slow, one 6 % over in activations: after how many steps each
is found, what else is raised, and what publishers, hub, and viewer cost. ``table``: precision and recall at naming the
slow rank over 200 seeded jobs (``scoring``), beside the rule that flags a rank below 0.75 of the fastest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measured import heading
from bench.scoring import NAMED, SLOWING, Case, Outcome, cases, follow, scores
from bench.terminal import Terminal, cpu_seconds

from ranktop.agent.simulation.faults import Fault
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.state import Session
from ranktop.tui.simulate import MODULE, Wish, publishing
from ranktop.wire.endpoints import job_directory, read_job_file

RANKTOP = [sys.executable, "-m", "ranktop.tui.cli"]
DRAIN_EVERY = 0.1
JOB = "bench-sim"


@dataclass
class Watched:
    """What a viewer without a screen saw."""

    found: dict[str, tuple[int, Finding]] = field(default_factory=dict)
    """Fault -> the step at which it was named first, and the finding."""
    others: dict[tuple[str, str, tuple[int, ...]], Finding] = field(default_factory=dict)
    step: int = 0
    cpu: float = 0.0
    seconds: float = 0.0
    failure: str = ""

    def look(self, session: Session, faults: Sequence[Fault]) -> None:
        """Ask the rules once."""
        snapshot = session.snapshot()
        self.step = snapshot.step
        self.failure = session.failure
        for finding in snapshot.findings:
            fault = next((one for one in faults if finding.rule in NAMED[one.name] and one.rank in finding.ranks), None)
            if fault is None or len(finding.ranks) > 1:
                self.others.setdefault(finding.key, finding)
            else:
                self.found.setdefault(fault.name, (snapshot.step, finding))


def watch(directory: Path, faults: Sequence[Fault], steps: int) -> Watched:
    """Follow a job for so many steps, with the arithmetic that the dashboard does."""
    source, session, seen = HubSource(directory), Session(budget_slice=0.03, findings_every=1.0), Watched()
    began, before = time.monotonic(), time.process_time()
    due = began
    while seen.step < steps and time.monotonic() - began < 4 * steps:
        # Read at once: on a busy machine a viewer that drains at 10 Hz falls behind, which is not what is asked here.
        if source.poll(DRAIN_EVERY):
            session.feed(source.drain())
        if time.monotonic() >= due:
            due = time.monotonic() + 0.5
            seen.look(session, faults)
    seen.cpu, seen.seconds = time.process_time() - before, time.monotonic() - began
    source.close()
    return seen


def scale(ranks: int, steps: int) -> None:
    """Print after how many steps two faults among many ranks are found, and what it costs."""
    slow, full = ranks * 5 // 7, ranks // 3
    wish = Wish(ranks=ranks, faults=(f"straggler:rank={slow}:by=0.08", f"activations:rank={full}:by=0.06"), seed=1)
    faults = (Fault("straggler", slow, 0.08), Fault("activations", full, 0.06))
    arguments = wish.arguments(JOB)
    asked = subprocess.run([sys.executable, "-m", MODULE, *arguments, "--explain"], capture_output=True, check=True)
    directory = job_directory(JOB)
    with publishing(arguments, wish, json.loads(asked.stdout), directory) as processes:
        terminal = Terminal([*RANKTOP, "--job", JOB], (120, 40))
        watched = [("publishers", [process.pid for process in processes]), ("hub", [read_job_file(directory).hub_pid])]
        watched.append(("dashboard, 120x40", [terminal.pid]))
        before = {name: [cpu_seconds(pid) for pid in pids] for name, pids in watched}
        began = time.monotonic()
        try:
            seen = watch(directory, faults, steps)
            passed = time.monotonic() - began
            spent = {name: sum(cpu_seconds(pid) for pid in pids) - sum(before[name]) for name, pids in watched}
        finally:
            terminal.close()
    print(f"\n{ranks} ranks, {seen.step} steps in {seen.seconds:.0f} s")
    for fault in faults:
        found = seen.found.get(fault.name)
        told = f"after step {found[0]}: {found[1].sentence}" if found else "NOT FOUND"
        print(f"  {fault.name} of rank {fault.rank} by {fault.by:.0%}: {told}")
    print(f"  other findings: {len(seen.others)}")
    for other in list(seen.others.values())[:8]:
        print(f"    {other.severity} {other.rule}: {other.sentence}")
    costs = {name: 100 * cpu / passed for name, cpu in spent.items()}
    costs["session alone"] = 100 * seen.cpu / seen.seconds
    print("  CPU, % of a core: " + ", ".join(f"{name} {cost:.0f}" for name, cost in costs.items()))
    if seen.failure:
        print(f"  failure: {seen.failure}")


def percent(value: float | None) -> str:
    """Write a share."""
    return "–" if value is None else f"{100 * value:.1f} %"


def run_all(wanted: Sequence[Case], processes: int) -> list[Outcome]:
    """Run the jobs, several at a time."""
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(follow, wanted, chunksize=4))


def print_scores(outcomes: Sequence[Outcome]) -> None:
    """Print precision and recall at naming the slow rank, and how strong the slowness was that was found."""
    print(f"\n{'who is slow?':<34}{'right':>7}{'wrong':>7}{'missed':>8}{'precision':>11}{'recall':>9}")
    for name, score in scores(outcomes).items():
        print(
            f"{name:<34}{score.right:>7}{score.wrong:>7}{score.missed:>8}{percent(score.precision):>11}"
            f"{percent(score.recall):>9}"
        )
    slow = [one for one in outcomes if one.case.slow]
    print(f"\n{'recall by slowness':<24}{'jobs':>6}{'ranktop':>10}{'below 0.75, by phase':>22}")
    for low, high in ((0.05, 0.1), (0.1, 0.2), (0.2, 0.31)):
        some = [one for one in slow if one.case.fault is not None and low <= one.case.fault.by < high]
        if some:
            ours, plain = (
                statistics.mean(bool(named & one.case.slow) for one, named in ((one, way(one)) for one in some))
                for way in (Outcome.named_slow, Outcome.plain_by_phase)
            )
            print(f"{f'{low:.0%} to {min(high, 0.3):.0%}':<24}{len(some):>6}{percent(ours):>10}{percent(plain):>22}")


def print_faults(outcomes: Sequence[Outcome]) -> None:
    """Print how often each fault was named, its rank included, and what was raised wrongly."""
    print(f"\n{'fault':<16}{'jobs':>6}{'named':>7}{'cause told':>12}{'jobs with a wrong finding above info':>38}")
    groups: dict[str, list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault(one.case.fault.name if one.case.fault is not None else "(healthy)", []).append(one)
    for name in ["(healthy)", *NAMED]:
        some = groups.get(name, [])
        if some:
            named = "–" if name == "(healthy)" else str(sum(one.found for one in some))
            cause = str(sum(told(one) for one in some)) if name in SLOWING else "–"
            print(f"{name:<16}{len(some):>6}{named:>7}{cause:>12}{sum(bool(one.wrong) for one in some):>38}")
    wrong = Counter(f"{finding.severity} {finding.rule}" for one in outcomes for finding in one.wrong)
    print(f"\nwrong findings: {dict(wrong) or 'none'}")
    for failure in {one.failure for one in outcomes if one.failure}:
        print(f"failure: {failure}")


CAUSES = {
    "straggler": ("not measured", "unknown"), "data": ("data",), "throttle": ("held down", "clock", "thermal"),
    "pcie": ("PCIe",), "starved": ("CPU",), "tokens": ("tokens",),
}  # fmt: skip
"""Fault -> words of a sentence that tells its cause."""


def told(one: Outcome) -> bool:
    """Tell whether the finding that names the slow rank also names why it is slow."""
    words = CAUSES[one.case.fault.name] if one.case.fault is not None else ()
    last = [finding for finding in one.looks[-1][1] if one.right(finding)]
    return any(word in finding.sentence for finding in last for word in words)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="scale, table; both by default")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=34)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="a smoke run, whose numbers mean nothing")
    options = parser.parse_args()
    if options.short:
        options.what, options.runs = ["table"], 8
    heading("Findings")
    wanted = set(options.what) or {"scale", "table"}
    if "scale" in wanted:
        with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            os.environ["RANKTOP_RUN_DIR"] = f"{folder}/run"
            scale(options.ranks, options.steps)
    if "table" in wanted:
        outcomes = run_all(list(cases(options.runs, options.seed)), options.processes)
        print_scores(outcomes)
        print_faults(outcomes)


if __name__ == "__main__":
    main()
