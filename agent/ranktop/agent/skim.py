"""The fast lane of the hooks: while steps are only counted, nothing else of the agent runs in the training thread.

Between two matrix products the caches hold the training loop's things, and Python that runs there costs ten times what
it costs in a loop of its own: about 2 microseconds a call. A followed step pays that a few times a second; the others
must not. So a hook that skims is one function, written out, that calls no other of this package; nothing that it makes
outlives it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any, Final

import torch
from torch import nn

from ranktop.probes.steps import StepRecorder

_NOTHING: Final = contextlib.nullcontext()

_grad: Final = torch.is_grad_enabled

_tracing: Final[Callable[[], bool]] = getattr(torch.compiler, "is_dynamo_compiling", torch.compiler.is_compiling)
"""True where ``torch.compile`` reads a hook's code, which must then hold nothing else. Asked first in each, for that
reader takes it for a constant and goes no further."""


class Skim:
    """What the hooks of one root and its optimizers look at."""

    __slots__ = ("optimizer", "optimizers", "recorder", "root", "thread")

    def __init__(self) -> None:
        self.recorder: StepRecorder | None = None
        """None while there is nothing to count."""
        self.root: Callable[[], nn.Module | None] = _none
        self.thread: int | None = None
        """The thread that trains."""
        self.optimizer: Callable[[], Any] = _none
        """The one that stepped last."""
        self.optimizers: dict[int, weakref.ref[Any]] = {}
        """Those whose last call ends a step, by identity."""

    def stop(self) -> None:
        """Count nothing until told what."""
        self.recorder = self.thread = None
        self.root = self.optimizer = _none
        self.optimizers = {}

    def know(self, optimizer: Any) -> None:
        """The last call of this optimizer ends a step."""
        self.optimizer = self.optimizers[id(optimizer)] = weakref.ref(optimizer)

    def is_known(self, optimizer: Any) -> bool:
        """Whether it is another one of those that do."""
        known = self.optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:
            return False
        self.optimizer = known
        return True


def _none() -> None:
    """Stand in for a weak reference to nothing."""


class _Hook:
    """A hook that a copied or pickled module does not carry along: there it becomes a call that does nothing.

    Without this, ``torch.save(model)`` would make a file that can only be loaded where this package is installed.
    """

    __slots__ = ("call", "skim")

    def __init__(self, call: Callable[..., None], skim: Skim) -> None:
        """``call`` is told of what ``skim`` leaves."""
        self.call = call
        self.skim = skim

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (_NOTHING, "__exit__")


class BeforeForward(_Hook):
    """A forward pre-hook of a module that may be a root."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the step before, and skim the one that begins unless it is time to follow one."""
        if _tracing():
            return
        skim = self.skim
        recorder = skim.recorder
        if (
            recorder is not None
            and recorder.skimming
            and skim.root() is module
            and get_ident() == skim.thread
            and _grad()
        ):
            if not recorder.fresh:  # a second micro-batch of the same step
                recorder.phase = "forward"
                return
            recorder.fresh = False
            if recorder.uncounted:
                recorder.uncounted = False
                recorder.count += 1
            if perf_counter() < recorder.next_reading:
                recorder.phase = "forward"
                return
            recorder.follow()
        self.call(module, args, kwargs)


class AfterForward(_Hook):
    """A forward hook of a module that may be a root."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        """A root has returned."""
        if _tracing():
            return
        skim = self.skim
        recorder = skim.recorder
        # Not which thread: before a forward that needs gradients in another one, skimming has ended.
        if recorder is not None and recorder.skimming and skim.root() is module and _grad():
            recorder.phase = "backward"
        else:
            self.call(module, args, output)


def before_step(skim: Skim, call: Callable[[Any], None]) -> Callable[[Any, Any, Any], None]:
    """Return an optimizer's step pre-hook; ``call`` is told of what ``skim`` leaves."""

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if _tracing():
            return
        recorder = skim.recorder
        if (
            recorder is not None
            and recorder.skimming
            and (skim.optimizer() is optimizer or skim.is_known(optimizer))
            and get_ident() == skim.thread
        ):
            recorder.phase = "optimizer"
        else:
            call(optimizer)

    return hook


def after_step(skim: Skim, call: Callable[[Any], None]) -> Callable[[Any, Any, Any], None]:
    """Return an optimizer's step post-hook; ``call`` is told of what ``skim`` leaves."""

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if _tracing():
            return
        recorder = skim.recorder
        if (
            recorder is not None
            and recorder.skimming
            and (skim.optimizer() is optimizer or skim.is_known(optimizer))
            and get_ident() == skim.thread
        ):
            if not recorder.fresh:  # else another one of the same step, or of none
                recorder.fresh = recorder.uncounted = True
            recorder.last_end = perf_counter()
            recorder.phase = "data"
        else:
            call(optimizer)

    return hook
