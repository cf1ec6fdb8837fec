"""What every benchmark says of its numbers: when and where they were taken, and how far they spread."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path

VERSIONS = ("ranktop", "torch", "textual", "pyzmq", "msgspec")


def processor() -> str:
    """Return the processor's name and the number of cores that this process may use."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    name = found[1] if found else platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores of {name}"


def versions(names: Iterable[str] = VERSIONS) -> str:
    """Return the installed ones of some packages with their versions."""
    found = []
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


def heading(title: str, *packages: str) -> None:
    """Print what is measured, on what machine, and how busy it was before: other work shows in every number."""
    print(f"{title}\n{datetime.now():%Y-%m-%d %H:%M}, {processor()}, load {os.getloadavg()[0]:.1f}")
    print(f"Python {platform.python_version()}, {versions((*VERSIONS, *packages))}", flush=True)


def spread(values: Sequence[float], form: str = "{:.2f}") -> str:
    """Return ``median (lowest .. highest)``; a dash where nothing was measured."""
    if not values:
        return "–"
    middle, low, high = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} .. {high})"


def quartiles(values: Sequence[float], form: str = "{:.2f}") -> str:
    """Return ``median (first .. third quartile)``, for pairs whose outermost say more of the machine."""
    if len(values) < 3:
        return spread(values, form)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{form.format(statistics.median(values))} ({form.format(low)} .. {form.format(high)})"


def ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each pair that was measured at the same time; pairs without a second value are left out."""
    return [one / other for one, other in zip(mine, theirs, strict=True) if other]
