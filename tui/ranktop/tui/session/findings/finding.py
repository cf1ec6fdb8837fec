"""A rule's verdict with its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEVERITIES: Final = ("info", "warning", "critical")
"""By rising gravity. ``info``: worth knowing, nothing is wrong. ``critical``: the job has stopped or soon will."""

CONFIDENCES: Final = ("low", "medium", "high")

PROCESS_ID: Final = "process id"
"""Name of the evidence that is one."""

Value = float | int | str | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact behind a finding."""

    name: str
    """In words: ``own work``, ``median of 7 peers``, ``throttle``."""
    value: Value
    """None: could not be read."""
    unit: str = ""
    """``B``, ``s``, ``%``, ``W``, ``°C``, ``MHz``, ``tokens``, ``steps``; empty for text and plain numbers."""

    @property
    def is_name(self) -> bool:
        """Whether its number names something, and is written as one would type it."""
        return self.name == PROCESS_ID and isinstance(self.value, int)


@dataclass(frozen=True, slots=True)
class Plot:
    """A small picture of the evidence: values over steps, or over the ranks of the group."""

    title: str
    over: str
    """``step`` or ``rank``: what ``at`` counts."""
    unit: str
    at: tuple[int, ...]
    lines: tuple[tuple[str, tuple[float | None, ...]], ...]
    """(name, a value for each of ``at``); the finding's own first, what it is held against second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is out of line, the same from one look to the next while (rule, subject, ranks) are."""

    rule: str
    """Name of the rule: ``straggler``, ``memory``, ``hang``, ..."""
    severity: str
    ranks: tuple[int, ...]
    """Those it is about, ascending; empty: the job as a whole."""
    sentence: str
    """Who, what, by how much and, where it is known, why: one line without a full stop, its numbers included."""
    short: str = ""
    """The same for a rank's row, at most 14 characters: ``slow +18%``, ``act +28%``; empty: not told there."""
    subject: str = ""
    """What of the ranks, where a rule knows several: a category, a phase, a cause."""
    evidence: tuple[Evidence, ...] = ()
    advice: str = ""
    """What to do, in a sentence or two."""
    confidence: str = "high"
    since: float | None = None
    """When it began, seconds on the session's clock; None from a rule: when it was first told."""
    step: int | None = None
    """The step in which it began."""
    peers: tuple[int, ...] = ()
    """The ranks that it was compared with."""
    plot: Plot | None = None

    @property
    def key(self) -> tuple[str, str, tuple[int, ...]]:
        """What makes it the same finding later."""
        return (self.rule, self.subject, self.ranks)

    @property
    def gravity(self) -> int:
        """Index of its severity in ``SEVERITIES``."""
        return SEVERITIES.index(self.severity)
