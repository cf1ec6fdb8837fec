"""Builds a recipe at several depths and reads steps, on fake tensors where they work and real ones where not."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ranktop.probes.trace_huggingface import nothing_packed
from ranktop.probes.trace_model import Recipe, one_line
from ranktop.probes.trace_step import Reading, Setup, read_step

_FAKE_FAILS: Final = (
    "DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedOperatorException",
    "UnsupportedFakeTensorException", "UnsupportedMutationAliasingException", "MetadataMismatchError",
    "GuardOnDataDependentSymNode",
)  # fmt: skip


class Bench:
    """Holds models of several depths and reads steps of them."""

    def __init__(self, recipe: Recipe, setup: Setup, dtype: torch.dtype | None, real: bool = False) -> None:
        self.real = real
        """Tensors are real: fake ones did not work, or were not wanted."""
        self.reason = "real tensors were asked for" if real else ""
        self._recipe = recipe
        self._setup = setup
        self._dtype = dtype
        self._fake: Any = None if real else FakeTensorMode(allow_non_fake_inputs=True)
        self._models: dict[int, Any] = {}

    def _mode(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._fake is None else self._fake

    def model(self, depth: int) -> Any:
        """Return the model of a depth, in training mode and in its dtype."""
        if depth not in self._models:
            self._models[depth] = self._build(depth)
        return self._models[depth]

    def _build(self, depth: int) -> Any:
        try:
            with self._mode():
                model = self._recipe.build(depth)
                _check(model, self._recipe.name)
                return _converted(model, self._dtype, None).train()
        except Exception as error:
            if self._fake is None or not _is_fakes_fault(error):
                raise
        # Constructors often read numbers out of tensors (rates of stochastic depth); forward then still may be faked.
        model = self._recipe.build(depth)
        _check(model, self._recipe.name)
        with self._mode():
            return _converted(model, self._dtype, self._fake).train()

    def go_real(self, reason: str) -> None:
        """Use real tensors from now on."""
        self.real, self.reason, self._fake = True, reason, None
        self._models.clear()
        gc.collect()

    def read(self, depth: int, batch: int, sequence: int, checkpointed: bool = False) -> Reading:
        """Run one step; falls over to real tensors by raising ``NeedsReal``."""
        model = self.model(depth)
        blocks = self.blocks()[depth]
        try:
            with self._mode(), nothing_packed() if self._fake is not None else nullcontext():
                return read_step(model, blocks, self._setup, batch, sequence, checkpointed)
        except Exception as error:
            if self._fake is not None and _is_fakes_fault(error):
                raise NeedsReal(one_line(error)) from error
            raise

    def blocks(self) -> dict[int, list[Any]]:
        """Return by depth the modules that are repeated: what a container has more of when the model is deeper."""
        small = {name: module._modules for name, module in self.model(1).named_modules()}
        kinds = {
            name: {type(child) for key, child in module._modules.items() if key not in small[name]}
            for name, module in self.model(2).named_modules()
            if name in small and len(module._modules) > len(small[name])
        }
        return {
            depth: [
                child for name, types in kinds.items() for child in model.get_submodule(name).children()
                if type(child) in types
            ]
            for depth, model in self._models.items()
        }  # fmt: skip


class NeedsReal(Exception):
    """Raised when a model cannot run on fake tensors; the text says why."""


def _is_fakes_fault(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ in _FAKE_FAILS or "FakeTensor" in str(seen) or "fake tensor" in str(seen).lower():
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _check(model: Any, name: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name} made a {type(model).__name__}, not a torch.nn.Module")


def _converted(model: nn.Module, dtype: torch.dtype | None, fake: Any) -> nn.Module:
    """Give a model's parameters and buffers a dtype, and make them fake where a mode is given.

    ``Module.to`` refuses fake parameters, so they are put into their places one by one, tied ones once.
    """
    done: dict[int, torch.Tensor] = {}

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in done:
            made = tensor.detach() if fake is None else fake.from_tensor(tensor.detach())
            if dtype is not None and made.is_floating_point():
                made = made.to(dtype)
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad)
            done[id(tensor)] = made
        return done[id(tensor)]

    if dtype is None and fake is None:
        return model
    for module in model.modules():
        for places in (module._parameters, module._buffers):
            for name, tensor in places.items():
                if tensor is not None:
                    places[name] = convert(tensor)  # type: ignore[assignment]
    return model
