"""The step that a loop is in: its marks by the clock, and the times of its phases once they are all known."""

from __future__ import annotations

from collections.abc import Iterable

from ranktop.probes.clock import Clock, HostClock
from ranktop.probes.reading import MomentReading, StepTimes


class OpenStep:
    """The step in progress: marks by the clock, and host times beside them."""

    __slots__ = (
        *("closure", "forwards", "host_end", "host_previous", "index", "last_mark", "moments", "optimizers"),
        *("previous", "read", "start", "tokens", "waits"),
    )

    def __init__(self, index: int, previous: object | None, start: object, read: bool) -> None:
        self.index = index
        self.previous = previous
        self.start = start
        self.forwards: list[list[object]] = []
        self.optimizers: list[list[object]] = []
        self.closure = False
        """Whether an optimizer ran forward and backward itself, through a closure."""
        self.waits: list[tuple[object, object]] = []
        self.last_mark: object = start
        self.host_previous: float | None = None
        self.host_end = 0.0
        self.read = read
        self.tokens: int | None = None
        self.moments: dict[str, MomentReading] = {}


def times_of(step: OpenStep, clock: Clock) -> StepTimes | None:
    """Return the times of a finished step in seconds; None while the clock has not reached its marks."""
    between = clock.between
    seconds = between(step.previous if step.previous is not None else step.start, step.last_mark)
    if seconds is None:
        return None
    data = between(step.previous, step.start) if step.previous is not None else None
    if step.host_previous is not None:
        # The device was not asked when the step before it, a skimmed one, ended; its queue keeps the host's pace.
        seconds = step.host_end - step.host_previous
        data = between(step.host_previous, step.start) if isinstance(clock, HostClock) else None
    forward = _sum(between(pair[0], pair[1]) for pair in step.forwards if len(pair) == 2)
    optimizer = _sum(between(pair[0], pair[1]) for pair in step.optimizers if len(pair) == 2)
    waits = _sum(between(end, begin) for end, begin in step.waits)
    backward = _backward(step, clock, (forward, optimizer, waits))
    if waits is not None:
        data = waits if data is None else data + waits
    return StepTimes(
        index=step.index,
        seconds=seconds,
        data=data,
        forward=forward,
        backward=backward,
        optimizer=optimizer,
        micro_batches=len(step.forwards),
        clock=clock.name,
        tokens=step.tokens,
    )


def _backward(step: OpenStep, clock: Clock, others: tuple[float | None, float | None, float | None]) -> float | None:
    """Return what forward, optimizer and waits leave of the time up to the (first) optimizer's own work."""
    forward, optimizer, waits = others
    if step.closure:
        # Forwards lie between the optimizer's parts; where its own work began may not have been seen.
        span, less = clock.between(step.start, step.last_mark), optimizer
    else:
        span, less = clock.between(step.start, step.optimizers[0][0] if step.optimizers else step.last_mark), 0.0
    if span is None or forward is None or less is None:
        return None
    return max(0.0, span - forward - less - (waits or 0.0))


def _sum(parts: Iterable[float | None]) -> float | None:
    """Add up seconds; None when there is nothing to add or a part is unknown."""
    total: float | None = None
    for part in parts:
        if part is None:
            return None
        total = part if total is None else total + part
    return total
