"""What the script or its trainer tells of its progress: kept here for the agent's thread, read without a wait.

``current`` is None while no agent runs, and telling costs nothing then.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ranktop.agent.say import say
from ranktop.agent.told_numbers import Reader

if TYPE_CHECKING:
    from ranktop.agent.watch import Watch
    from ranktop.wire.progress import Progress

MOST_VALUES: Final = 8
"""Names beside the known fields that are kept."""

NAME_LENGTH: Final = 32

MOST_STEPS: Final = 2**53
"""No message and no recording carries a larger count."""

MOST_COMPLAINTS: Final = 4
"""Lines about what is ignored, in all."""

TOKENS_WINDOW: Final = 10.0
"""Seconds over which tokens per second are averaged, where more than two words of them lie in them."""

TOKENS_SPACING: Final = 0.1
"""Seconds between two words of tokens that are kept apart."""

SPACINGS: Final = 9
"""Times between two losses of which the median is the usual one."""

FIELDS: Final = ("epoch", "loss", "learning_rate", "gradient_norm", "tokens_per_second")

_clock: Final = time.perf_counter


class Number(NamedTuple):
    """One number, the trainer's step it belongs to, and when it was told."""

    value: float
    step: int | None
    at: float


class Reports:
    """Everything told in this process since the agent started.

    :meth:`tell` is for the script's threads, :meth:`progress` for the agent's; neither takes a lock.
    """

    def __init__(self, watch: Callable[[], Watch | None] = lambda: None) -> None:
        self.watch = watch
        self.activities: dict[int, list[Any]] = {}
        """Thread -> what it is in, the innermost last (``annotate``)."""
        self._told: dict[str, Number] = {}
        self._values: dict[str, Number] = {}
        self._step: int | None = None
        self._total: int | None = None
        self._at: float | None = None
        self.source = ""
        """Who has told last."""
        self.stepper = ""
        """Who has told the trainer's step last: an engine below it keeps silent then."""
        self._reader = Reader(_clock)
        self._tokens: deque[tuple[float, float]] = deque()
        self._counted: int | None = None
        self._spacings: deque[float] = deque(maxlen=SPACINGS)
        self._bad = False
        self._bad_losses = 0
        self._bad_since: int | None = None
        self._said: set[str] = set()

    # -- in the script's threads -------------------------------------------------------------------------------------

    def tell(self, source: str, step: Any, total_steps: Any, told: Mapping[str, Any], tokens: Any) -> None:
        """Take what is told; ``told``: name -> number or tensor, None for nothing. Never raises."""
        try:
            self._tell(source, step, total_steps, told, tokens)
        except Exception as error:  # a script's own objects may raise anything when they are asked
            self._complain(f"report: {type(error).__name__} while it was read, ignored")

    def _tell(self, source: str, step: Any, total_steps: Any, told: Mapping[str, Any], tokens: Any) -> None:
        now = _clock()
        if step is not None:
            self._step = step if type(step) is int and abs(step) < MOST_STEPS else self._whole("step", step)
            self.stepper = source
        if total_steps is not None:
            self._total = self._whole("total_steps", total_steps)
        self._at, self.source = now, source
        step, counted = self._step, self._count_of_own() if told.get("loss") is not None else None
        for name, value in told.items():
            if value is None:
                continue
            if type(value) is float:
                self._take(name, value, step, now, counted)
            elif name in FIELDS or name in self._values or self._room(name):
                self._read(name, value, step, now, counted)
        if tokens is not None:
            self._count(tokens, now)
        if self._reader.waiting:
            self._reader.collect()

    def _whole(self, name: str, value: Any) -> int | None:
        """Return a count of steps; None for what is none, such as an endless run's infinity."""
        number, why = self._reader.read(name, value, None)
        if why:
            self._complain(f"report: {name} {why}, ignored", name)
        return int(number) if number is not None and abs(number) < MOST_STEPS else None

    def _read(self, name: str, value: Any, step: int | None, now: float, counted: int | None) -> None:
        """Take a number of another kind than float; one on a GPU is taken when it has arrived."""
        number, why = self._reader.read(name, value, lambda arrived: self._take(name, arrived, step, now, counted))
        if number is not None:
            self._take(name, number, step, now, counted)
        elif why:
            self._complain(f"report: {name} {why}, ignored", name)

    def _take(self, name: str, value: float, step: int | None, at: float, counted: int | None = None) -> None:
        """Keep a number. ``step``, ``at`` and ``counted`` (this rank's own steps) are of when it was told."""
        last = self._told.get(name) or self._values.get(name)
        if last is not None and last.at > at:
            return  # A newer one, that did not have to come from a GPU, was faster.
        if name == "loss":
            self._loss(value, step, at, counted)
        if name in FIELDS:
            self._told[name] = Number(value, step, at)
        elif name in self._values or self._room(name):
            self._values[name] = Number(value, step, at)

    def _room(self, name: str) -> bool:
        if len(self._values) < MOST_VALUES:
            return True
        self._complain(f"report: more than {MOST_VALUES} other values, {name} and more are ignored", "room")
        return False

    def _count_of_own(self) -> int | None:
        """Return the steps that this rank has finished."""
        watch = self.watch()
        recorder = watch.recorder if watch is not None else None
        return recorder.ended if recorder is not None else None

    def _loss(self, value: float, step: int | None, at: float, counted: int | None) -> None:
        last = self._told.get("loss")
        if last is not None and at > last.at:
            self._spacings.append(at - last.at)
        self._counted = counted
        if isfinite(value):
            self._bad = False
            return
        self._bad_losses += 1
        if not self._bad:
            self._bad = True
            self._bad_since = step if step is not None else counted

    def _count(self, tokens: Any, now: float) -> None:
        number, why = self._reader.read("tokens", tokens, None)
        if number is None or not isfinite(number):
            self._complain(f"report: tokens {why or 'is no number'}, ignored")
            return
        kept = self._tokens
        total = (kept[-1][1] if kept else 0.0) + number
        if len(kept) > 1 and now - kept[-2][0] < TOKENS_SPACING:
            kept.pop()
        kept.append((now, total))
        while len(kept) > 2 and now - kept[0][0] > TOKENS_WINDOW:
            kept.popleft()
        first, last = kept[0], kept[-1]
        if last[0] > first[0]:
            rate = (last[1] - first[1]) / (last[0] - first[0])
            self._told["tokens_per_second"] = Number(rate, self._step, now)

    def left(self, what: str, thread: int) -> None:
        """An activity of a thread has ended: validation and saving belong to no step, nor to the time of its tokens."""
        if sys.is_finalizing():  # a generator that was left in the middle: nothing can be imported any more
            return
        try:
            from ranktop.wire.activity import kind_of

            if not kind_of(what):
                return
            if self._tokens:
                self._tokens = deque([(_clock(), self._tokens[-1][1])])
            watch = self.watch()
            if watch is None or watch.recorder is None or watch.thread != thread:
                return
            from ranktop.agent.facts import capturing

            # An event that is asked for while a CUDA graph is captured would break the capture.
            if not capturing():
                watch.recorder.left_training()
        except Exception as error:
            self._complain(f"annotate: {type(error).__name__}, ignored")

    def _complain(self, text: str, about: str = "") -> None:
        """Say what is ignored, each thing (``about``, else the text) once, and no more than a few of them."""
        about = about or text
        if about not in self._said and len(self._said) < MOST_COMPLAINTS:
            from ranktop.wire.codec import clean

            self._said.add(about)
            say(clean(text)[:200])

    def collect(self) -> None:
        """Take what has arrived from a GPU. In a thread of the script: no other may ask for a CUDA event."""
        try:
            self._reader.collect()
        except Exception as error:
            self._complain(f"report: {type(error).__name__} while a value was read from the GPU, ignored")

    @property
    def waiting(self) -> bool:
        """Whether something is on its way from a GPU."""
        return self._reader.waiting

    # -- in the agent's thread ---------------------------------------------------------------------------------------

    def progress(self) -> Progress | None:
        """Return what is known now; None while nothing has been told."""
        at = self._at
        if at is None:
            return None
        from ranktop.wire.codec import clean
        from ranktop.wire.progress import Progress

        now, step = _clock(), self._step
        fields = dict(self._told)
        values = {clean(name)[:NAME_LENGTH]: told for name, told in dict(self._values).items()}
        values.pop("", None)
        every = {**fields, **values}
        spacings = sorted(self._spacings)
        return Progress(
            step=step,
            total_steps=self._total,
            **{name: told.value for name, told in fields.items() if isfinite(told.value)},
            values={name: told.value for name, told in values.items() if isfinite(told.value)},
            age=max(0.0, now - at),
            source=clean(self.source)[:NAME_LENGTH],
            steps={name: told.step for name, told in every.items() if told.step is not None and told.step != step},
            ages={name: max(0.0, now - told.at) for name, told in every.items() if told.at < at},
            counted=self._counted,
            every=spacings[len(spacings) // 2] if len(spacings) > 1 else None,
            not_finite={name: _odd(told.value) for name, told in every.items() if not isfinite(told.value)},
            bad_losses=self._bad_losses,
            bad_since=self._bad_since,
        )

    def activity(self, thread: int | None) -> str:
        """Return what a thread is in by the script's word; None: the main thread."""
        known = self.activities.get(thread if thread is not None else threading.main_thread().ident or 0)
        from ranktop.wire.codec import clean

        try:
            return clean(known[-1].what)[:NAME_LENGTH] if known else ""
        except IndexError:  # it has ended meanwhile
            return ""


def _odd(value: float) -> str:
    return "nan" if value != value else "inf" if value > 0 else "-inf"


current: Reports | None = None
"""What this process tells its agent; None while there is none."""


def compiling() -> bool:
    """Return whether ``torch.compile`` is reading the code that asks: it must see nothing that it can't compile."""
    # While another thread imports torch, it is there without its parts.
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())


def begin(watch: Callable[[], Watch | None]) -> Reports:
    """An agent starts: from now on something is kept."""
    global current
    current = Reports(watch)
    return current


def end(reports: Reports) -> None:
    """That agent ends."""
    global current
    if current is reports:
        reports.collect()
        current = None


def tell(
    source: str,
    *,
    step: Any = None,
    total_steps: Any = None,
    tokens: Any = None,
    **told: Any,
) -> None:
    """Tell as a trainer: ``source`` names it; the rest is as :func:`ranktop.agent.report` takes it."""
    if current is not None:
        current.tell(source, step, total_steps, told, tokens)


def _forked() -> None:
    """A forked child does not speak for its parent."""
    global current
    current = None


os.register_at_fork(after_in_child=_forked)
