"""Where the parameters of an inventory lie in the model: before the blocks, in one block, behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ranktop.budget.inventory import Inventory, Kind


@dataclass(frozen=True, slots=True)
class Place:
    """Parameters in the order of the model; ``repeats`` blocks that are alike."""

    before: tuple[tuple[Kind, int], ...]
    block: tuple[Kind, ...]
    repeats: int
    after: tuple[tuple[Kind, int], ...]

    @property
    def last(self) -> Kind | None:
        """The block's last matrix of trainable weights: the first whose gradient its backward makes."""
        matrices = [kind for kind in self.block if kind.trainable and len(kind.shape) > 1]
        return matrices[-1] if matrices else None


def place(inventory: Inventory, layers: int) -> Place:
    """Find ``layers`` equal runs in the order of the parameters.

    Where there are none (blocks differ, or stand under other modules) the parameters count as one block that is
    ``layers`` times the average; what is sharded by unit is told by its unit instead.
    """
    order = inventory.once("without units", _without_units)
    kinds = inventory.kinds
    found = _run(order, layers) if layers else None
    if found is None:
        return Place((), tuple(kinds[i] for i in order), 1, ())
    start, length = found
    end = start + length * layers
    return Place(
        _counted(order[:start], kinds),
        tuple(kinds[i] for i in order[start : start + length]),
        layers,
        _counted(order[end:], kinds),
    )


def span(inventory: Inventory) -> range:
    """Return the positions, in the order of the parameters, of the longest run of equal blocks; empty without one."""
    order = inventory.once("without units", _without_units)
    best = range(0)
    for layers in sorted({times for times in Counter(order).values() if times > 1}, reverse=True):
        found = _run(order, layers)
        if found is not None and found[1] * layers > len(best):
            best = range(found[0], found[0] + found[1] * layers)
    return best


def _without_units(inventory: Inventory) -> tuple[int, ...]:
    """Return the order with indices of kinds that differ by their unit alone made equal."""
    kinds = inventory.kinds
    if not any(kind.unit for kind in kinds):
        return inventory.order
    index: dict[tuple[object, ...], int] = {}
    same = [
        index.setdefault((k.shape, k.dtype, k.trainable, k.group, k.tensor_parallel, k.split_size, k.shard_dim), i)
        for i, k in enumerate(kinds)
    ]
    return tuple(same[i] for i in inventory.order)


def _run(order: tuple[int, ...], layers: int) -> tuple[int, int] | None:
    """Return (start, length) of the longest run that is repeated ``layers`` times."""
    if layers == 1:
        return None
    for length in range(len(order) // layers, 0, -1):
        for start in range(len(order) - length * layers + 1):
            end = start + length * layers
            if order[start : end - length] == order[start + length : end]:
                return start, length
    return None


def _counted(order: Iterable[int], kinds: tuple[Kind, ...]) -> tuple[tuple[Kind, int], ...]:
    return tuple((kinds[index], times) for index, times in Counter(order).items())


def size(found: Iterable[tuple[Kind, int]], of: Callable[[Kind], int]) -> int:
    """Return the sum of ``of(kind)`` over counted kinds."""
    return sum(of(kind) * times for kind, times in found)
