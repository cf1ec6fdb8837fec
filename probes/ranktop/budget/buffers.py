"""Buffers and points of a step, by strategy: buckets, gathered parameters, module buffers, replicas."""

from __future__ import annotations

from dataclasses import replace

from ranktop.budget import data_parallel, ddp_buffers, pipeline, states
from ranktop.budget.composition import Point, amount, backward_points, forward_points, parts
from ranktop.budget.fsdp.buffers1 import Fsdp1
from ranktop.budget.fsdp.buffers2 import Fsdp2
from ranktop.budget.fsdp.step import Step
from ranktop.budget.job import Job
from ranktop.budget.terms import Amount, Part

BROADCAST = 250 * 2**20
"""Bytes that DDP broadcasts at once when it is made (torch/nn/parallel/distributed.py ``broadcast_bucket_size``)."""


def standing(job: Job, gradients: int, running: bool = False, waiting: bool = False) -> tuple[Part, ...]:
    """Return what stays through the whole step, given the bytes of gradients that exist.

    ``running``: micro-batches are on their way through a pipeline. ``waiting``: gradients are not reduced yet.
    """
    module = job.inventory.buffer_bytes
    own = parts(("module buffers", module), seen=True)
    if job.activations is not None:
        own += parts(("workspace of the layers", job.activations.workspace))
        own += pipeline.torch_buffers(job.plan, job.activations.boundary, running=running)
    return own + ddp_buffers.buckets(job.inventory, job.plan, gradients, waiting)


def at(job: Job, moment: str, gradients: int) -> Amount:
    """Return the buffers at a moment in which no forward or backward runs, or at load and save."""
    waiting = moment in job.plan.unsharded_gradients_at
    found = standing(job, gradients, moment in ("forward_end", "backward_start"), waiting)
    if moment == "load" and ddp_buffers.has_reducer(job.plan):
        size = min(BROADCAST, job.held.parameters.bytes or 0)
        found += parts(("first broadcast of the parameters", size))
    if _sharded(job):
        found += _sharded_at(job, moment, gradients)
    # What loading and saving move is read from the source, never measured here.
    within = None if moment in ("load", "checkpoint_save") else job.buffers_within
    return amount(found, _RULES.get(job.plan.strategy, "module buffers"), within)


def _sharded_at(job: Job, moment: str, gradients: int) -> tuple[Part, ...]:
    step = _fsdp(job)
    if moment in ("forward_end", "backward_start"):
        return step.between()
    if moment == "step_start" and step.options.version == 1 and step.options.use_orig_params and not job.first_step:
        return parts(("sharded gradients, kept until the next forward", max(0, job.full - gradients)))
    if moment == "load":
        return parts(("one unit, whole, while it is sharded", step.units.block.gathered))
    if moment == "checkpoint_save":
        return parts(("largest parameter, gathered for a full state dict", step.units.largest))
    return ()


_RULES = {
    "ddp": "DDP: buckets for every gradient",
    "zero-redundancy": "DDP: buckets for every gradient",
    "fsdp1": "FSDP1: units gathered by then",
    "fsdp2": "FSDP2: units gathered by then",
}


def _fsdp(job: Job) -> Step:
    fsdp = job.plan.fsdp
    version = fsdp.version if fsdp is not None else int(job.plan.strategy[-1])
    return (Fsdp1 if version == 1 else Fsdp2)(job, job.units)


def _sharded(job: Job) -> bool:
    return job.plan.fsdp is not None or job.plan.strategy.startswith("fsdp")


def forward(job: Job) -> list[Point]:
    """Return the points of forward at which memory may be highest."""
    if _sharded(job):
        return [_with_standing(job, point) for point in _fsdp(job).forward()]
    alive, kept = job.activations, job.kept
    points = [Point("forward", gradients=kept)] if alive is None else forward_points(alive, kept)
    return [_with_standing(job, point) for point in points]


def backward(job: Job) -> list[Point]:
    """Return the points of backward at which memory may be highest."""
    if _sharded(job):
        return [_with_standing(job, point) for point in _fsdp(job).backward()]
    alive, full, kept = job.activations, job.full, job.kept
    if alive is None:
        points = [Point("end of backward", gradients=full)]
    else:
        points = backward_points(alive, job.shares, full, kept, job.every)
    if job.plan.strategy == "dp":
        last = points[-1]
        extra = data_parallel.adding_up(job.full, job.plan)
        points[-1] = Point(last.name, last.activations, last.buffers + extra, last.gradients)
    if ddp_buffers.has_reducer(job.plan):
        hook = ddp_buffers.compressed(job.inventory, job.plan)
        points = [replace(point, buffers=point.buffers + hook) if point.name != "loss" else point for point in points]
    return [_with_standing(job, point) for point in points]


def _with_standing(job: Job, point: Point) -> Point:
    more: tuple[Part, ...] = ()
    if job.plan.strategy == "dp" and point.name.startswith("loss"):
        more = data_parallel.gathered(job.activations, job.plan)
    buffers = point.buffers + standing(job, point.gradients, running=True, waiting=job.waits)
    return Point(point.name, point.activations + more, buffers, point.gradients)


def adjust(job: Job, moment: str, found: dict[str, Amount]) -> dict[str, Amount]:
    """Return the states with what the strategy has only for a part of the step."""
    plan = job.plan
    if plan.strategy != "dp" or plan.layout.replicate_rank == 0 or data_parallel.replica_alive(moment):
        return found
    return {**found, "parameters": Amount(0, "DataParallel: no replica between the steps")}


def host(job: Job) -> Amount:
    """Return what this rank keeps in the host's memory because of offloading: FSDP's shards and all that is theirs.

    Gradients are copied to it unit by unit, the optimizer runs there. Source:
    torch/distributed/fsdp/_fully_shard/_fsdp_api.py ``CPUOffloadPolicy``, FSDP1's ``CPUOffload``.
    """
    fsdp = job.plan.fsdp
    if fsdp is None or not fsdp.cpu_offload or job.plan.host:
        return Amount(0, "nothing is offloaded")
    held = states.held_of(job.inventory, replace(job.plan, host=True))
    if held is None or held.optimizer.bytes is None:
        return Amount(None, "the optimizer's state is not known" if held is None else held.optimizer.rule)
    found = parts(
        ("shards of the parameters", held.parameters.bytes or 0),
        ("shards of the gradients", held.gradients.bytes or 0),
        ("optimizer", held.optimizer.bytes),
    )
    return amount(found, f"FSDP{fsdp.version}: offloaded to the CPU")
