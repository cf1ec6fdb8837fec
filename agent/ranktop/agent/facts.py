"""What can be told of a root module by looking at it once: its device, its name, its precision, its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

import torch
from torch import nn

from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Plan
from ranktop.probes.steps import Clock, HostClock

_OUTPUTS: Final = 8
"""Tensors of the root's output whose gradient is awaited, at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What a survey found; a new object means that the card has changed."""

    model: str
    inventory: Inventory
    plan: Plan


def device_of(root: nn.Module) -> torch.device:
    """Return the device a model computes on: its parameters' GPU, else the current GPU when one is in use."""
    first: torch.device | None = None
    for parameter in root.parameters():
        if parameter.device.type == "cuda":
            return parameter.device
        first = first or parameter.device
    if torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return first if first is not None and first.type != "meta" else torch.device("cpu")


def clock_of(device: torch.device) -> Clock:
    """Return what times the phases on a device."""
    if device.type == "cuda":
        from ranktop.probes.cuda_clock import CudaClock

        return CudaClock()
    return HostClock()


def autocast_of(device: torch.device | None) -> str | None:
    """Return the dtype that autocast computes in now, by name; None when it is off."""
    kind = device.type if device is not None else "cpu"
    if not torch.is_autocast_enabled(kind):
        return None
    return str(torch.get_autocast_dtype(kind)).removeprefix("torch.")


def model_name(root: nn.Module) -> str:
    """Return the class name of the user's own model inside wrappers."""
    for _ in range(6):
        inner = next(
            (
                child
                for name in ("module", "_orig_mod", "_fsdp_wrapped_module")
                if isinstance(child := root._modules.get(name), nn.Module)
            ),
            None,
        )
        if inner is None:
            break
        root = inner
    name = type(root).__name__
    # fully_shard gives a module a class of its own, named after the original.
    return name.removeprefix("FSDP") if len(name) > len("FSDP") and hasattr(root, "unshard") else name


def differentiable(output: object) -> list[torch.Tensor]:
    """Return tensors of a module's output that will get a gradient: itself, or inside a tuple, dict or dataclass."""
    if isinstance(output, torch.Tensor):
        parts: Iterable[object] = (output,)
    elif isinstance(output, dict):
        parts = output.values()
    elif isinstance(output, (tuple, list)):
        parts = output
    elif dataclasses.is_dataclass(output):
        parts = vars(output).values()
    else:
        parts = ()
    found = [t for t in parts if isinstance(t, torch.Tensor) and t.requires_grad]
    return found[:_OUTPUTS]
