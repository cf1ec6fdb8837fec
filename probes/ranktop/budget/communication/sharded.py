"""What FSDP sends: parameters gathered unit by unit, gradients scattered unit by unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ranktop.budget.collective import Collective
from ranktop.budget.communication.step import Step
from ranktop.budget.fsdp.states import flat_layout, shard_shapes
from ranktop.budget.held import gradient_itemsize
from ranktop.budget.inventory import Kind
from ranktop.budget.plan import Fsdp, Plan
from ranktop.budget.terms import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class _Unit:
    """One sharding unit's messages over ``ranks``, in full-size bytes with the padding that torch sends along."""

    ranks: int
    gathered: int
    reduced: int
    root: bool


def fsdp(step: Step) -> Iterator[Collective]:
    """FSDP1 and FSDP2: 2P - U_root gathered and P scattered per micro-batch under full sharding.

    The first unit is the root's: it stays gathered from forward to backward. SHARD_GRAD_OP gathers once per
    micro-batch. Hybrid adds an all-reduce of the shards between the replicas. Activation checkpointing adds nothing:
    recomputation finds the unit gathered for its backward. Without gradient sync parameters are gathered as often,
    gradients reduced once (FSDP1's SHARD_GRAD_OP then keeps the parameters as well). Sources:
    torch/distributed/fsdp/_fully_shard/{_fsdp_param_group,_fsdp_collectives,_fsdp_state}.py,
    torch/distributed/fsdp/_runtime_utils.py.
    """
    plan = step.plan
    options = plan.fsdp or Fsdp(version=1 if plan.strategy == "fsdp1" else 2)
    name = f"FSDP{options.version}"
    units = list(_flat_units(step, options) if options.version == 1 else _units(step))
    if options.sharding == "none":
        yield _whole(step, units, name)
        return
    for ranks in sorted({unit.ranks for unit in units}, reverse=True):
        yield from _gathers(step, options, [unit for unit in units if unit.ranks == ranks], name)
    for ranks in sorted({unit.ranks for unit in units}, reverse=True):
        yield from _reductions(step, [unit for unit in units if unit.ranks == ranks], name)


def _gathers(step: Step, options: Fsdp, units: list[_Unit], name: str) -> Iterator[Collective]:
    micro, ranks = step.micro_steps, units[0].ranks
    again = [unit for unit in units if not unit.root] if options.sharding in ("full", "hybrid") else []
    kept = options.version == 1 and step.reduces_once and not again
    times = 1 if kept else micro
    yield Collective(
        kind="all_gather", group=ranks, bytes=times * sum(unit.gathered for unit in units), calls=times * len(units),
        axis="shard", phase="forward", what="parameters, unit by unit", rule=f"{name}: all-gather of padded shards",
    )  # fmt: skip
    if again:
        smaller = options.reshard_after_forward or ranks
        yield Collective(
            kind="all_gather", group=smaller, bytes=micro * sum(unit.gathered for unit in again),
            calls=micro * len(again), axis="shard", what="parameters again, the root's excepted",
            rule=f"{name}: reshard after forward",
        )  # fmt: skip


def _reductions(step: Step, units: list[_Unit], name: str) -> Iterator[Collective]:
    ranks = units[0].ranks
    times = 1 if step.reduces_once else step.micro_steps
    trained = [unit for unit in units if unit.reduced]
    total = times * sum(unit.reduced for unit in trained)
    yield Collective(
        kind="reduce_scatter", group=ranks, bytes=total, calls=times * len(trained), axis="shard",
        what="gradients, unit by unit", rule=f"{name}: reduce-scatter of padded gradients",
    )  # fmt: skip
    replicas = step.plan.layout.replicate * step.plan.layout.context
    yield Collective(
        kind="all_reduce", group=replicas, bytes=total // ranks, calls=times * len(trained), axis="replicate",
        what="shards of the gradients, between replicas", rule=f"{name}: hybrid sharding",
    )  # fmt: skip


def _whole(step: Step, units: list[_Unit], name: str) -> Collective:
    times = 1 if step.reduces_once else step.micro_steps
    trained = [unit for unit in units if unit.reduced]
    return Collective(
        kind="all_reduce", group=step.replicas, bytes=times * sum(unit.reduced for unit in trained),
        calls=times * len(trained), axis="replicate", what="gradients, unit by unit", rule=f"{name}: NO_SHARD",
    )  # fmt: skip


def _item(kind: Kind, dtype: str | None) -> int:
    """Bytes per element in a dtype of the mixed-precision policy, which only floating point numbers take."""
    return DTYPE_BYTES[dtype] if dtype and kind.dtype.startswith(("float", "bfloat")) else kind.itemsize


def _reduce_item(kind: Kind, plan: Plan) -> int:
    dtype = plan.precision.reduce or plan.precision.compute
    return DTYPE_BYTES[dtype] if dtype else gradient_itemsize(kind, plan)


def _units(step: Step) -> Iterator[_Unit]:
    """FSDP2: every parameter padded in the dimension that is split; experts over ranks of their own."""
    plan = step.plan
    sizes: dict[tuple[int, int], list[int]] = {}
    for kind, count in step.kinds:
        if kind.unit < 0:
            continue
        ranks = max(1, kind.shards or plan.layout.shard)
        numel = ranks * prod(shard_shapes(kind, plan)[0]) * count
        entry = sizes.setdefault((kind.unit, ranks), [0, 0])
        entry[0] += numel * _item(kind, plan.precision.compute)
        if kind.trainable:
            entry[1] += numel * _reduce_item(kind, plan)
    for (unit, ranks), (gathered, reduced) in sizes.items():
        yield _Unit(ranks, gathered, reduced, root=unit == 0)


def _flat_units(step: Step, options: Fsdp) -> Iterator[_Unit]:
    """FSDP1: one flat parameter for each unit, padded to the number of ranks."""
    plan = step.plan
    ranks = plan.layout.replicate if options.sharding == "none" else plan.layout.shard
    for unit, kinds in step.inventory.units().items():
        if unit < 0:
            continue
        compute = _item(kinds[0], plan.precision.compute)
        align = max(1, 16 // compute) if options.use_orig_params else 0
        _, length = flat_layout(kinds, ranks, align)
        padded = length if options.sharding == "none" else -(-length // ranks) * ranks
        trained = any(kind.trainable for kind in kinds)
        yield _Unit(ranks, padded * compute, padded * _reduce_item(kinds[0], plan) if trained else 0, root=unit == 0)
