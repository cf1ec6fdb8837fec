"""Which storages are alive when, over one training step: the raw material of a trace."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_NORMS: Final = frozenset({"aten::native_layer_norm", "aten::native_group_norm", "aten::native_batch_norm"})
_COPIES: Final = frozenset({"aten::_to_copy", "aten::to"})
_HALVES: Final = (torch.float16, torch.bfloat16)


class Timeline(TorchDispatchMode):
    """Notes the birth and death of every storage that passes through the dispatcher.

    Works on fake and on real tensors, with frozen parameters, adapters and tied weights, because it looks at storages
    and never at modules. Bytes are as asked for, without the allocator's rounding, so that they are polynomials of the
    batch and the sequence.
    """

    def __init__(self, gpu: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[int] = []
        """``+n`` when storage n is born, ``-n`` when it dies."""
        self.sizes: list[int] = [0]
        """Bytes of every storage by its number; number 0 stands for the model's own states."""
        self.casts: set[int] = set()
        """Storages that are copies of a parameter in another dtype."""
        self.marks: dict[str, int] = {}
        """Name -> number of events that had happened."""
        self._gpu = gpu
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._parameters: set[int] = set()
        self._settled: set[int] = set()
        """Storages whose size is not that of their own bytes."""

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take these for states: they and what views them never appear."""
        for tensor in tensors:
            for storage in _storages(tensor):
                self._alive[id(storage)] = (weakref.ref(storage), 0)
                self._parameters.add(id(storage))

    def mark(self, name: str, last: bool = False) -> None:
        """Note that something happens now; the first of several such notes counts, or the ``last``."""
        if last or name not in self.marks:
            self.marks[name] = len(self.events)

    def numbers(self, tensors: Iterable[Any]) -> set[int]:
        """Return the numbers of the storages behind tensors, states left out."""
        found = set()
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                found |= {self._alive[id(s)][1] for s in _storages(tensor) if id(s) in self._alive}
        return found - {0}

    def add(self, tensor: torch.Tensor) -> None:
        """Note the storages of a tensor that may be new."""
        for storage in _storages(tensor):
            key, size = id(storage), storage.nbytes()
            known = self._alive.get(key)
            if known is not None:
                if known[1] and size > self.sizes[known[1]] and known[1] not in self._settled:  # resize_
                    self.sizes[known[1]] = size
                continue
            number = len(self.sizes)
            self.sizes.append(size)
            self.events.append(number)
            self._alive[key] = (weakref.ref(storage, self._on_death(key, number)), number)

    def _on_death(self, key: int, number: int) -> Any:
        def died(_: Any) -> None:
            self._alive.pop(key, None)
            self.events.append(-number)

        return died

    def _resize(self, tensor: torch.Tensor, itemsize: int) -> None:
        for number in self.numbers([tensor]):
            self.sizes[number] = tensor.numel() * itemsize
            self._settled.add(number)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            self.add(tensor)
        name = func._schema.name
        if name in _COPIES and isinstance(out, torch.Tensor) and isinstance(args[0], torch.Tensor):
            if any(id(s) in self._parameters for s in _storages(args[0])):
                self.casts |= self.numbers([out])
        elif self._gpu:
            self._as_on_gpu(name, out, args)
        return out

    def _as_on_gpu(self, name: str, out: Any, args: Any) -> None:
        """Give what CPU kernels save in other sizes the size that CUDA kernels give it.

        CUDA's dropout keeps a mask of one byte per element (``native_dropout``), the CPU's one in the input's dtype;
        CUDA's norms keep statistics in fp32, the CPU's in the input's dtype.
        """
        if name == "aten::bernoulli_" and args[0].is_floating_point():
            self._resize(args[0], 1)
        elif name in _NORMS and args[0].dtype in _HALVES:
            for statistics in out[1:3]:
                if isinstance(statistics, torch.Tensor):
                    self._resize(statistics, 4)

    def live(self, without: set[int]) -> list[int]:
        """Return the bytes alive after every event, some storages left out; one entry more than there are events."""
        total, found = 0, [0]
        for event in self.events:
            number = abs(event)
            if number not in without:
                total += self.sizes[number] if event > 0 else -self.sizes[number]
            found.append(total)
        return found

    def alive_at(self, position: int) -> set[int]:
        """Return the storages alive after so many events."""
        found: set[int] = set()
        for event in self.events[:position]:
            if event > 0:
                found.add(event)
            else:
                found.discard(-event)
        return found

    def born_from(self, position: int) -> set[int]:
        """Return the storages born after so many events."""
        return {event for event in self.events[position:] if event > 0}

    def bytes(self, numbers: Iterable[int]) -> int:
        """Return the bytes of storages by their numbers."""
        return sum(self.sizes[number] for number in numbers)


def _storages(tensor: torch.Tensor) -> Iterator[Any]:
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None and type(tensor).__name__ != "FakeTensor":
        for name in flatten()[0]:
            yield from _storages(getattr(tensor, name))
        return
    try:
        yield tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors
        return


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors in a nested output: mappings, sequences, dataclasses with attributes."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 6:
        if isinstance(value, dict):
            items: Any = value.values()
        elif isinstance(value, (list, tuple)):
            items = value
        elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and not callable(value):
            items = list(vars(value).values())
        else:
            return
        for item in items:
            yield from tensors_in(item, depth + 1)
