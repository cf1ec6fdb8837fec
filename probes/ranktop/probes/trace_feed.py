"""What a traced model is fed with, and the scalar that backward starts from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F

from ranktop.budget.model import BadInput
from ranktop.probes.trace_timeline import tensors_in

LOSSES: Final = ("auto", "upcast", "sum")
"""``auto``: the model's own loss, else cross entropy on its logits, else their sum; ``upcast``: cross entropy on the
logits in fp32; ``sum``: the sum of all floating-point outputs. Beside these, ``module:function(output, labels)``."""

_LABELS: Final = ("labels", "targets", "target", "label")


@dataclass
class Feed:
    """Makes inputs of any batch and sequence, and a loss from the outputs."""

    inputs: Callable[[int, int], Any] | None = None
    """The user's own maker of inputs: returns a tensor, a tuple of arguments or a dict of keyword arguments."""
    loss: str | Callable[[Any, Any], Any] = "auto"
    config: Any = None
    """Hugging Face configuration, for what the model eats."""
    used: str = field(default="", init=False)
    """Which loss was taken, in words."""

    def make(self, model: Any, batch: int, sequence: int) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Return positional arguments, keyword arguments and labels for one forward of the model."""
        if self.inputs is not None:
            made = self.inputs(batch, sequence)
            if isinstance(made, dict):
                return (), made, next((made[name] for name in _LABELS if name in made), None)
            return (tuple(made), {}, None) if isinstance(made, (tuple, list)) else ((made,), {}, None)
        if getattr(model, "main_input_name", "") == "pixel_values":
            size = self.config.image_size
            high, wide = (size, size) if isinstance(size, int) else size
            pixels = torch.zeros(batch, self.config.num_channels, high, wide, dtype=_dtype(model))
            return (pixels,), {"labels": torch.zeros(batch, dtype=torch.long)}, None
        return self._tokens(model, batch, sequence)

    def _tokens(self, model: Any, batch: int, sequence: int) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        vocab = getattr(self.config or getattr(model, "config", None), "vocab_size", None)
        tokens = torch.randint(vocab if isinstance(vocab, int) else 1, (batch, sequence))
        labels = torch.zeros(batch, sequence, dtype=torch.long)
        accepted = inspect.signature(model.forward).parameters
        for name in _LABELS:
            if name in accepted and self.loss == "auto":
                return (tokens,), {name: labels}, labels
        needed = [p for p in accepted.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        if len(needed) == 2:
            return (tokens, labels), {}, labels
        if len(needed) > 2:
            names = ", ".join(p.name for p in needed)
            raise BadInput(f"the model's forward wants {names}: name a function that makes its inputs by --inputs")
        return (tokens,), {}, labels

    def scalar(self, output: Any, labels: Any) -> Any:
        """Return the loss of an output."""
        if callable(self.loss):
            self.used = getattr(self.loss, "__name__", "function")
            return self.loss(output, labels)
        if self.loss == "auto":
            own = _own_loss(output)
            if own is not None:
                self.used = "the model's own"
                return own
        logits = _logits(output)
        if self.loss == "sum" or logits is None or logits.dim() < 2:
            self.used = "sum of the outputs"
            return sum(t.sum() for t in tensors_in(output) if t.is_floating_point() and t.requires_grad)
        flat = logits.reshape(-1, logits.shape[-1])
        fits = isinstance(labels, torch.Tensor) and labels.numel() == flat.shape[0]
        target = labels.reshape(-1) if fits else torch.zeros(flat.shape[0], dtype=torch.long)
        self.used = "cross entropy on logits in fp32" if self.loss == "upcast" else "cross entropy on the logits"
        return F.cross_entropy(flat.float() if self.loss == "upcast" else flat, target)


def _dtype(model: Any) -> torch.dtype:
    found: torch.dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return found


def _own_loss(output: Any) -> Any:
    """Return the scalar that a model gave as its loss, None when it gave none."""
    named = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(named, torch.Tensor) and named.numel() == 1:
        return named
    return next((t for t in tensors_in(output) if t.numel() == 1 and t.requires_grad), None)


def _logits(output: Any) -> Any:
    named = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(named, torch.Tensor):
        return named
    return next((t for t in tensors_in(output) if t.is_floating_point() and t.requires_grad), None)
