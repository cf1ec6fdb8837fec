"""How DeepSpeed lays parameters out over data-parallel ranks: flat groups (ZeRO-1, -2) and partitions (ZeRO-3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Final

ALIGNMENT: Final = 2
"""Elements per rank that a flat group is padded to (``nccl_start_alignment_factor`` in stage_1_and_2.py)."""


@dataclass(frozen=True, slots=True)
class FlatGroup:
    """One optimizer group as ZeRO-1 and ZeRO-2 keep it, seen from one rank. Sizes in elements."""

    size: int
    """The flat buffer, padding included."""
    partition: int
    """The equal part of it that each rank updates."""
    whole: int
    """All elements of the parameters that touch this rank's part, each counted whole."""
    touching: int
    """How many parameters these are."""
    padding: int
    """Elements of this rank's part that belong to no parameter."""
    pieces: int
    """Tensors that this rank's gradient is put together from, padding included."""
    largest: int = field(default=0, compare=False)
    """The largest piece of a parameter in this rank's part."""

    @staticmethod
    def of(
        numels: Sequence[int],
        ranks: int,
        rank: int,
        *,
        round_robin: bool = False,
        aligned_to: int = 1,
    ) -> FlatGroup:
        """Lay parameters of ``numels`` elements out; each starts at a multiple of ``aligned_to`` elements.

        Source: ``DeepSpeedZeroOptimizer.__init__``, ``get_partition_info`` and ``get_flat_partition``.
        """
        order = [n for first in range(ranks) for n in numels[first::ranks]] if round_robin else list(numels)
        spans: list[tuple[int, int]] = []
        end = 0
        for numel in order:
            start = end + -end % aligned_to
            end = start + numel
            spans.append((start, end))
        size = end + -end % (ALIGNMENT * ranks)
        partition = size // ranks
        low, high = rank * partition, (rank + 1) * partition
        inside = [(start, stop) for start, stop in spans if start < high and stop > low]
        covered = low
        gaps = 0
        for start, stop in inside:
            gaps += start > covered
            covered = min(stop, high)
        gaps += covered < high
        pieces = [min(stop, high) - max(start, low) for start, stop in inside]
        held = sum(pieces)
        return FlatGroup(
            size=size,
            partition=partition,
            whole=sum(stop - start for start, stop in inside),
            touching=len(inside),
            padding=partition - held,
            pieces=len(inside) + gaps,
            largest=max(pieces, default=0),
        )


def element_alignment(itemsize: int, aligned: bool) -> int:
    """Elements at whose multiples a parameter starts under ``parameter_alignment`` (16 bytes), else 1."""
    return 16 // gcd(16, itemsize) if aligned else 1


def share(numel: int, ranks: int) -> int:
    """Elements of a ZeRO-3 partition, the same on every rank (``_aligned_size`` in partition_parameters.py)."""
    return -(-numel // ranks)


def sub_groups(shares: Sequence[int], limit: int) -> list[list[int]]:
    """Cut one optimizer group of partitions into the sub-groups that ZeRO-3 updates one after another.

    A sub-group is closed by the parameter that brings it to ``limit`` elements (``_create_fp16_sub_groups``).
    """
    if not shares or limit >= sum(shares):
        return [list(shares)] if shares else []
    found: list[list[int]] = [[]]
    filled = 0
    for position, elements in enumerate(shares):
        found[-1].append(elements)
        filled += elements
        if filled >= limit and position + 1 < len(shares):
            found.append([])
            filled = 0
    return found


def persistent(numels: Sequence[int], threshold: int, total: int) -> list[bool]:
    """Tell which parameters ZeRO-3 keeps whole on every rank (``mark_persistent_parameters``)."""
    marks: list[bool] = []
    kept = 0
    for numel in numels:
        keep = numel <= threshold and kept + numel <= total
        kept += numel if keep else 0
        marks.append(keep)
    return marks


def owners(numels: Sequence[int], ranks: int, *, round_robin: bool = False, aligned_to: int = 1) -> list[range]:
    """Return for each parameter of a flat group the ranks whose parts it touches (as ``FlatGroup.of`` lays out)."""
    indices = range(len(numels))
    order = [i for first in range(ranks) for i in indices[first::ranks]] if round_robin else list(indices)
    starts = [0] * len(numels)
    end = 0
    for index in order:
        starts[index] = end + -end % aligned_to
        end = starts[index] + numels[index]
    partition = max(1, (end + -end % (ALIGNMENT * ranks)) // ranks)
    return [
        range(start // partition, (start + max(1, numel) - 1) // partition + 1)
        for start, numel in zip(starts, numels, strict=True)
    ]
