"""The fast lane of the hooks: while steps are only counted, nothing else of the agent runs in the training thread.

Between two matrix products the caches hold the training loop's things, and Python that runs there costs ten times what
it costs in a loop of its own. A followed step pays that a few times a second; the others must not.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Any, Final

import torch
from torch import nn

from ranktop.probes.steps import StepRecorder

_grad: Final = torch.is_grad_enabled


class Skim:
    """Answers the hooks of one root and its optimizers. Each method returns True when nothing else is to be done."""

    __slots__ = ("optimizers", "recorder", "root", "thread")

    def __init__(self) -> None:
        self.recorder: StepRecorder | None = None
        """None while there is nothing to count."""
        self.root: weakref.ref[nn.Module] | None = None
        self.thread: int | None = None
        """The thread that trains."""
        self.optimizers: dict[int, weakref.ref[Any]] = {}
        """Those whose last call ends a step, by identity."""

    def stop(self) -> None:
        """Count nothing until told what."""
        self.recorder = self.root = self.thread = None
        self.optimizers = {}

    def begin(self, module: nn.Module) -> bool:
        """A root is about to run."""
        recorder = self.recorder
        if recorder is None or not recorder.skimming or not self._mine(module):
            return False
        return recorder.skim_forward()

    def end(self, module: nn.Module) -> bool:
        """A root has returned."""
        recorder = self.recorder
        if recorder is None or not recorder.skimming or not self._mine(module):
            return False
        recorder.phase = "backward"
        return True

    def optimizer_begin(self, optimizer: Any) -> bool:
        """An optimizer is about to step."""
        recorder = self.recorder
        if recorder is None or not recorder.skimming or not self._known(optimizer):
            return False
        recorder.phase = "optimizer"
        return True

    def optimizer_end(self, optimizer: Any) -> bool:
        """An optimizer has stepped."""
        recorder = self.recorder
        if recorder is None or not recorder.skimming or not self._known(optimizer):
            return False
        recorder.skim_optimizer_end()
        return True

    def _mine(self, module: nn.Module) -> bool:
        root = self.root
        return root is not None and root() is module and get_ident() == self.thread and _grad()

    def _known(self, optimizer: Any) -> bool:
        known = self.optimizers.get(id(optimizer))
        return known is not None and known() is optimizer and get_ident() == self.thread
