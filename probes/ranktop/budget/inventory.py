"""What a model is, free of any framework: its parameter tensors in order, grouped by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

from ranktop.budget.terms import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class Kind:
    """Parameter tensors that are alike: same shape, dtype, role and place."""

    shape: tuple[int, ...]
    """Shape of the whole tensor, before any data-parallel sharding and after tensor-parallel splitting."""
    dtype: str
    """Name of the stored dtype, e.g. ``float32``."""
    trainable: bool = True
    unit: int = 0
    """Index of the sharding unit (FSDP-wrapped module) it belongs to, in the order of the modules; 0 without
    units, -1 for a parameter of a sharded model that no unit holds: it stays whole."""
    group: int = 0
    """Index of the optimizer parameter group that updates it, counted over all optimizers; -1 for none."""
    shard_dim: int | None = None
    """Dimension that data-parallel sharding splits (FSDP2); None for the strategy's default."""
    tensor_parallel: str = ""
    """Tensor-parallel placement as DTensor prints it (``S(0)``, ``R``); empty without tensor parallel."""
    split_size: int | None = None
    """Size of the dimension that tensor parallel splits, before splitting; None when it divides evenly."""
    shards: int | None = None
    """Ranks over which this tensor is sharded, where that is not the layout's ``shard``."""
    shard_rank: int | None = None
    """This rank's index among ``shards``; None = the layout's."""

    @property
    def numel(self) -> int:
        """Number of elements of one such tensor."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element; KeyError for a dtype that is not known."""
        return DTYPE_BYTES[self.dtype]


Found = TypeVar("Found")


class _Worked:
    """Room for what follows from an inventory alone; no field of it, so that it is neither sent nor compared."""

    __slots__ = ("_known",)
    _known: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Inventory(_Worked):
    """The parameters of one rank's part of the model, each shared tensor once."""

    kinds: tuple[Kind, ...] = ()
    order: tuple[int, ...] = ()
    """For every parameter, in the order of ``model.parameters()``, its index into ``kinds``."""
    buffer_bytes: int = 0
    """Bytes of the module buffers on the device (running means, masks)."""

    def __iter__(self) -> Iterator[Kind]:
        kinds = self.kinds
        return (kinds[i] for i in self.order)

    def __len__(self) -> int:
        return len(self.order)

    def once(self, name: str, work: Callable[[Inventory], Found]) -> Found:
        """Return what follows from the inventory alone, worked out when first asked for; it lives as long as this."""
        try:
            known = self._known
        except AttributeError:
            known = {}
            object.__setattr__(self, "_known", known)
        if name not in known:
            known[name] = work(self)
        found: Found = known[name]
        return found

    @property
    def numel(self) -> int:
        """Elements of all parameters."""
        return sum(kind.numel for kind in self)

    @property
    def trainable_numel(self) -> int:
        """Elements of the parameters that require a gradient."""
        return sum(kind.numel for kind in self if kind.trainable)

    def units(self) -> dict[int, list[Kind]]:
        """Parameters by sharding unit, each in order."""
        found: dict[int, list[Kind]] = {}
        for kind in self:
            found.setdefault(kind.unit, []).append(kind)
        return found

    @staticmethod
    def of(parameters: list[Kind], buffer_bytes: int = 0) -> Inventory:
        """Group a list of parameters, keeping its order."""
        index: dict[Kind, int] = {}
        order = tuple(index.setdefault(kind, len(index)) for kind in parameters)
        return Inventory(kinds=tuple(index), order=order, buffer_bytes=buffer_bytes)
