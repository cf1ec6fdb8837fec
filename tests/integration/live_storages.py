"""Independent ground truth: every storage that an operation makes, for as long as it lives."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):
    """Knows the storages behind all tensors that operations return while it is on, and nothing of models."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def note(self, tensor: torch.Tensor) -> None:
        """Remember the storage of a tensor (of its local part, where it is only a wrapper).

        Models, gradients and optimizers here are all floating-point; meshes and indices are not.
        """
        inner = getattr(tensor, "_local_tensor", tensor)
        if inner.layout is torch.strided and inner.device.type == "cpu" and inner.is_floating_point():
            storage = inner.untyped_storage()
            self._known[storage._cdata] = weakref.ref(storage)

    def total(self) -> int:
        """Return the bytes of all storages that live now."""
        alive = {key: s for key, ref in self._known.items() if (s := ref()) is not None and s._cdata == key}
        self._known = {key: self._known[key] for key in alive}
        return sum(storage.nbytes() for storage in alive.values())

    def settled(self, target: int, seconds: float = 2.0) -> int:
        """Return ``total()`` once it is ``target``, or what it is after some seconds.

        Threads of gloo hold the tensors of their last collective a little longer, cycles until they are collected.
        """
        deadline = time.monotonic() + seconds
        while (now := self.total()) != target and time.monotonic() < deadline:
            gc.collect()
        return now

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf)
        return result
