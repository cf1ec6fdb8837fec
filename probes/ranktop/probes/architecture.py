"""What modules and outputs show of a model's architecture beyond the shapes of its parameters."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn

from ranktop.budget.plan import Forward, Plan

_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads", "heads", "nhead")
"""What configs and attention modules call the number of heads."""

_IMPLEMENTATIONS: Final = {"eager": "eager", "sdpa": "sdpa", "flash_attention_2": "flash", "flash_attention_3": "flash"}
"""transformers' ``_attn_implementation`` -> ``Plan.attention``."""


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
    inside = None if outputs is None else any(dims == 0 for dims, _ in outputs.sizes)
    seen = Forward(
        output_bytes=size,
        loss_inside=inside,
        cache_bytes=0 if outputs is None else outputs.cache,
        held_bytes=None if outputs is None else outputs.held,
    )
    try:
        config, heads, dropout = _config(root), heads_of(root), dropout_of(root)
    except Exception as error:  # a user's attribute may do anything
        notes = (*plan.notes, f"could not tell the architecture: {type(error).__name__}: {error}"[:200])
        return replace(plan, forward=seen, notes=notes)
    forward = replace(seen, heads=heads, dropout=dropout)
    attention = _IMPLEMENTATIONS.get(str(getattr(config, "_attn_implementation", "")), plan.attention)
    hugging_face = type(config).__module__.startswith("transformers.")
    loss = "hf" if hugging_face and inside else plan.loss
    return replace(plan, forward=forward, attention=attention, loss=loss)


def output_sizes(differentiable: Iterable[torch.Tensor], output: object = None) -> Outputs:
    """Return what is kept of outputs instead of the tensors; ``output`` is what the root has returned."""
    return Outputs(tuple((tensor.dim(), _bytes(tensor)) for tensor in differentiable), sum(map(_bytes, cached(output))))


def cached(output: object) -> list[torch.Tensor]:
    """Return the tensors of transformers' key/value cache in an output (``use_cache``)."""
    try:
        layers = getattr(getattr(output, "past_key_values", None), "layers", None) or ()
        kept = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
        return [tensor for tensor in kept if isinstance(tensor, torch.Tensor)]
    except Exception:  # a user's output may do anything
        return []


class Holding:
    """Looks whether a script still holds its last outputs when the next forward begins, without holding them itself."""

    def __init__(self) -> None:
        self._outputs: list[tuple[weakref.ref[torch.Tensor], int]] = []

    def returned(self, differentiable: Iterable[torch.Tensor], output: object) -> None:
        """Note what a root has returned."""
        self._outputs = [(weakref.ref(tensor), _bytes(tensor)) for tensor in (*differentiable, *cached(output))]

    def left(self) -> int | None:
        """Return the bytes that are still there, once; None when nothing was noted."""
        outputs, self._outputs = self._outputs, []
        return sum(size for ref, size in outputs if ref() is not None) if outputs else None


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
    return max((float(m.p) for m in root.modules() if isinstance(m, nn.Dropout) and m.training), default=0.0)


def _config(root: nn.Module) -> Any:
    return next((c for module in _wrapped(root) if (c := getattr(module, "config", None)) is not None), None)


def _wrapped(root: nn.Module) -> Iterator[nn.Module]:
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
