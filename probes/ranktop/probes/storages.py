"""Bytes of tensors by their storages: each storage once, however many tensors view it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

_SPARSE: Final = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
}
"""Layout -> functions that give the tensors which hold the bytes."""


def is_host(device: torch.device) -> bool:
    """Return whether a job on this device computes on the machine's own RAM."""
    return device.type == "cpu"


def plain_tensors(tensor: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield what holds the bytes of ``tensor``: itself, a DTensor's local shard, a sparse tensor's parts."""
    if type(tensor) is torch.nn.Parameter or type(tensor) is torch.Tensor:
        if tensor.layout is torch.strided:
            yield tensor
            return
    elif not isinstance(tensor, torch.Tensor) or depth > 4:
        return
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        for name in flatten()[0]:
            yield from plain_tensors(getattr(tensor, name), depth + 1)
    elif tensor.layout in _SPARSE:
        # A script's own TorchDispatchMode must not see these calls.
        with torch._C._DisableTorchDispatch():
            parts = [getattr(tensor, name)() for name in _SPARSE[tensor.layout]]
        yield from parts
    elif tensor.layout is torch.strided:
        yield tensor


class Ledger:
    """Counts storages on one device, each in the first category that claims it."""

    def __init__(self, device: torch.device, known: Iterable[int] = ()) -> None:
        self._type = device.type
        self._index = -1 if is_host(device) else _index(device)
        self.seen: set[int] = set(known)
        """Addresses of the storages counted so far; they are only valid while their tensors live."""

    def here(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies on this device."""
        return tensor.get_device() == self._index and tensor.device.type == self._type

    def add(self, tensor: Any) -> int:
        """Return the bytes that ``tensor`` adds: 0 when its storages are elsewhere or were counted before."""
        total = 0
        for plain in plain_tensors(tensor):
            if not self.here(plain):
                continue
            storage = plain.untyped_storage()
            key = storage._cdata
            if key not in self.seen:
                self.seen.add(key)
                total += storage.nbytes()
        return total

    def total(self, tensors: Iterable[Any]) -> int:
        """Return the bytes that all of ``tensors`` add; None among them adds nothing."""
        host, index, seen, total = self._index < 0, self._index, self.seen, 0
        for each in tensors:
            tensor = each
            if type(tensor) not in _PLAIN:
                tensor = getattr(tensor, "_local_tensor", None)  # a DTensor's shard
                if type(tensor) not in _PLAIN:
                    total += self.add(each)
                    continue
            if not (tensor.is_cpu if host else tensor.get_device() == index):
                continue
            try:
                storage = tensor.untyped_storage()
            except (NotImplementedError, RuntimeError):  # sparse
                total += self.add(tensor)
                continue
            key = storage._cdata
            if key not in seen:
                seen.add(key)
                total += storage.nbytes()
        return total


_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


def _index(device: torch.device) -> int:
    if device.index is not None:
        return device.index
    module = getattr(torch, device.type, None)
    return int(module.current_device()) if module is not None and hasattr(module, "current_device") else 0


def nested_tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested dicts, lists and tuples, as optimizers keep them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 6:
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, (list, tuple)):
            return
        for item in value:
            yield from nested_tensors(item, depth + 1)
