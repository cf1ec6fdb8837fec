"""What the checks on a GPU share: a check, the table of them, and processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ranktop.probes.reading import DeviceProbe, DeviceReading

HERE = Path(__file__).parent
MIB = 1 << 20


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    passed: bool | None
    """None: not possible here, the detail says why."""
    detail: str


Group = Callable[[], list[Check]]


def run_groups(groups: Sequence[tuple[str, Group]]) -> list[Check]:
    """Run them one after another and print each line as it comes; an error fails its group and no other."""
    checks: list[Check] = []
    for title, group in groups:
        began = time.monotonic()
        try:
            found = group()
        except Exception as error:
            found = [Check(title, False, f"{type(error).__name__}: {error}")]
        print(f"-- {title} ({time.monotonic() - began:.1f} s)")
        for check in found:
            print(line(check), flush=True)
        checks += found
    return checks


def line(check: Check) -> str:
    """Return one line of the table."""
    word = {True: "pass", False: "FAIL", None: "skip"}[check.passed]
    return f"{word}  {check.name:34}  {' '.join(check.detail.split())}"


def verdict(checks: Sequence[Check]) -> int:
    """Print how many passed and return the exit code: 0, or 1 when one failed."""
    failed = [check.name for check in checks if check.passed is False]
    skipped = sum(check.passed is None for check in checks)
    print(f"{len(checks) - len(failed) - skipped} passed, {len(failed)} failed, {skipped} not possible here")
    return 1 if failed else 0


def in_a_process(
    program: Sequence[str], seconds: float = 120.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, in the folder of the checks."""
    return subprocess.run(
        [sys.executable, *program],
        env={**os.environ, **environment},
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def last_lines(run: subprocess.CompletedProcess[str], count: int = 3) -> str:
    """Return the end of what a process has written on standard error."""
    return " | ".join(run.stderr.strip().splitlines()[-count:]) or f"exit code {run.returncode}"


def settled(device: DeviceProbe, seconds: float = 20.0) -> DeviceReading:
    """Return a reading made after this call, or the last one when none comes in time."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        reading = device.read()
        if reading.state == "ok" and reading.age < time.monotonic() - started:
            return reading
        time.sleep(0.05)
    return device.read()


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
