"""What modules and outputs show of a model's architecture beyond the shapes of its parameters."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn

from ranktop.budget.plan import Forward, Plan
from ranktop.probes.adapters import is_adapter_dropout, lora_of

_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads", "heads", "nhead")
"""What configs and attention modules call the number of heads."""

_IMPLEMENTATIONS: Final = {"eager": "eager", "sdpa": "sdpa", "flash_attention_2": "flash", "flash_attention_3": "flash"}
"""transformers' ``_attn_implementation`` -> ``Plan.attention``."""


_DECORATORS: Final = 8
"""Decorators of a ``forward`` that are looked through, at most."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What is kept of a forward's outputs instead of the tensors."""

    sizes: tuple[tuple[int, int], ...] = ()
    """(dimensions, bytes) of every output that gets a gradient."""
    cache: int = 0
    """Bytes of a key/value cache among them."""
    held: int | None = None
    """Bytes of all these that were still there when the next forward began; None = not seen yet."""


def with_architecture(plan: Plan, root: nn.Module, outputs: Outputs | None) -> Plan:
    """Return the plan with what the modules and the last outputs tell; ``outputs`` None = none was seen.

    A loss among the outputs, and transformers' habit of upcasting in it, decide ``Plan.loss``.
    """
    size = None if outputs is None else sum(size for _, size in outputs.sizes)
    has_loss = None if outputs is None else any(dims == 0 for dims, _ in outputs.sizes)
    seen = Forward(
        output_bytes=size,
        loss_inside=has_loss,
        cache_bytes=0 if outputs is None else outputs.cache,
        held_bytes=None if outputs is None else outputs.held,
    )
    try:
        config, heads, dropout = _config(root), heads_of(root), dropout_of(root)
        inside = None if plan.precision.autocast else autocast_inside(root)
        lora, why = lora_of(root)
    except Exception as error:  # a user's attribute may do anything
        notes = (*plan.notes, f"could not tell the architecture: {type(error).__name__}: {error}"[:200])
        return replace(plan, forward=seen, notes=notes)
    forward = replace(seen, heads=heads, dropout=dropout, autocast_inside=inside is not None)
    if inside is not None:
        plan = replace(plan, precision=replace(plan.precision, autocast=inside))
    attention = _IMPLEMENTATIONS.get(str(getattr(config, "_attn_implementation", "")), plan.attention)
    hugging_face = type(config).__module__.startswith("transformers.")
    loss = "hf" if hugging_face and has_loss else plan.loss
    notes = (*plan.notes, f"no rule for the activations of {why}") if why else plan.notes
    return replace(plan, forward=forward, attention=attention, loss=loss, lora=lora, notes=notes)


def output_sizes(differentiable: Iterable[torch.Tensor], output: object = None) -> Outputs:
    """Return what is kept of outputs instead of the tensors; ``output`` is what the root has returned."""
    return Outputs(tuple((tensor.dim(), _bytes(tensor)) for tensor in differentiable), sum(map(_bytes, cached(output))))


def cached(output: object) -> list[torch.Tensor]:
    """Return the tensors of transformers' key/value cache in an output (``use_cache``).

    Newer versions call it ``cache``, and warn the user about whoever asks for its old name.
    """
    try:
        own = vars(output) if hasattr(output, "__dict__") else {}
        layers = getattr(own.get("cache", own.get("past_key_values")), "layers", None) or ()
        kept = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
        return [tensor for tensor in kept if isinstance(tensor, torch.Tensor)]
    except Exception:  # a user's output may do anything
        return []


class Holding:
    """Looks whether a script still holds its last outputs when the next forward begins, without holding them itself."""

    def __init__(self) -> None:
        self._outputs: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self.held: int | None = None
        """Bytes that were still there when somebody looked; None before."""

    def returned(self, differentiable: Iterable[torch.Tensor], output: object) -> None:
        """Note what a root has returned."""
        self._outputs = [(weakref.ref(tensor), _bytes(tensor)) for tensor in (*differentiable, *cached(output))]

    def look(self) -> None:
        """Count what is still there of what was noted last, once."""
        outputs, self._outputs = self._outputs, []
        if outputs:
            self.held = sum(size for ref, size in outputs if ref() is not None)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def heads_of(root: nn.Module) -> int | None:
    """Return the number of attention heads: by the config, else the one number that attention modules agree on."""
    told = _first_int(_config(root))
    if told is not None:
        return told
    found = {number for module in root.modules() if (number := _first_int(module)) is not None}
    return found.pop() if len(found) == 1 else None


def dropout_of(root: nn.Module) -> float:
    """Return the largest probability among the dropout modules that are switched on."""
    return max(
        (
            float(module.p)
            for name, module in root.named_modules()
            if isinstance(module, nn.Dropout) and module.training and not is_adapter_dropout(name)
        ),
        default=0.0,
    )


def autocast_inside(root: nn.Module) -> str | None:
    """Return the dtype of the autocast that a module's ``forward`` was decorated with; None without one.

    Accelerate (and transformers' Trainer through it) puts such a forward on the instance, so that autocast is off
    again in every hook around it. Source: accelerate/accelerator.py ``prepare_model``,
    torch/amp/autocast_mode.py ``autocast_decorator``.
    """
    for module in wrapped(root):
        call = module.__dict__.get("forward")
        for _ in range(_DECORATORS):
            call = getattr(call, "__func__", call)
            for cell in getattr(call, "__closure__", None) or ():
                found = cell.cell_contents
                if isinstance(found, torch.autocast) and found._enabled:
                    return str(found.fast_dtype).removeprefix("torch.")
            call = getattr(call, "__wrapped__", None)
    return None


def _config(root: nn.Module) -> Any:
    return next((c for module in wrapped(root) if (c := getattr(module, "config", None)) is not None), None)


def wrapped(root: nn.Module) -> Iterator[nn.Module]:
    """Yield a root and what wrappers hold inside it (DDP, FSDP1, torch.compile)."""
    seen: nn.Module | None = root
    for _ in range(6):
        if seen is None:
            return
        yield seen
        inside = (seen._modules.get(name) for name in ("module", "_orig_mod", "_fsdp_wrapped_module"))
        seen = next((module for module in inside if isinstance(module, nn.Module)), None)


def _first_int(holder: object) -> int | None:
    for name in _HEADS:
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
