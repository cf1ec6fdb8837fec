"""Healthy jobs of different kinds: no finding above ``info`` may be raised for any of them.

``python tests/bench/healthy.py [--minutes 30] [--kind ddp]`` runs them one after the other, follows each with a session
that looks every second, and asks as ``ranktop status --json`` does every ten seconds. Prints every finding, with its
evidence where it is above ``info``; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from faults_healthy import KINDS, Report, run
from jobs import Viewer

START = 8.0
"""Seconds to a job's first step, and from its last to its end."""


def show(name: str, report: Report) -> None:
    """Print what was said of one job."""
    print(f"{name}: {report.steps} steps, {report.seconds:.0f} s, {report.looks} looks, asked {report.asked} times")
    for seen in report.seen:
        finding = seen.finding
        print(f"    {finding.severity} {finding.rule} {finding.subject} {finding.ranks}: {finding.sentence}")
        if seen.gravity:
            print(f"        seen for {seen.last - seen.first:.1f} s; confidence {finding.confidence}; {finding.advice}")
            for fact in finding.evidence:
                print(f"        {fact.name} = {fact.value} {fact.unit}")
            if finding.plot is not None:
                print(f"        {finding.plot.title}: {finding.plot.at} {finding.plot.lines}")
    for line in report.once:
        print(f"    asked once: {line}")
    if report.trouble:
        print(f"    {report.trouble[-3000:]}")
    sys.stdout.flush()


def main() -> int:
    """Run what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="in all")
    parser.add_argument("--kind", help="part of the names of the jobs wanted")
    parser.add_argument("--interval", default="1", help="the agents', in seconds")
    options = parser.parse_args()
    kinds = {name: kind for name, kind in KINDS.items() if options.kind is None or options.kind in name}
    bad = 0
    began = time.monotonic()
    for number, (name, kind) in enumerate(kinds.items()):
        left = options.minutes * 60 - (time.monotonic() - began)
        with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            os.environ["RANKTOP_RUN_DIR"] = str(Path(folder) / "run")
            viewer = Viewer()
            report = run(kind, viewer, Path(folder), max(10.0, left / (len(kinds) - number) - START), options.interval)
            viewer.close()
        show(name, report)
        bad += report.bad
    print(f"{len(kinds)} jobs in {(time.monotonic() - began) / 60:.1f} min: {bad} findings above info")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
