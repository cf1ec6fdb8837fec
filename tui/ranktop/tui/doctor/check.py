"""What a check gives: a status, what was found, one thing to do, and the facts behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ranktop.tui.doctor.scene import Scene

PASS: Final = "pass"
WARN: Final = "warn"
FAIL: Final = "fail"
SKIP: Final = "skip"
STATUSES: Final = (PASS, WARN, FAIL, SKIP)


@dataclass(frozen=True, slots=True)
class Result:
    """What one look gave."""

    status: str
    found: str
    advice: str = ""
    """One concrete thing to do; empty when nothing need be done."""
    facts: Mapping[str, object] = field(default_factory=dict)
    label: str = ""
    """Instead of the check's own, where one check gives several lines."""


@dataclass(frozen=True, slots=True)
class Line:
    """A result in its place in the report."""

    id: str
    """``group.name``; checks that look at several things give several lines of the same id."""
    group: str
    label: str
    result: Result


@dataclass(frozen=True, slots=True)
class Check:
    """One look at one thing. It may raise: that is a failed line."""

    id: str
    label: str
    look: Callable[[Scene], Result | Sequence[Result]]


def passed(found: str, /, *, label: object = "", **facts: object) -> Result:
    """Return a result with nothing to do."""
    return Result(PASS, found, "", facts, str(label))


def warned(found: str, advice: str, /, *, label: object = "", **facts: object) -> Result:
    """Return a result that may cost something."""
    return Result(WARN, found, advice, facts, str(label))


def failed(found: str, advice: str, /, *, label: object = "", **facts: object) -> Result:
    """Return a result that keeps something from working."""
    return Result(FAIL, found, advice, facts, str(label))


def skipped(found: str, advice: str = "", /, *, label: object = "", **facts: object) -> Result:
    """Return a result of what does not apply or cannot be looked at here."""
    return Result(SKIP, found, advice, facts, str(label))
