"""Where messages come from: a live hub, a recording or a test; all look the same from here on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ranktop.wire.schema import Body, Header, Job


@dataclass(frozen=True, slots=True)
class Received:
    """One decoded message and how old it is."""

    header: Header
    body: Body
    age: float
    """Seconds since the hub received it, when it was drained."""
    number: int
    """Position in the hub's stream."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget everything received so far: a snapshot follows."""

    job: Job
    hub: str
    replaced: bool
    """True when another hub process took over: its history starts anew."""
    parts: bool = False
    """The snapshot comes in several parts; ``Whole`` follows its last one."""


@dataclass(frozen=True, slots=True)
class Whole:
    """The last part of a snapshot has come."""


@dataclass(frozen=True, slots=True)
class Link:
    """How the connection to the source is doing."""

    state: str = "connecting"
    """``connecting``, ``live``, ``lost`` (no answer; retrying), ``ended`` (the hub is gone for good),
    ``replay`` (a recording; ``detail`` says where)."""
    detail: str = ""
    """One line for a person."""
    age: float | None = None
    """Seconds since the source last answered; None before the first answer."""
    lost: int = 0
    """Messages that the hub no longer held when they were asked for."""
    bad: int = 0
    """Messages that could not be read."""
    place: str = ""
    """The other machine that the job runs on, as a person named it; empty for this one."""


class Source(Protocol):
    """A stream of messages about one job."""

    def drain(self) -> Sequence[Received | Reset | Whole]:
        """Return what has arrived since the last call, in order; never blocks."""
        ...

    def link(self) -> Link:
        """Return the state of the connection."""
        ...

    def close(self) -> None:
        """Let go of the source at once."""
        ...
