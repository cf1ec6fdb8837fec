"""Where the checks look: this machine's files, the environment, the processes that were started to ask."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranktop.tui.view import text


@dataclass(frozen=True, slots=True)
class Scene:
    """One examination of one machine."""

    environ: Mapping[str, str]
    until: float
    """Monotonic time at which the report is printed, whatever has not answered by then."""
    root: Path = Path("/")
    """Of the machine's files (``/proc``, ``/sys``, ``/dev``)."""
    job: str | None = None
    """The job to look at; None: all."""
    nvml: Callable[[], dict[str, Any] | None] = lambda: None
    """Waits for ``ranktop.probes.nvml_report``; None when it has not answered in time."""
    trial: Callable[[], Any] = lambda: None
    """Waits for the trial run of an agent (``trial.Trial``); None where there is no torch to run one with."""
    shared: dict[str, Any] = field(default_factory=dict)
    """What one check of a group leaves to the later ones of the same group."""

    def path(self, name: str) -> Path:
        """Return a file of the machine by its absolute name."""
        return self.root / name.lstrip("/")

    def exists(self, name: str) -> bool:
        """Tell whether the machine has a file of this name, be it a broken link."""
        return os.path.lexists(self.path(name))

    def text(self, name: str) -> str | None:
        """Return a file's text, None when it cannot be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """Return the whole number that a file holds, None when it holds another thing or cannot be read."""
        text = (self.text(name) or "").strip()
        return int(text) if text.isdigit() else None

    def left(self) -> float:
        """Return the seconds left until the report."""
        return max(0.0, self.until - time.monotonic())


def size(value: int) -> str:
    """Return bytes as a person reads them.

    >>> size(64 << 20), size(80 << 30)
    ('64 MiB', '80.0 GiB')
    """
    if value >= 1 << 30:
        return f"{value / (1 << 30):.1f} GiB"
    return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value >> 10} KiB"


def ranges(numbers: list[int]) -> str:
    """Return whole numbers in few words.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    return text.ranges(numbers, 2)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "rank"), plural(2, "rank")
    ('1 rank', '2 ranks')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
