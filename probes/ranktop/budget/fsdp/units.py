"""Sizes of the units that FSDP gathers and reduces as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from ranktop.budget.fsdp.states import flat_alignment, flat_layout, shard_shapes
from ranktop.budget.held import gradient_itemsize
from ranktop.budget.inventory import Kind
from ranktop.budget.job import Job
from ranktop.budget.plan import Fsdp
from ranktop.budget.terms import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class Unit:
    """Bytes of one unit on one rank."""

    gathered: int = 0
    """Its parameters whole, in the dtype that is computed in."""
    gradients: int = 0
    """Their gradients whole, in the same dtype."""
    reduced: int = 0
    """Input of the reduce-scatter: all gradients padded, in the dtype of the reduction."""
    shard: int = 0
    """Its shard of the parameters as stored."""
    shard_gradients: int = 0
    """This rank's shard of the gradients, as kept."""
    low_shard: int = 0
    """FSDP1 mixed precision: the shard in the dtype that is computed in."""

    def __mul__(self, times: int) -> Unit:
        return Unit(
            self.gathered * times,
            self.gradients * times,
            self.reduced * times,
            self.shard * times,
            self.shard_gradients * times,
            self.low_shard * times,
        )

    def __add__(self, other: Unit) -> Unit:
        return Unit(
            self.gathered + other.gathered,
            self.gradients + other.gradients,
            self.reduced + other.reduced,
            self.shard + other.shard,
            self.shard_gradients + other.shard_gradients,
            self.low_shard + other.low_shard,
        )


@dataclass(frozen=True, slots=True)
class Units:
    """A sharded model: the root's unit, blocks that are alike, and which of the root's gradients are made when."""

    root: Unit
    block: Unit
    """The largest of the other units."""
    blocks: int
    others: Unit
    """Sum of all units but the root's."""
    before: int
    """Gradients of the root's embeddings, in the dtype that is computed in."""
    after: int
    """Gradients of the root's final norm and head."""
    largest: int
    """Bytes of the largest parameter, whole, as stored."""


def units(job: Job) -> Units:
    """Measure the units of a plan with FSDP; the first unit is the root's unless some parameters are in none."""
    fsdp = job.plan.fsdp or Fsdp()
    found = job.inventory.units()
    loose = found.pop(-1, [])
    seen: dict[tuple[object, ...], Unit] = {}
    sizes: dict[int, Unit] = {}
    for index, kinds in found.items():
        key = tuple((k.shape, k.dtype, k.trainable, k.shard_dim, k.shards, k.shard_rank) for k in kinds)
        known = seen.get(key)
        if known is None:
            known = seen[key] = _flat(kinds, job, fsdp) if fsdp.version == 1 else _by_parameter(kinds, job)
        sizes[index] = known
    root_index = min(sizes) if sizes and not loose and len(sizes) > 1 else None
    rooted = found[root_index] if root_index is not None else []
    others = [size for index, size in sizes.items() if index != root_index]
    block = max(others, key=lambda unit: unit.gathered, default=Unit())
    before, after = _ends(rooted, job)
    total = Unit()
    for size, times in Counter(others).items():
        total += size * times
    return Units(
        sizes[root_index] if root_index is not None else Unit(),
        block,
        len(others),
        total,
        before,
        after,
        max((kind.numel * kind.itemsize for kind in job.inventory.kinds), default=0),
    )


def _ends(rooted: list[Kind], job: Job) -> tuple[int, int]:
    """Split the root's gradients into what backward makes last (embeddings) and first (final norm, head).

    Without a run of equal blocks that tells, all of them count as made first.
    """
    total = sum(_gradient(kind, job) for kind in rooted)
    before = sum(_gradient(kind, job) * times for kind, times in job.place.before)
    return (before, total - before) if before <= total else (0, total)


def _compute(kind: Kind, job: Job) -> int:
    compute = job.plan.precision.compute
    return DTYPE_BYTES[compute] if compute else kind.itemsize


def _gradient(kind: Kind, job: Job) -> int:
    return kind.numel * _compute(kind, job) if kind.trainable else 0


def _reduce(kind: Kind, job: Job) -> int:
    """FSDP2 reduces in the dtype of the gradients unless told otherwise (``MixedPrecisionPolicy.reduce_dtype``)."""
    reduce = job.plan.precision.reduce
    return DTYPE_BYTES[reduce] if reduce else _compute(kind, job)


def _by_parameter(kinds: Iterable[Kind], job: Job) -> Unit:
    """FSDP2: every parameter padded to a multiple of the ranks along its sharded dimension."""
    total = Unit()
    for kind in kinds:
        padded, _ = shard_shapes(kind, job.plan)
        chunk, ranks = prod(padded), kind.shards or job.plan.layout.shard
        whole = chunk * ranks
        total += Unit(
            gathered=whole * _compute(kind, job),
            gradients=_gradient(kind, job),
            reduced=whole * _reduce(kind, job) if kind.trainable else 0,
            shard=chunk * kind.itemsize,
            shard_gradients=chunk * gradient_itemsize(kind, job.plan) if kind.trainable else 0,
        )
    return total


def _flat(kinds: list[Kind], job: Job, fsdp: Fsdp) -> Unit:
    """FSDP1: one flat parameter, padded to a multiple of the ranks."""
    whole = fsdp.sharding == "none"
    ranks = job.plan.layout.replicate if whole else job.plan.layout.shard
    _, length = flat_layout(kinds, ranks, flat_alignment(kinds, job.plan) if fsdp.use_orig_params else 0)
    chunk = length if whole else -(-length // ranks)
    full = chunk if whole else chunk * ranks
    first = kinds[0]
    trains = any(kind.trainable for kind in kinds)
    compute = _compute(first, job)
    return Unit(
        # NO_SHARD computes with its own parameters unless they have to be cast.
        gathered=0 if whole and compute == first.itemsize else full * compute,
        gradients=full * compute if trains else 0,
        reduced=full * _reduce(first, job) if trains else 0,
        shard=chunk * first.itemsize,
        shard_gradients=chunk * gradient_itemsize(first, job.plan) if trains else 0,
        low_shard=chunk * compute if compute != first.itemsize else 0,
    )
