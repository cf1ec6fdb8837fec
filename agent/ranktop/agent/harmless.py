"""Keeps what the agent does in the training thread from reaching the training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., None])


class Guarded(Protocol):
    """An object whose methods run inside the user's training loop."""

    enabled: bool

    def failed(self, error: Exception) -> None:
        """Count a failure."""
        ...


def harmless(method: F) -> F:
    """Have a method swallow and count what goes wrong in it, unseen by what the script has put in torch's way."""

    @functools.wraps(method)
    def guarded(self: Guarded, *args: Any) -> None:
        if not self.enabled:
            return
        try:
            # A script's own TorchFunctionMode must not see what is asked here, nor a tensor's own class.
            with torch._C.DisableTorchFunction():
                method(self, *args)
        except Exception as error:
            self.failed(error)

    return guarded  # type: ignore[return-value]


class OutputHook:
    """A hook on an output tensor; the marker keeps torch from warning that it is not saved with the tensor."""

    __torch_unserializable__ = True

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self, grad: torch.Tensor) -> None:
        """Call, unless a backward is being traced."""
        if not torch.compiler.is_compiling():
            self._call()
