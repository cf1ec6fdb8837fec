"""Who holds what: every category's part on each rank of the picture, and the kinds of ranks beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ranktop.budget.explain.explanation import MOST_RANKS, SHOWN, Moment, Rank, Share
from ranktop.budget.explain.whole import Whole
from ranktop.budget.pipeline import alive
from ranktop.budget.plan import Layout, Plan
from ranktop.budget.run import WITHOUT_PEAK, Projection, RankBudget
from ranktop.budget.terms import BUDGETED, STEP, Budget, Part

MODEL_AXES: Final = ("pipeline", "tensor")
"""Axes that split the model itself, the outermost first."""

_SHORT: Final = {"pipeline": "pp", "replicate": "replica", "shard": "dp", "context": "cp", "tensor": "tp"}


AT: Final = {"parameters": "step_start", "gradients": "backward_end", "optimizer": "step_end"}
"""Moment at which each state is there, and nothing that only passes."""


def axes_of(category: str, plan: Plan) -> tuple[str, ...]:
    """Return the axes over which a category is dealt out; gradients as they are when backward has ended."""
    zero, fsdp = plan.zero, plan.fsdp
    stage = zero.stage if zero is not None else 0
    sharded = {
        "parameters": stage >= 3 or fsdp is not None,
        "gradients": stage >= 1 or fsdp is not None,
        "optimizer": stage >= 1 or fsdp is not None or plan.strategy == "3d" or plan.stack == "megatron",
    }
    if category == "activations":
        # Samples and layers are each rank's own. DTensor saves gathered inputs; without either norms are whole.
        return ("context", "tensor") if plan.sequence_parallel == "megatron" else ("context",)
    data = sharded.get(category, False) and (fsdp is None or fsdp.sharding != "none")
    return ("pipeline", "shard", "tensor") if data else MODEL_AXES


def parts_of(category: str, plan: Plan) -> int:
    """Return the number of equal parts that a category is dealt into."""
    count = 1
    for axis in axes_of(category, plan):
        count *= getattr(plan.layout, axis)
    return count


def ranks(projection: Projection, whole: Whole) -> tuple[Rank, ...]:
    """Return the ranks of the picture: all of them, or some that are spread evenly from the first to the last."""
    rank = projection.rank
    if rank is None:
        return ()
    layout = rank.plan.layout
    world = layout.world_size
    some = range(world) if world <= MOST_RANKS else [i * (world - 1) // (MOST_RANKS - 1) for i in range(MOST_RANKS)]
    return tuple(_rank(number, projection, whole) for number in some)


def _rank(number: int, projection: Projection, whole: Whole) -> Rank:
    worst = projection.ranks[projection.worst]
    layout = worst.plan.layout
    place = _place(number, layout)
    kind = next((each for each in projection.ranks if number in each.ranks), worst)
    return Rank(
        rank=number,
        place=tuple((_SHORT[axis], at) for axis, at in place.items() if getattr(layout, axis) > 1),
        shares=tuple(_share(category, place, kind, whole) for category in SHOWN),
    )


def _place(number: int, layout: Layout) -> dict[str, int]:
    """Return a rank's index on every axis; tensor parallel counts fastest, as in ``project.places``."""
    found: dict[str, int] = {}
    for axis in ("tensor", "context", "shard", "replicate", "pipeline"):
        size = getattr(layout, axis)
        found[axis] = number % size
        number //= size
    return dict(reversed(found.items()))


