"""What can be told of a root module by looking at it once: its device, its name, its precision, its output."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from typing import Final

import torch
from torch import nn

from ranktop.agent.trainers import Told
from ranktop.agent.trainers.weigh import weigh
from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Plan
from ranktop.budget.terms import MOMENTS
from ranktop.probes.architecture import Outputs, with_architecture, wrapped
from ranktop.probes.clock import Clock, HostClock
from ranktop.probes.model import ModelProbe
from ranktop.probes.reading import StepTable
from ranktop.probes.strategy import Seen, detect

_OUTPUTS: Final = 8
"""Tensors of the root's output whose gradient is awaited, at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What a survey found; a new object means that the card has changed."""

    model: str
    inventory: Inventory
    plan: Plan
    trainer: str = ""
    """Which trainer runs the loop, with its version; empty for the script's own loop."""
    notes: tuple[str, ...] = ()
    """Where what a trainer says and what was seen are different."""


def survey(
    root: nn.Module,
    model: ModelProbe,
    device: torch.device,
    seen: Seen,
    outputs: Outputs | None,
    said: Told | None,
    largest: int,
) -> Facts:
    """Look at a model and its strategy once; ``seen`` and ``outputs`` are what hooks saw, ``said`` what a trainer says.

    ``largest`` is the largest micro-batch seen so far, 0 for none.
    """
    plan = with_architecture(detect(root, model.optimizers(), device, seen), root, outputs)
    plan, notes = weigh(plan, said, largest)
    trainer = said.trainer if said is not None else ""
    return Facts(model=model_name(root), inventory=model.inventory(), plan=plan, trainer=trainer, notes=notes)


def device_of(root: nn.Module) -> torch.device:
    """Return the device a model computes on: its parameters' GPU, else the current GPU when one is in use."""
    first: torch.device | None = None
    # Tensors of FakeTensorMode say that they are on a GPU where there is none.
    cuda = torch.cuda.is_initialized()
    for parameter in root.parameters():
        if cuda and parameter.device.type == "cuda":
            return parameter.device
        first = first or parameter.device
    if cuda:
        return torch.device("cuda", torch.cuda.current_device())
    return first if first is not None and first.type not in ("meta", "cuda") else torch.device("cpu")


def clock_of(device: torch.device) -> Clock:
    """Return what times the phases on a device."""
    if device.type == "cuda":
        from ranktop.probes.cuda_clock import CudaClock

        return CudaClock(device)
    return HostClock()


def autocast_of(device: torch.device | None) -> str | None:
    """Return the dtype that autocast computes in now, by name; None when it is off."""
    kind = device.type if device is not None else "cpu"
    if not torch.is_autocast_enabled(kind):
        return None
    return str(torch.get_autocast_dtype(kind)).removeprefix("torch.")


def model_name(root: nn.Module) -> str:
    """Return the class name of the user's own model inside wrappers."""
    *_, root = wrapped(root)
    name = type(root).__name__
    # fully_shard gives a module a class of its own, named after the original.
    return name.removeprefix("FSDP") if len(name) > len("FSDP") and hasattr(root, "unshard") else name


def wraps(root: nn.Module, model: nn.Module) -> bool:
    """Return whether ``root`` is a wrapper (DDP, FSDP1, an engine, torch.compile) around ``model``, not itself."""
    return root is not model and any(inside is model for inside in wrapped(root))


def capturing() -> bool:
    """Return whether a CUDA graph is being captured: then nothing of ours may touch the stream."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def on_one_device(root: nn.Module) -> bool:
    """Return whether all parameters lie on one device, so that one autograd thread makes all their gradients."""
    return len({parameter.device for parameter in root.parameters()}) <= 1


def transformed(root: nn.Module) -> bool:
    """Return whether a forward is no training step as it stands: being traced, transformed or recomputed.

    In a function transform (``torch.func``) tensors are wrapped, under ``torch.jit.trace`` looking at a size warns,
    and a checkpointed forward runs again within backward.
    """
    if _LEVEL() is not None or _TRACING() is not None or _BACKWARD() != -1:
        return True
    first = _first_parameter(root)
    # Parameters that were computed (``functional_call``) stand in for the model's own; FSDP1's views do so too.
    return first is not None and not first.is_leaf and "_fsdp_wrapped_module" not in root._modules


def _first_parameter(module: nn.Module) -> torch.Tensor | None:
    """Return ``next(module.parameters(), None)``, ten times faster: this is asked at every forward."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        if child is not None:
            found = _first_parameter(child)
            if found is not None:
                return found
    return None


def gradients_at(table: StepTable | None) -> tuple[str, ...]:
    """Return the moments at which gradients were alive in the last step read; a habit of the script."""
    if table is None:
        return ("backward_end", "step_end")
    return tuple(m for m in MOMENTS if m in table.moments and table.moments[m].resident.gradients)


def unsharded_at(table: StepTable | None) -> tuple[str, ...]:
    """Return the moments of a step at which there were other gradients than it ended with.

    Such are whole gradients that wait to be reduced and sharded, or that lie beside DDP's buckets (``no_sync``).
    """
    last = table.moments.get("backward_end") if table is not None else None
    if table is None or last is None or not last.resident.gradients:
        return ()
    final = last.resident
    held = {moment: table.moments[moment].resident for moment in MOMENTS if moment in table.moments}
    return tuple(
        moment
        for moment, now in held.items()
        if now.gradients and (now.gradients != final.gradients or (now.buffers or 0) > (final.buffers or 0))
    )


def when_backward_ends(call: Callable[[], None]) -> None:
    """Have the autograd engine call back at the end of the backward that is running, as DDP and FSDP do.

    After what they have queued: only then gradients are where the optimizer finds them.
    """
    queue = getattr(getattr(torch.autograd.Variable, "_execution_engine", None), "queue_callback", None)
    if queue is not None:
        queue(lambda: queue(call))


def backward_is_compiled() -> bool:
    """Return whether compiled autograd is in use: a hook on an output would make it compile once more."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return False
    if getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False):
        return True
    return bool(dynamo.config.compiled_autograd or dynamo.utils.counters.get("compiled_autograd"))


def _private(owner: object, name: str, otherwise: object) -> Callable[[], object]:
    """Return a function of torch's that is not public, or one that gives ``otherwise`` where it is missing."""
    found: Callable[[], object] = getattr(owner, name, lambda: otherwise)
    return found


_LEVEL: Final = _private(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
_TRACING: Final = _private(torch._C, "_get_tracing_state", None)
_BACKWARD: Final = _private(torch._C, "_current_graph_task_id", -1)


def differentiable(output: object) -> list[torch.Tensor]:
    """Return tensors of a module's output that will get a gradient: itself, or inside tuples, dicts, dataclasses.

    Leaves are left out: a hook on a parameter that a module returns would stay there for good.
    """
    found: list[torch.Tensor] = []
    _differentiable(output, found, 0)
    return found[:_OUTPUTS]


def _differentiable(output: object, found: list[torch.Tensor], depth: int) -> None:
    if isinstance(output, torch.Tensor):
        if output.requires_grad and not output.is_leaf:
            found.append(output)
        return
    parts: Iterable[object] = ()
    if isinstance(output, dict):
        parts = output.values()
    elif isinstance(output, (tuple, list)):
        parts = output
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        parts = [getattr(output, field.name, None) for field in dataclasses.fields(output)]
    if depth < 3:
        for part in parts:
            if len(found) >= _OUTPUTS:
                return
            _differentiable(part, found, depth + 1)
