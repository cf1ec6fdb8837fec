"""Follows the model of this process from the training thread: which root, which step, what memory.

Everything here runs inside the user's training loop. A failure is counted and swallowed, and after a few the agent
stops looking: a step is never lost to it.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ranktop.agent.facts import (
    Facts,
    autocast_of,
    backward_is_compiled,
    capturing,
    clock_of,
    device_of,
    differentiable,
    gradients_at,
    on_one_device,
    survey,
    transformed,
    unsharded_at,
    when_backward_ends,
    wraps,
)
from ranktop.agent.harmless import OutputHook, harmless
from ranktop.agent.roots import ByIdentity, RootTracker
from ranktop.agent.runner import one_line
from ranktop.agent.say import say
from ranktop.agent.skim import Skim, after_step, before_step
from ranktop.agent.trainers import told
from ranktop.probes.allocator import HostAllocator, open_allocator
from ranktop.probes.architecture import Holding, Outputs, output_sizes
from ranktop.probes.model import ModelProbe
from ranktop.probes.reading import AllocatorProbe, MomentReading, Resident
from ranktop.probes.steps import StepRecorder
from ranktop.probes.strategy import Seen, batch_of, tokens_of

MAX_ERRORS: Final = 10
"""Failures in the training thread after which the agent takes its hooks away."""

RESURVEY_SECONDS: Final = 10.0
"""Seconds between two surveys that only a change of the batch or of a habit asks for."""

SURVEY_SHARE: Final = 0.001
"""Largest part of the time that surveys may take for which there is no other reason than that it is time for one."""

SETTLED_STEPS: Final = 2
"""Steps after which a process has loaded what it loads lazily."""


class Watch:
    """The training thread's side of the agent."""

    def __init__(self, host_allocator: AllocatorProbe | None = None) -> None:
        self.enabled = True
        self.errors = 0
        self.last_error = ""
        self.gave_up = False
        """Whether it stopped for a reason (``last_error``), not because the process ends."""
        self.device: torch.device | None = None
        """The device that the watched model computes on; None until a model has run."""
        self.recorder: StepRecorder | None = None
        self.model: ModelProbe | None = None
        self.facts: Facts | None = None
        self.resident: Resident | None = None
        """What the model held at the last reading. Only the training thread may look at tensors: an attribute like
        ``grad`` that is read while that thread drops it crashes the interpreter."""
        self.allocator = host_allocator
        """Given before a device is known, so that its baseline is taken early; replaced for a GPU."""
        self._skim = Skim()
        self.roots = RootTracker(self, self._skim)
        self._primary: weakref.ref[nn.Module] | None = None
        self.thread: int | None = None
        """The thread that trains the watched model. Another one's backward changes gradients at any time, so nothing
        that it trains is looked at."""
        self._running = False
        """Whether the forward in progress is one that counts."""
        self._one_device = True
        self._sizes: ByIdentity[int] = ByIdentity()
        self._optimizers: list[tuple[weakref.ref[Optimizer], int | None]] = []
        """Each with the thread that steps it; None where a script has named it."""
        self._foreign: ByIdentity[bool] = ByIdentity()
        self._searched = self._search_at = 0
        self._handles: list[Any] = []
        self._batch: tuple[int | None, int | None] = (None, None)
        self._largest = 0
        self._autocast: str | None = None
        self._outputs: Outputs | None = None
        self._holding = Holding()
        self._settled = False
        self._surveyed: tuple[object, ...] = ()
        self._survey_time = self._survey_again = 0.0
        self._grad_ready = OutputHook(self._output_differentiated)

    def install(self) -> None:
        """Put the hooks in place; torch has been imported."""
        self.roots.install()
        self._handles = [
            register_optimizer_step_pre_hook(before_step(self._skim, self._stepping)),
            register_optimizer_step_post_hook(after_step(self._skim, self._stepped)),
        ]

    def remove(self) -> None:
        """Take every hook away."""
        self.enabled = False
        self._skim.stop()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.roots.remove()

    def follow(self, model: nn.Module | None, optimizers: Iterable[Optimizer]) -> None:
        """Watch what a script has named, or what has been wrapped around it: only that is called."""
        if model is not None:
            model = next((root for root in self.roots.roots() if wraps(root, model)), model)
            self.roots.add(model)
            if not self._is_primary(model):
                self._become_primary(model)
        for optimizer in optimizers:
            self._know(optimizer, None)

    def failed(self, error: Exception) -> None:
        """Count a failure; the first is told, too many end the watching."""
        self.errors += 1
        self.last_error = one_line(error)[:200]
        if self.errors == 1:
            say(f"the agent met an error and trains on: {self.last_error}")
        if self.errors >= MAX_ERRORS:
            self.gave_up = True
            self.remove()

    def close(self) -> None:
        """Finish the step in progress."""
        if self.recorder is not None:
            self.recorder.close()

    # -- forwards --------------------------------------------------------------------------------------------------

    @harmless
    def root_begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A root module is about to run."""
        watched = self._is_primary(module)
        self._running &= not watched
        if capturing() or transformed(module):
            return
        grad = torch.is_grad_enabled()
        if grad and not watched:
            self._consider(module)
            watched = self._is_primary(module)
        if not watched or self._elsewhere(grad):
            return
        recorder = self.recorder or self._ready()
        self._skim.thread = self.thread
        self._running = True
        if grad and (recorder.count < 3 or recorder.reading):
            self._batch = batch_of(args, kwargs)
            self._largest = max(self._largest, self._batch[0] or 0)
            self._autocast = autocast_of(self.device)
        if grad and recorder.count < 3:
            self._holding.look()
        if grad and self.model is not None and recorder.count < 3:
            self.model.refresh()
        if grad and recorder.count == SETTLED_STEPS and not self._settled:
            self._settle()
        begins = recorder.forward_begin(grad)
        if grad and recorder.following:
            recorder.add_tokens(tokens_of(args, kwargs))
        if begins:
            self._survey(recorder)

    @harmless
    def root_end(self, module: nn.Module, output: object) -> None:
        """A root module has returned."""
        recorder = self.recorder
        if recorder is None or not self._running or not self._is_primary(module) or capturing():
            return
        if self.thread not in (None, threading.get_ident()):
            return
        self._running = False
        grad = torch.is_grad_enabled()
        recorder.forward_end(grad)
        if grad and (recorder.reading or recorder.count < 3):
            found = differentiable(output)
            self._outputs = output_sizes(found, output)
            if recorder.count < SETTLED_STEPS:
                self._holding.returned(found, output)
            if recorder.reading and self._one_device and not backward_is_compiled():
                for tensor in found:
                    tensor.register_hook(self._grad_ready)

    @harmless
    def _output_differentiated(self) -> None:
        if self.recorder is not None and not capturing():
            self.recorder.backward_begin()
            when_backward_ends(self._backward_ended)

    @harmless
    def _backward_ended(self) -> None:
        if self.recorder is not None and not capturing():
            self.recorder.backward_end()

    def _elsewhere(self, grad: bool) -> bool:
        """Whether the watched model runs in another thread than the one that trains it.

        When that one is still there, threads share the model, and its gradients can't be looked at any more.
        """
        thread = threading.get_ident()
        if self.thread is None and grad:
            self.thread = thread
        if self.thread in (None, thread):
            return False
        if grad and self.thread in sys._current_frames():
            self.last_error = "several threads train the model at the same time"
            self.enabled, self.gave_up = False, True
        elif grad:
            self.thread = thread
            return False
        return True

    # -- optimizers ------------------------------------------------------------------------------------------------

    @harmless
    def _stepping(self, optimizer: Optimizer) -> None:
        if capturing() or torch.compiler.is_compiling() or self.thread not in (None, threading.get_ident()):
            return
        self._know(optimizer, threading.get_ident())
        recorder = self.recorder
        if recorder is None or self._belongs_elsewhere(optimizer):
            return
        if self.model is not None and recorder.count < 3:  # later on the look at the step's begin will do
            self.model.refresh()
        recorder.optimizer_begin()

    @harmless
    def _stepped(self, optimizer: Optimizer) -> None:
        if torch.compiler.is_compiling():
            return
        if self._primary is None or self._primary() is None:
            self._find_primary(optimizer)  # not before: an optimizer may run the forward itself
        recorder = self.recorder
        if recorder is None or capturing() or self.thread not in (None, threading.get_ident()):
            return
        if self._belongs_elsewhere(optimizer):
            return
        if self.model is not None and recorder.count < 3:
            self.model.refresh()
        recorder.optimizer_end()
        self._skim.know(optimizer)

    def _know(self, optimizer: Optimizer, thread: int | None) -> None:
        if all(known() is not optimizer for known, _ in self._optimizers):
            self._optimizers = [(known, by) for known, by in self._optimizers if known() is not None]
            self._optimizers.append((weakref.ref(optimizer), thread))
            if self.model is not None:
                self.model.add_optimizer(optimizer)

    def _own_optimizers(self) -> list[Optimizer]:
        """Return the optimizers that this thread steps."""
        here = (None, threading.get_ident())
        return [optimizer for known, by in self._optimizers if by in here and (optimizer := known()) is not None]

    def _belongs_elsewhere(self, optimizer: Optimizer) -> bool:
        """Whether it updates another root's parameters (a GAN's discriminator, a second model)."""
        known = self._foreign.get(optimizer)
        if known is None:
            primary = self._primary() if self._primary is not None else None
            ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
            known = (
                primary is not None
                and not any(id(p) in ids for p in primary.parameters())
                and any(id(p) in ids for root in self.roots.roots() if root is not primary for p in root.parameters())
            )
            self._foreign.set(optimizer, known)
        return known

    # -- which root ------------------------------------------------------------------------------------------------

    def _is_primary(self, module: nn.Module) -> bool:
        return self._primary is not None and self._primary() is module

    def _consider(self, module: nn.Module) -> None:
        """Watch this root instead when it trains more than the present one."""
        size = self._size(module)
        if size == 0:
            return
        present = self._primary() if self._primary is not None else None
        if present is None or (self._size(present) < size):
            self._become_primary(module)

    def _size(self, module: nn.Module) -> int:
        size = self._sizes.get(module)
        if size is None:
            parameters = list(module.parameters())
            if any(is_lazy(p) for p in parameters):
                return 0
            # A parameter that ZeRO-3 has partitioned is empty, and says how large it is beside.
            size = sum(getattr(p, "ds_numel", p.numel()) for p in parameters if p.requires_grad)
            self._sizes.set(module, size)
        return size

    def _become_primary(self, module: nn.Module) -> None:
        self._primary = weakref.ref(module)
        self._foreign = ByIdentity()
        self.thread = None
        self._skim.stop()
        self.recorder = None
        self.model = None
        self._settled, self._largest = False, 0

    def _find_primary(self, optimizer: Optimizer) -> None:
        """No root has been called yet: hook the models inside the container that holds these parameters.

        A script that calls no module at all must not pay for the search at every step.
        """
        self._searched += 1
        if self._searched < self._search_at:
            return
        self._search_at = 2 * self._searched
        ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for root in self.roots.roots():
            if not self.roots.called(root) and any(id(p) in ids for p in root.parameters()):
                self.roots.descend(root)

    def _ready(self) -> StepRecorder:
        """Make the recorder, when the primary root first runs: only then its device is certain."""
        root = self._primary() if self._primary is not None else None
        assert root is not None
        self.device = device_of(root)
        if self.device.type == "cuda" or self.allocator is None:
            self.allocator = open_allocator(self.device)
        self.model = ModelProbe(root, self._own_optimizers(), self.device)
        self.model.refresh(force=True)
        self._one_device = on_one_device(root)
        self.recorder = self._skim.recorder = StepRecorder(self._read, clock_of(self.device))
        assert self._primary is not None
        self._skim.root = self._primary
        return self.recorder

    def _settle(self) -> None:
        """Take a host's baseline anew: the first steps load libraries lazily, and none of that is an activation."""
        self._settled = True
        if isinstance(self.allocator, HostAllocator) and self.model is not None:
            held = self.model.resident()
            sizes = (held.parameters, held.gradients, held.optimizer, held.buffers)
            self.allocator.mark_baseline(sum(size for size in sizes if size is not None) + (self._holding.held or 0))

    # -- memory ----------------------------------------------------------------------------------------------------

    def _read(self) -> MomentReading | None:
        if self.allocator is None or self.model is None:
            return None
        allocated, reserved = self.allocator.quick()
        self.resident = self.model.resident()
        return MomentReading(allocated=allocated, reserved=reserved, resident=self.resident)

    def _survey(self, recorder: StepRecorder) -> None:
        """Tell what the model and its strategy are, whenever that may have changed."""
        if self.model is None:
            return
        walked = recorder.reading and self.model.refresh()
        said = told()
        now = time.monotonic()
        again = walked and (self.model.changed or now >= self._survey_again)
        due = self.facts is None or recorder.count in (1, 2) or again
        if not due and now - self._survey_time < RESURVEY_SECONDS:
            return
        seen = Seen(
            micro_batch=self._batch[0],
            sequence_length=self._batch[1],
            accumulation=recorder.accumulation,
            gradients_at=gradients_at(recorder.table),
            autocast=self._autocast,
            unsharded_at=unsharded_at(recorder.table),
        )
        habits = (said, seen, self._outputs, self._holding.held)
        root = self._primary() if self._primary is not None else None
        if root is None or (not due and habits == self._surveyed):
            return
        self._surveyed, self._survey_time = habits, now
        assert self.device is not None
        outputs = replace(self._outputs, held=self._holding.held) if self._outputs is not None else None
        began = time.thread_time()
        facts = survey(root, self.model, self.device, seen, outputs, said, self._largest)
        self._survey_again = now + (time.thread_time() - began) / SURVEY_SHARE
        if facts != self.facts:
            self.facts = facts