def _share(category: str, place: dict[str, int], kind: RankBudget, whole: Whole) -> Share:
    plan, most = kind.plan, highest(kind.budget, category)[1]
    held = kind.budget.at(AT[category])[category].bytes if category in AT else most
    if category in ("parameters", "gradients", "optimizer") and away(category, plan):
        return Share(category=category, parts=0, bytes=held, away=away(category, plan))
    if most == 0:
        return Share(category=category, parts=0, bytes=0)
    axes = axes_of(category, plan)
    if category == "gradients" and plan.zero is not None and plan.zero.stage == 1 and not plan.zero.overlap_comm:
        # Until backward has ended every rank has them all, in 16 bits; a part of them is left for the step.
        axes = MODEL_AXES
        held = None if whole.gradient is None else whole.gradient * whole.trainable
    index, parts = 0, 1
    for axis in axes:
        parts *= int(getattr(plan.layout, axis))
        index = index * int(getattr(plan.layout, axis)) + place[axis]
    if category != "activations":
        return Share(category=category, parts=parts, index=index, bytes=held)
    return Share(
        category=category,
        parts=parts,
        index=index,
        bytes=held,
        own=plan.layout.data > 1 or plan.layout.pipeline > 1,
        partly=plan.layout.tensor > 1 and "tensor" not in axes,
        in_flight=alive(plan),
    )


def away(category: str, plan: Plan) -> str:
    """Return where an offloaded category is, empty for the device."""
    if plan.host:
        return ""
    if plan.zero is not None:
        where = plan.zero.offload_parameters if category == "parameters" else plan.zero.offload_optimizer
        return {"cpu": "host", "nvme": "NVMe"}.get(where, "")
    return "host" if plan.fsdp is not None and plan.fsdp.cpu_offload else ""


def highest(budget: Budget, category: str) -> tuple[str, int | None]:
    """Return the moment of a step at which a category is largest and its bytes; None when it is unknown somewhere."""
    best, most = "", -1
    for moment in STEP:
        amount = budget.at(moment).get(category)
        if amount is None or amount.bytes is None:
            return moment, None
        if amount.bytes > most:
            best, most = moment, amount.bytes
    return best, most


def kinds(projection: Projection) -> tuple[RankBudget, ...]:
    """Return the kinds of ranks that hold something else than the others, the worst one always among them."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, one in enumerate(projection.ranks):
        alike.setdefault(_held(one), []).append(index)
    found = [_merged(projection, indices) for indices in alike.values()]
    if len(found) <= MOST_RANKS:
        return tuple(found)
    step = (len(found) - 1) / (MOST_RANKS - 1)
    chosen = sorted({round(i * step) for i in range(MOST_RANKS)})
    worst = next(i for i, indices in enumerate(alike.values()) if projection.worst in indices)
    if worst not in chosen:
        # A neighbour of the worst gives up its place; first and last say more.
        chosen.remove(min(chosen[1:-1], key=lambda i: abs(i - worst)))
        chosen = sorted((*chosen, worst))
    return tuple(found[i] for i in chosen)


def _merged(projection: Projection, indices: list[int]) -> RankBudget:
    first = projection.ranks[projection.worst if projection.worst in indices else indices[0]]
    return replace(first, ranks=tuple(sorted(rank for i in indices for rank in projection.ranks[i].ranks)))


def _held(rank: RankBudget) -> tuple[object, ...]:
    at = rank.budget.at(rank.budget.peak() or WITHOUT_PEAK)
    return rank.stage, tuple(at[name].bytes if name in at else None for name in BUDGETED)


def moments(rank: RankBudget) -> tuple[Moment, ...]:
    """Return what a rank holds over one step."""
    found = []
    for name in STEP:
        table = rank.budget.at(name)
        if table:
            held = {category: table[category].bytes if category in table else None for category in BUDGETED}
            found.append(Moment(name=name, held=held, total=rank.budget.total(name), largest=_passing(rank, name)))
    return tuple(found)


def _passing(rank: RankBudget, moment: str) -> Part | None:
    """Return the largest piece beside weights, optimizer state and what forward saved."""
    saved = {part.name for part in rank.budget.at("forward_end")["activations"].parts}
    parts = [
        part
        for category in ("gradients", "activations", "buffers")
        for part in rank.budget.at(moment)[category].parts
        if (not part.seen or category == "buffers") and part.name not in saved and not part.name.startswith("saved")
    ]
    largest = max(parts, key=lambda part: part.bytes, default=None)
    enough = max(1 << 20, sum(amount.bytes or 0 for amount in rank.budget.at(moment).values()) // 200)
    return largest if largest is not None and largest.bytes >= enough else None
