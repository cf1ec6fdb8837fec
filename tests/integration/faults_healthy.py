"""Healthy jobs of different kinds, and what is said of them all the same."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from faults_jobs import Follower, Seen, followed
from jobs import Viewer

ASK_EVERY: Final = 10.0
"""Seconds between two questions asked once."""

PATIENCE: Final = 90.0
"""Seconds that a job may take to its first steps."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One healthy job."""

    ranks: int
    arguments: tuple[str, ...]
    launch: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """What was said of it."""

    seen: list[Seen] = field(default_factory=list)
    once: list[str] = field(default_factory=list)
    """What a question asked once was told above ``info``."""
    steps: int = 0
    seconds: float = 0.0
    looks: int = 0
    asked: int = 0
    trouble: str = ""

    @property
    def bad(self) -> int:
        """Findings above ``info``, and troubles."""
        return sum(seen.gravity > 0 for seen in self.seen) + len(self.once) + bool(self.trouble)


KINDS: Final = {
    "DDP": Kind(3, ("--strategy", "ddp")),
    "DDP, arithmetic alone": Kind(2, ("--strategy", "ddp", "--pace", "0", "--hidden", "128", "--layers", "4")),
    "FSDP2": Kind(3, ("--strategy", "fsdp2")),
    "FSDP2, accumulating": Kind(2, ("--strategy", "fsdp2", "--accumulate", "4")),
    "FSDP1": Kind(3, ("--strategy", "fsdp1")),
    "ZeRO-2": Kind(2, ("--strategy", "zero2")),
    "ZeRO-3": Kind(2, ("--strategy", "zero3")),
    "pipeline of two stages, twice": Kind(4, ("--strategy", "pipeline", "--pace", "0.02")),
    "DDP, variable length": Kind(3, ("--strategy", "ddp", "--data", "variable")),
    "FSDP2, variable length": Kind(2, ("--strategy", "fsdp2", "--data", "variable", "--pace", "0.08")),
    "DDP, accumulating without synchronising": Kind(2, ("--strategy", "ddp", "--accumulate", "4", "--no-sync")),
    "DDP, validating every 20 steps": Kind(3, ("--strategy", "ddp", "--eval-every", "20", "--eval-batches", "15")),
    "FSDP1, saving every 15 steps": Kind(2, ("--strategy", "fsdp1", "--save-every", "15")),
    "DDP, saving and validating": Kind(
        3, ("--strategy", "ddp", "--save-every", "30", "--eval-every", "25", "--hidden", "128")
    ),
    "DDP, variable length, saving and validating": Kind(
        3, ("--strategy", "ddp", "--data", "variable", "--save-every", "30", "--eval-every", "25", "--hidden", "128")
    ),
    "transformers' Llama under DDP": Kind(2, ("--strategy", "ddp", "--model", "llama")),
    "one rank": Kind(1, ("--strategy", "single", "--data", "variable")),
    "the demo, FSDP2": Kind(2, ("--layers", "2", "--hidden", "128", "--batch", "2"), ("demo",)),
    "the demo, DDP": Kind(2, ("--strategy", "ddp", "--layers", "3", "--hidden", "64", "--batch", "4"), ("demo",)),
}


def run(kind: Kind, viewer: Viewer, directory: Path, seconds: float, interval: str = "1") -> Report:
    """Follow the job for so long from its first step, then let it end, and see that end as well."""
    report = Report()
    began = time.monotonic()
    demo = kind.launch == ("demo",)
    arguments = (*kind.arguments, "--minutes", str(seconds / 60)) if demo else kind.arguments
    with followed(viewer, directory, kind.ranks, *arguments, launch=kind.launch, RANKTOP_INTERVAL=interval) as follower:
        try:
            follower.until(lambda snapshot: snapshot.step > 0, PATIENCE)
            watch(follower, report, time.monotonic() + seconds)
            if not demo:
                (directory / "over").touch()
            follower.until(lambda snapshot: snapshot.state == "ended", 60)
            report.looks += 1
            if follower.process.wait(30) != 0:
                report.trouble = follower.told(follower.look())
        except AssertionError as error:
            report.trouble = str(error)
        report.seen = list(follower.seen.values())
    report.seconds = time.monotonic() - began
    return report


def watch(follower: Follower, report: Report, until: float) -> None:
    """Look every second, and ask now and then."""
    asked = time.monotonic()
    while time.monotonic() < until and follower.process.poll() is None:
        report.steps = max(report.steps, follower.look(1.0).step)
        report.looks += 1
        if time.monotonic() - asked > ASK_EVERY:
            asked = time.monotonic()
            report.asked += 1
            found = [one for one in follower.asked_once() if one["severity"] != "info"]
            report.once.extend(f"{one['rule']} {one['ranks']}: {one['sentence']}" for one in found)
