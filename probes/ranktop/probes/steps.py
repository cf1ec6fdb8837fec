"""Follows a training loop through its steps: phases, micro-batches, and the memory at the moments of a step.

The events come from hooks in the training thread, so every method here is short and takes no lock. What is finished
is handed over through a bounded deque, which another thread may empty at any time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ranktop.probes.clock import Clock, HostClock
from ranktop.probes.reading import MomentReading, StepTable, StepTimes
from ranktop.probes.step_times import OpenStep, times_of

READING_SHARE: Final = 0.003
"""Largest part of the step time that readings of the memory may take on average."""

READING_SPACING: Final = 0.45
"""Seconds between two steps that are followed, at least: a sample shows only the last one's memory, and following one
costs about a millisecond of a busy loop, its readings included."""

ALWAYS_READ: Final = 3
"""Steps at the start that are always read: the optimizer's state appears in the first."""

FORWARDS_WITHOUT_OPTIMIZER: Final = 16
"""Forwards after which a loop that has never run an optimizer counts each forward as a step."""


class StepRecorder:
    """Turns the hooks' events into finished steps.

    A step ends with the last optimizer call before the next forward that needs gradients, so that several optimizers,
    and optimizers that work group by group, make one step. Forwards without gradients (validation) belong to none.

    Steps that follow each other fast are not all followed: between two that are, the rest is only skimmed, that is
    counted. That costs microseconds where following costs hundreds of a training loop whose caches hold other things,
    so the hooks do it themselves (``agent/skim.py``), with the four attributes that say so.

    A forward within an optimizer's call is one of its closure (Lightning's automatic optimization, L-BFGS): then the
    optimizer's own work begins when the closure's backward has ended.
    """

    def __init__(self, read: Callable[[], MomentReading | None], clock: Clock | None = None) -> None:
        """Read memory with ``read`` at the moments, and time phases by ``clock`` (the wall clock by default)."""
        self._read = read
        self._clock: Clock = clock if clock is not None else HostClock()
        self._open: OpenStep | None = None
        self._previous_end: object | None = None
        self._finished: deque[OpenStep] = deque(maxlen=32)
        self._timed: deque[StepTimes] = deque(maxlen=32)
        self._stepped = False
        self._differentiated = False
        self._backward_mark: object | None = None
        self._closure = False
        """Whether an optimizer that is being called runs the forwards."""
        self._reading_cost = 0.0
        self.last_end: float | None = None
        """``time.perf_counter`` at the end of the last step; None before the first. Skimming sets it."""
        self.next_reading = 0.0
        """``time.perf_counter`` from which on the next step to begin is followed."""
        self.skimming = False
        """Whether the step in progress is only counted."""
        self.fresh = True
        """For skimming: whether no forward has come since the last step ended."""
        self.uncounted = False
        """For skimming: whether the last step that ended is not in ``count`` yet."""
        self._left: float | None = None
        """``last_end`` as it was when the last validation ended."""
        self._skimmed_end: float | None = None
        """Host time at the end of the last step, when that one was skimmed."""
        self.phase = ""
        """What the training thread is in now."""
        self.count = 0
        """Steps finished."""
        self.table: StepTable | None = None
        """Memory at the moments of the last step that was read."""
        self.table_time = 0.0
        """``time.perf_counter`` at the end of that step."""
        self.optimizer_seen = False
        """Whether any optimizer has stepped."""
        self.accumulation: int | None = None
        """Forwards of the last finished step."""
        self.hook_seconds = 0.0
        """Time spent reading memory in the training thread since the start."""
        self.also: Callable[[], None] | None = None
        """Called in the training thread a few times a second, where the times of finished steps are asked for."""

    # -- events, in the training thread -------------------------------------------------------------------------

    def forward_begin(self, grad: bool) -> bool:
        """The root's forward starts. Returns True when this starts a new step."""
        if not grad:
            self.phase = "eval"
            return False
        self._differentiated = False
        self._closure = self.phase == "optimizer"
        step = self._open
        if self._closure and step is not None:
            self._closure_begins(step)
        if step is not None and not (self._stepped or self._forward_only(step)):
            self._moment(step, "backward_end")
            mark = self._clock.mark()
            if self._backward_mark is not None:
                step.waits.append((self._backward_mark, mark))
                self._backward_mark = None
            step.forwards.append([mark])
            self.phase = "forward"
            return False
        if step is not None:
            self._finish(step)
            if self._may_skim():
                self._skim_from_here()
                return True
        if self.skimming:
            # It came past the hooks that skim: from a thread that has taken the training over.
            self._count_skimmed()
            self.follow()
            self._skimmed_end = None
        mark = self._clock.mark()
        step = self._open = OpenStep(self.count + 1, self._previous_end, mark, self._want_reading())
        step.closure = self._closure
        step.forwards.append([mark])
        step.host_previous, self._skimmed_end = self._skimmed_end, None
        self._stepped = False
        self._moment(step, "step_start")
        self.phase = "forward"
        return True

    def add_tokens(self, tokens: int | None) -> None:
        """The micro-batch whose forward has begun holds so many; None when its inputs don't tell."""
        step = self._open
        if step is None:
            return
        if len(step.forwards) == 1:
            step.tokens = tokens
        else:
            step.tokens = None if tokens is None or step.tokens is None else step.tokens + tokens

    def forward_end(self, grad: bool) -> None:
        """The root's forward has returned."""
        if not grad:
            self.left_training()
            return
        self._resolve()
        step = self._open
        if step is None:
            return
        if step.forwards and len(step.forwards[-1]) == 1:
            step.forwards[-1].append(self._clock.mark())
        self._backward_mark = None
        self._moment(step, "forward_end")
        self.phase = "backward"

    def backward_begin(self) -> None:
        """The gradient of the root's output is known: the loss has been differentiated."""
        step = self._open
        if step is not None and not (self._stepped or self._differentiated):
            self._differentiated = True
            self._moment(step, "backward_start")

    def backward_end(self) -> None:
        """A backward has come to its end. What follows until the next micro-batch's forward is waiting for its data.

        In a closure the optimizer's own work follows.
        """
        step = self._open
        if step is None or self._stepped:
            return
        if not self._closure:
            self._backward_mark = self._clock.mark()
            self.phase = "data"
            return
        self._moment(step, "backward_end")
        step.optimizers.append([self._clock.mark()])
        self.phase = "optimizer"

    def optimizer_begin(self) -> None:
        """An optimizer is about to step."""
        if not self.optimizer_seen:
            self.optimizer_seen = True
            self.count = 0
            if self._open is not None:
                self._open.index = 1
        step = self._open
        self._closure = False
        self.phase = "optimizer"
        if step is None:
            return
        self._resolve()
        if not self._stepped:
            self._moment(step, "backward_end")
        step.optimizers.append([self._clock.mark()])

    def optimizer_end(self) -> None:
        """An optimizer has stepped."""
        step = self._open
        self.phase = "data"
        self._closure = False
        if step is None:
            if self.skimming and not self.fresh:  # by one whose calls the hooks do not know yet
                self.fresh = self.uncounted = True
                self.last_end = time.perf_counter()
            return
        mark = self._clock.mark()
        if step.optimizers and len(step.optimizers[-1]) == 1:
            step.optimizers[-1].append(mark)
        elif not step.optimizers:
            step.closure = True  # it had been called before this step's first forward
        step.last_mark = mark
        self._stepped = True
        self.last_end = step.host_end = time.perf_counter()
        self._moment(step, "step_end")

    def close(self) -> None:
        """Count the step in progress if its optimizer has run."""
        if self._open is not None and self._stepped:
            self._finish(self._open)
            self._open = None
        self._count_skimmed()
        self._resolve()

    # -- skimming ------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Skim no longer: the step that begins now is followed. The one before is counted already."""
        self.skimming = False
        if self._left is None or self._left != self.last_end:
            # No validation since the last step's end: the device was not asked then, the host's time is known.
            self._previous_end, self._skimmed_end = None, self.last_end

    def _count_skimmed(self) -> None:
        if self.uncounted:
            self.uncounted = False
            self.count += 1

    def _may_skim(self) -> bool:
        """Whether the step that begins now need not be followed."""
        return self.optimizer_seen and not self._want_reading()

    def _skim_from_here(self) -> None:
        self._open = None
        self.skimming = True
        self.fresh = self.uncounted = False
        self._left = None
        self.phase = "forward"

    @property
    def following(self) -> bool:
        """Whether the step in progress is followed, not only counted."""
        return self._open is not None

    @property
    def reading(self) -> bool:
        """Whether the memory of the step in progress is read."""
        return self._open is not None and self._open.read and not self._stepped

    # -- for the sampling thread ---------------------------------------------------------------------------------

    def take(self) -> tuple[StepTimes, ...]:
        """Return the steps finished since the last call whose times are known, oldest first."""
        done: list[StepTimes] = []
        while self._timed:
            done.append(self._timed.popleft())
        return tuple(done)

    @property
    def ended(self) -> int:
        """Steps whose optimizer has run: ``count`` rises only when the next one begins."""
        return self.count + (self.uncounted or (self._open is not None and self._stepped))

    def _resolve(self) -> None:
        """Ask for the times of finished steps, in the training thread.

        A CUDA event that another thread asks about while a graph is captured would break the capture.
        """
        also = self.also
        if also is not None:
            also()
        while self._finished:
            try:
                times = times_of(self._finished[0], self._clock)
            except Exception:  # marks that cannot be compared, or a device that has failed
                times = None
                self._finished.popleft()
                continue
            if times is None:
                return
            self._timed.append(times)
            self._finished.popleft()

    # -- inside --------------------------------------------------------------------------------------------------

    def _closure_begins(self, step: OpenStep) -> None:
        """The optimizer that was taken to step runs a forward first: its own work comes later, or is a part only."""
        begun = step.optimizers[-1] if step.optimizers else []
        if len(begun) == 1:
            step.optimizers.pop()
            if step.closure and not self._stepped:
                step.optimizers.append([begun[0], self._clock.mark()])
        if not self._stepped:
            step.closure = True

    def _forward_only(self, step: OpenStep) -> bool:
        """Whether to count a forward as a step since no optimizer is ever called."""
        if self.optimizer_seen or (self.count == 0 and len(step.forwards) < FORWARDS_WITHOUT_OPTIMIZER):
            return False
        step.last_mark = self._clock.mark()
        self.last_end = time.perf_counter()
        self._moment(step, "backward_end")
        return True

    def left_training(self) -> None:
        """Time spent in validation until now belongs neither to a step nor to waiting for data."""
        if self._open is not None and self._stepped:
            self._finish(self._open)
            self._open = None
            self._stepped = False
        self._count_skimmed()
        if self._open is None and (self._previous_end is not None or self.skimming):
            self._previous_end = self._clock.mark()
            self._left = self.last_end
            self.phase = "data"

    def _finish(self, step: OpenStep) -> None:
        self.count = step.index
        self._previous_end = step.last_mark
        self.accumulation = len(step.forwards)
        now = self.last_end if self.last_end is not None else time.perf_counter()
        if step.read and step.moments:
            self.table = StepTable(index=step.index, first=step.index == 1, moments=dict(step.moments))
            self.table_time = now
        self._finished.append(step)
        self._resolve()

    def _want_reading(self) -> bool:
        return self.count < ALWAYS_READ or time.perf_counter() >= self.next_reading

    def _moment(self, step: OpenStep, name: str) -> None:
        if not step.read:
            return
        before = time.perf_counter()
        reading = self._read()
        after = time.perf_counter()
        if reading is not None:
            step.moments[name] = reading
        cost = after - before
        self.hook_seconds += cost
        self._reading_cost = cost if self._reading_cost == 0.0 else 0.7 * self._reading_cost + 0.3 * cost
        self.next_reading = after + max(READING_SPACING, 5 * self._reading_cost / READING_SHARE)
