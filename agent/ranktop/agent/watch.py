"""Follows the model of this process from the training thread: which root, which step, what memory.

Everything here runs inside the user's training loop. A failure is counted and swallowed, and after a few the agent
stops looking: a step is never lost to it.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ranktop.agent.facts import Facts, autocast_of, clock_of, device_of, differentiable, model_name
from ranktop.agent.roots import RootTracker
from ranktop.budget.terms import MOMENTS
from ranktop.probes.allocator import HostAllocator, open_allocator
from ranktop.probes.model import ModelProbe
from ranktop.probes.reading import AllocatorProbe, MomentReading, Resident
from ranktop.probes.steps import StepRecorder
from ranktop.probes.strategy import Seen, batch_of, detect

MAX_ERRORS: Final = 10
"""Failures in the training thread after which the agent takes its hooks away."""

RESURVEY_SECONDS: Final = 10.0
"""Seconds between two surveys that only a change of the batch or of a habit asks for."""

SETTLED_STEPS: Final = 2
"""Steps after which a process has loaded what it loads lazily."""

F = TypeVar("F", bound=Callable[..., None])


def _harmless(method: F) -> F:
    """Swallow and count what goes wrong inside the agent."""

    @functools.wraps(method)
    def guarded(self: Watch, *args: Any) -> None:
        if not self.enabled:
            return
        try:
            method(self, *args)
        except Exception as error:
            self.failed(error)

    return guarded  # type: ignore[return-value]


class _Differentiated:
    """Hook on an output tensor; the marker keeps torch from warning that it is not saved with the tensor."""

    __torch_unserializable__ = True

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self, grad: torch.Tensor) -> None:
        self._call()


class Watch:
    """The training thread's side of the agent."""

    def __init__(self, host_allocator: AllocatorProbe | None = None) -> None:
        self.enabled = True
        self.errors = 0
        self.last_error = ""
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
        self._roots = RootTracker(self)
        self._primary: weakref.ref[nn.Module] | None = None
        self._sizes: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._foreign: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._handles: list[Any] = []
        self._batch: tuple[int | None, int | None] = (None, None)
        self._autocast: str | None = None
        self._settled = False
        self._surveyed: tuple[object, ...] = ()
        self._survey_time = 0.0
        self._grad_ready = _Differentiated(self._output_differentiated)

    def install(self) -> None:
        """Put the hooks in place; torch has been imported."""
        self._roots.install()
        self._handles = [
            register_optimizer_step_pre_hook(self._optimizer_begin),
            register_optimizer_step_post_hook(self._optimizer_end),
        ]

    def remove(self) -> None:
        """Take every hook away."""
        self.enabled = False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._roots.remove()

    def follow(self, model: nn.Module | None, optimizers: Iterable[Optimizer]) -> None:
        """Watch what a script has named."""
        if model is not None:
            self._roots.add(model)
            self._become_primary(model)
        for optimizer in optimizers:
            self._know(optimizer)

    def failed(self, error: Exception) -> None:
        """Count a failure; the first is told, too many end the watching."""
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}"[:200]
        if self.errors == 1:
            print(f"ranktop: the agent met an error and trains on: {self.last_error}", file=sys.stderr)
        if self.errors >= MAX_ERRORS:
            self.remove()

    def close(self) -> None:
        """Finish the step in progress."""
        if self.recorder is not None:
            self.recorder.close()

    # -- forwards --------------------------------------------------------------------------------------------------

    @_harmless
    def root_begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A root module is about to run."""
        grad = torch.is_grad_enabled()
        if grad and not self._is_primary(module):
            self._consider(module)
        if not self._is_primary(module) or self._capturing():
            return
        recorder = self._ready()
        if grad and (recorder.count < 3 or recorder.reading):
            self._batch = batch_of(args, kwargs)
            self._autocast = autocast_of(self.device)
        if grad and self.model is not None and recorder.count < 3:
            self.model.refresh()
        if grad and recorder.count == SETTLED_STEPS and not self._settled:
            self._settle()
        if recorder.forward_begin(grad):
            self._survey(recorder)

    @_harmless
    def root_end(self, module: nn.Module, output: object) -> None:
        """A root module has returned."""
        recorder = self.recorder
        if recorder is None or not self._is_primary(module) or self._capturing():
            return
        grad = torch.is_grad_enabled()
        recorder.forward_end(grad)
        if grad and recorder.reading:
            for tensor in differentiable(output):
                tensor.register_hook(self._grad_ready)

    @_harmless
    def _output_differentiated(self) -> None:
        if self.recorder is not None and not self._capturing():
            self.recorder.backward_begin()

    # -- optimizers ------------------------------------------------------------------------------------------------

    def _optimizer_begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._stepping(optimizer)

    def _optimizer_end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._stepped(optimizer)

    @_harmless
    def _stepping(self, optimizer: Optimizer) -> None:
        if self._capturing():
            return
        self._know(optimizer)
        if self._primary is None or self._primary() is None:
            self._find_primary(optimizer)
        recorder = self.recorder
        if recorder is None or self._belongs_elsewhere(optimizer):
            return
        if self.model is not None and (recorder.reading or recorder.count < 3):
            self.model.refresh()
        recorder.optimizer_begin()

    @_harmless
    def _stepped(self, optimizer: Optimizer) -> None:
        recorder = self.recorder
        if recorder is None or self._belongs_elsewhere(optimizer) or self._capturing():
            return
        if self.model is not None and recorder.count < 3:
            self.model.refresh()
        recorder.optimizer_end()

    def _know(self, optimizer: Optimizer) -> None:
        if all(known() is not optimizer for known in self._optimizers):
            self._optimizers = [known for known in self._optimizers if known() is not None]
            self._optimizers.append(weakref.ref(optimizer))
            if self.model is not None:
                self.model.add_optimizer(optimizer)

    def _belongs_elsewhere(self, optimizer: Optimizer) -> bool:
        """Whether it updates another root's parameters (a GAN's discriminator, a second model)."""
        known = self._foreign.get(optimizer)
        if known is None:
            primary = self._primary() if self._primary is not None else None
            ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
            known = (
                primary is not None
                and not any(id(p) in ids for p in primary.parameters())
                and any(id(p) in ids for root in self._roots.roots() if root is not primary for p in root.parameters())
            )
            self._foreign[optimizer] = known
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
            # A parameter that ZeRO-3 has partitioned is empty, and says how large it is beside.
            size = self._sizes[module] = sum(
                getattr(p, "ds_numel", p.numel()) for p in module.parameters() if p.requires_grad
            )
        return size

    def _become_primary(self, module: nn.Module) -> None:
        self._primary = weakref.ref(module)
        self._foreign = weakref.WeakKeyDictionary()
        self.recorder = None
        self.model = None
        self._settled = False

    def _find_primary(self, optimizer: Optimizer) -> None:
        """No root has been called yet: hook the models inside the container that holds these parameters."""
        ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for root in self._roots.roots():
            if not self._roots.called(root) and any(id(p) in ids for p in root.parameters()):
                self._roots.descend(root)

    def _ready(self) -> StepRecorder:
        """Return the recorder, made when the primary root first runs: only then its device is certain."""
        if self.recorder is not None:
            return self.recorder
        root = self._primary() if self._primary is not None else None
        assert root is not None
        self.device = device_of(root)
        if self.device.type == "cuda" or self.allocator is None:
            self.allocator = open_allocator(self.device)
        self.model = ModelProbe(root, [o for known in self._optimizers if (o := known()) is not None], self.device)
        self.model.refresh(force=True)
        self.recorder = StepRecorder(self._read, clock_of(self.device))
        return self.recorder

    def _settle(self) -> None:
        """Take a host's baseline anew: the first steps load libraries lazily, and none of that is an activation."""
        self._settled = True
        if isinstance(self.allocator, HostAllocator) and self.model is not None:
            held = self.model.resident()
            sizes = (held.parameters, held.gradients, held.optimizer, held.buffers)
            self.allocator.mark_baseline(sum(size for size in sizes if size is not None))

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
        habits = (self._batch, recorder.accumulation, self._gradients_at(recorder), self._autocast)
        now = time.monotonic()
        due = self.facts is None or recorder.count in (1, 2) or walked
        if not due and (habits == self._surveyed or now - self._survey_time < RESURVEY_SECONDS):
            return
        root = self._primary() if self._primary is not None else None
        if root is None:
            return
        self._surveyed, self._survey_time = habits, now
        seen = Seen(
            micro_batch=self._batch[0],
            sequence_length=self._batch[1],
            accumulation=recorder.accumulation,
            gradients_at=self._gradients_at(recorder),
            autocast=self._autocast,
        )
        assert self.device is not None
        plan = detect(root, self.model.optimizers(), self.device, seen)
        facts = Facts(model=model_name(root), inventory=self.model.inventory(), plan=plan)
        if facts != self.facts:
            self.facts = facts

    @staticmethod
    def _gradients_at(recorder: StepRecorder) -> tuple[str, ...]:
        """Return the moments at which gradients were alive in the last step read; a habit of the script."""
        table = recorder.table
        if table is None:
            return ("backward_end", "step_end")
        return tuple(m for m in MOMENTS if m in table.moments and table.moments[m].resident.gradients)

    def _capturing(self) -> bool:
        """Whether a CUDA graph is being captured: then nothing of ours may touch the stream."""
        return self.device is not None and self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
