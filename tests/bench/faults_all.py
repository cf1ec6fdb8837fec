"""Every fault in a real job of its own kind, and what was found of it: prints a table.

``python tests/bench/faults_all.py [--kind time] [--name ddp] [--fault leak]``; exit code 1 when something is not found
as it must be, or something else is.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from faults_cases import SPECS, Outcome, Spec, run
from jobs import Viewer


def table(kind: str, spec: Spec, outcomes: list[Outcome]) -> None:
    """Print one job's rows."""
    for outcome in outcomes:
        case, found = outcome.case, outcome.finding
        seconds = "-" if outcome.seconds is None else f"{outcome.seconds:.1f} s"
        steps = "-" if outcome.steps is None else f"{outcome.steps} steps"
        said = f"{found.rule} {found.severity} {found.confidence}: {found.sentence}" if found else "not found"
        others = "; ".join(f"{one.rule} {one.severity} {one.ranks}: {one.sentence}" for one in outcome.others) or "none"
        fault = f"{case.fault or spec.name} on rank {case.rank}"
        print(f"| {kind}: {spec.name} | {fault} | {said} | {seconds}, {steps} | {others} |", flush=True)
        if outcome.trouble:
            print(f"    TROUBLE: {outcome.trouble[:3000]}", flush=True)


def chosen(options: argparse.Namespace) -> list[tuple[str, Spec]]:
    """Return the jobs that are wanted."""
    found = []
    for kind, specs in SPECS.items():
        for spec in specs:
            cases = tuple(case for case in spec.cases if options.fault in (None, case.fault))
            if options.kind in (None, kind) and options.name in (None, spec.name) and cases:
                found.append((kind, replace(spec, cases=cases)))
    return found


def main() -> int:
    """Run what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("kind", "name", "fault"):
        parser.add_argument(f"--{name}")
    options = parser.parse_args()
    bad = 0
    print("| job | fault | found | after | other findings |\n|---|---|---|---|---|")
    for kind, spec in chosen(options):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            os.environ["RANKTOP_RUN_DIR"] = str(Path(folder) / "run")
            viewer = Viewer()
            outcomes: list[Outcome] = []
            try:
                outcomes.extend(run(spec, viewer, Path(folder)))
            except AssertionError as error:
                print(f"    TROUBLE: {spec.name}: {str(error)[:3000]}", flush=True)
                bad += 1
            finally:
                viewer.close()
        table(kind, spec, outcomes)
        print(f"    ({time.monotonic() - began:.0f} s)", flush=True)
        bad += sum(bool(outcome.trouble or outcome.others) for outcome in outcomes)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
