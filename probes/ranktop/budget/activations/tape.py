"""A tape of the operations of a block: which tensors autograd keeps for backward, in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

BLOCK: Final = 512
"""Allocator granularity in bytes (``CUDACachingAllocator``: kMinBlockSize)."""

ACTIVATION: Final = "activation"
PARAMETER: Final = "parameter"
CAST: Final = "cast"
"""A low-precision copy of a weight, made by autocast."""
SHARED: Final = "shared"
"""Read by every block and kept once: rotary tables."""
INPUT: Final = "input"
"""Tokens and labels, which the training script holds anyway."""


def rounded(size: int) -> int:
    """Return the bytes that the allocator gives for a tensor of ``size`` bytes."""
    return -(-size // BLOCK) * BLOCK


class Storage:
    """Memory behind one or more tensors."""

    __slots__ = ("kind", "part", "size")

    def __init__(self, size: int, kind: str = ACTIVATION, part: str = "") -> None:
        self.size = rounded(size)
        self.kind = kind
        self.part = part


class Value:
    """A tensor: ``numel`` elements of ``width`` bytes in a storage; views share theirs."""

    __slots__ = ("needs_grad", "numel", "storage", "width")

    def __init__(self, storage: Storage, numel: int, width: int, needs_grad: bool = True) -> None:
        self.storage = storage
        self.numel = numel
        self.width = width
        self.needs_grad = needs_grad

    @property
    def size(self) -> int:
        """Bytes of a tensor of this shape and dtype, rounded as the allocator does."""
        return rounded(self.numel * self.width)


@dataclass(slots=True)
class Node:
    """One differentiable operation."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    saved: tuple[Value, ...] = ()
    weight: int = 0
    """Bytes of the gradients of the parameters that the operation uses."""
    low: int = 0
    """Bytes of those gradients in autocast's dtype, from which the real ones are made."""
    bias_cast: int = 0
    """Bytes of the bias in autocast's dtype: cached while forward runs, not needed by backward."""
    passes: bool = False
    """Backward hands the gradient on as it is (views, additions): nothing is allocated unless the dtype changes."""
    product: bool = False
    """A matrix product or fused attention: what selective checkpointing keeps the outputs of."""
    extra: tuple[Value, ...] = ()
    """Further outputs that only backward reads (logsumexp)."""


class Tape:
    """Records operations in the order in which forward runs them."""

    def __init__(self, *, autocast: int | None = None, host: bool = False) -> None:
        self.autocast = autocast
        """Bytes per element of autocast's dtype; None without autocast."""
        self.host = host
        """CPU kernels run: their saved dtypes differ from CUDA's."""
        self.nodes: list[Node] = []
        self.held: list[Storage] = []
        """What the script's own objects keep alive until backward has ended."""
        self._part = ""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Name, for people, what is made inside."""
        before, self._part = self._part, name
        yield
        self._part = before

    def new(self, numel: int, width: int, *, needs_grad: bool = True, kind: str = ACTIVATION) -> Value:
        """Return a tensor in a storage of its own."""
        return Value(Storage(numel * width, kind, self._part), numel, width, needs_grad)

    def record(self, node: Node) -> Node:
        """Append an operation; what needs no gradient saves nothing."""
        needs_grad = bool(node.weight) or any(value.needs_grad for value in node.inputs)
        for value in node.outputs:
            value.needs_grad = needs_grad
        if needs_grad:
            self.nodes.append(node)
        return node

    def apply(
        self,
        inputs: tuple[Value, ...],
        numel: int,
        width: int,
        saves: Iterable[Value] = (),
        *,
        saves_output: bool = False,
        weight: int = 0,
        low: int = 0,
        bias_cast: int = 0,
        product: bool = False,
    ) -> Value:
        """Record an operation with one new output and return it."""
        out = self.new(numel, width)
        saved = (*saves, out) if saves_output else tuple(saves)
        node = Node(inputs, (out,), saved, weight=weight, low=low, bias_cast=bias_cast, product=product)
        self.record(node)
        return out

    def hold(self, *values: Value) -> None:
        """Note tensors that live as long as the output object, whether backward needs them or not."""
        self.held += [value.storage for value in values]

    def saved(self) -> dict[Storage, None]:
        """Return the storages that backward needs, each once, in the order in which they were saved."""
        return {value.storage: None for node in self.nodes for value in node.saved}


def total(storages: Iterable[Storage], *kinds: str) -> int:
    """Return the bytes of the storages of these kinds."""
    return sum(storage.size for storage in storages if storage.kind in kinds)
