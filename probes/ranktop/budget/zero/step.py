"""ZeRO outside of forward and backward: making the engine, the optimizer's step, and saving.

Source: DeepSpeed 0.19.8, ``__init__`` and ``step`` in runtime/zero/stage_1_and_2.py and stage3.py, ``step`` in
runtime/bf16_optimizer.py and runtime/fp16/, ``_zero3_consolidated_16bit_state_dict`` in runtime/engine.py.
"""

from __future__ import annotations

from ranktop.budget.composition import Point, highest, parts
from ranktop.budget.inventory import Kind
from ranktop.budget.optimizers.states import Piece
from ranktop.budget.optimizers.step import temporaries
from ranktop.budget.zero.flat import BF16_WRAPPER, Flat
from ranktop.budget.zero.job import Job, Layout
from ranktop.budget.zero.layout import share
from ranktop.budget.zero.sharded import bucket
from ranktop.budget.zero.whole import Partitioned, Replicated


def _pieces(job: Job, updated: list[tuple[int, Kind]]) -> list[Piece]:
    return [Piece((n,), job.master_bytes(k), k.group, whole=False) for n, k in updated]


def _largest(job: Job) -> int:
    return max((n for n, updated in zip(job.numels, job.updates, strict=True) if updated), default=0)


def step(job: Job, layout: Layout) -> Point:
    """Return the highest point of the optimizer's step; its gradients are those of the whole step at that point."""
    if isinstance(layout, Flat):
        return _flat_step(job, layout)
    if isinstance(layout, Partitioned):
        return _partitioned_step(job, layout)
    gradients = layout.gradients("backward_end").bytes or 0
    pieces = _pieces(job, list(layout.updated()))
    extra = temporaries(pieces, job.plan, pieces)
    return Point("the optimizer's update", parts((extra.rule, extra.bytes or 0)), gradients=gradients)


def _flat_step(job: Job, layout: Flat) -> Point:
    """Stages 1 and 2, group by group: norm, gradients into the master weights' dtype, update."""
    if not job.optimizer_on_device:
        return Point("the optimizer's step on the host")
    if job.options.offload_optimizer != "none":
        kept = layout.gradients("backward_end").bytes or 0
        pieces = _pieces(job, layout.updated())
        extra = temporaries(pieces, job.plan, pieces)
        return Point("the optimizer's update", parts((extra.rule, extra.bytes or 0)), gradients=kept)
    before = after_backward(job, layout)
    piece = max((flat.largest for flat, _ in layout.flats), default=0)
    points = [Point("norm of the gradients", parts(("largest gradient in fp64", 8 * piece)), gradients=before)]
    for index, (flat, kind) in enumerate(layout.flats):
        held = sum(dict(layout.storages(index)).values())
        if not layout.mixed:
            copy = flat.partition * (kind.itemsize + job.master_bytes(kind))
            if flat.pieces == 1:
                copy -= flat.partition * kind.itemsize
            if job.ready(kind):
                copy = 0 if flat.pieces == 1 else flat.partition * kind.itemsize
            copies = parts(("this rank's gradients, flattened and in the master weights' dtype", copy))
            waiting = before if index == 0 else sum(dict(layout.storages(index)).values())
            points.append(Point("gradients become those of the master weights", copies, gradients=waiting))
        extra = temporaries(_pieces(job, [(flat.partition, kind)]), job.plan)
        points.append(Point("the optimizer's update", parts((extra.rule, extra.bytes or 0)), gradients=held))
    return highest(points)


def _partitioned_step(job: Job, layout: Partitioned) -> Point:
    """Stage 3, sub-group by sub-group: gradients flattened, in the master weights' dtype, update."""
    kept = layout.gradients("backward_start").bytes or 0
    if not job.optimizer_on_device:
        return Point("the optimizer's step on the host", gradients=kept)
    points = [
        Point(
            "norm of the gradients",
            parts(("largest gradient partition in fp64", 8 * share(_largest(job), job.ranks))),
            gradients=kept,
        )
    ]
    seen: set[tuple[int, int]] = set()
    for (sub, _), (size, kind) in zip(layout.subs, layout.totals, strict=True):
        if (size, kind.group) in seen:
            continue
        seen.add((size, kind.group))
        viewed = len(sub) == 1 and job.ready(kind)
        full = 0 if viewed or job.options.offload_optimizer != "none" else size * job.master_bytes(kind)
        flattened = size * job.gradient_bytes(kind) if full and not job.ready(kind) and len(sub) > 1 else 0
        extra = temporaries(_pieces(job, [(size, kind)]), job.plan)
        gradient = ("gradients of one sub-group in the master weights' dtype (sub_group_size)", full)
        points.append(Point("sub-group is flattened", parts(gradient, ("flattened gradients", flattened)), (), kept))
        points.append(Point("the optimizer's update", parts(gradient, (extra.rule, extra.bytes or 0)), (), kept))
    return highest(points)


def after_backward(job: Job, layout: Layout) -> int:
    """Return the bytes of gradients after ``engine.backward`` and before ``engine.step``."""
    if isinstance(layout, Flat) and job.options.offload_optimizer == "none":
        if layout.mixed:
            return sum(flat.partition * job.gradient_bytes(kind) for flat, kind in layout.flats)
        padding = sum(flat.padding * kind.itemsize for flat, kind in layout.flats)
        return layout.buffer() + padding
    if isinstance(layout, Partitioned):
        return layout.gradients("backward_start").bytes or 0
    if isinstance(layout, Replicated):
        return job.whole_gradients
    if job.options.wrapper == BF16_WRAPPER:
        return layout.gradients("backward_end").bytes or 0
    return layout.gradients("backward_end").bytes or 0


def load(job: Job, layout: Layout) -> Point:
    """Return the highest point while the engine is made, as bytes beyond its parameters and master weights.

    The whole weights are on the device before, in the dtype that they are trained in, unless they are made under
    ``zero.Init`` (stage 3), which is what is assumed there.
    """
    if isinstance(layout, Flat):
        return _flat_load(job, layout)
    if isinstance(layout, Partitioned):
        return _partitioned_load(job, layout)
    if isinstance(layout, Replicated) and layout.steps_at_start():
        made = step(job, layout)
        return Point("a first update on gradients of zero", made.activations, gradients=made.gradients)
    return Point("engine is ready", gradients=layout.gradients("step_start").bytes or 0)


def _partitioned_load(job: Job, layout: Partitioned) -> Point:
    """Stage 3: a sub-group's masters are made twice; when all is made a parameter is gathered whole."""
    largest = max(job.sizes, default=0)
    ready = parts(("a parameter gathered whole, the largest", largest))
    points = [Point("engine is ready", ready, bucket(job), layout.gradients("step_start").bytes or 0)]
    if job.optimizer_on_device:
        group = max((n * job.master_bytes(kind) for n, kind in layout.totals), default=0)
        offloaded = job.options.offload_optimizer != "none"
        kept = sum(n * job.master_bytes(kind) for n, kind in layout.totals) if offloaded else 0
        copies = parts(("one more copy of a sub-group's master weights or gradients", group))
        points.append(Point("master weights", copies, gradients=kept))
    return highest(points)


def _flat_load(job: Job, layout: Flat) -> Point:
    masters = sum(flat.partition * job.master_bytes(kind) for flat, kind in layout.flats)
    first = max((flat.size * kind.itemsize for flat, kind in layout.flats), default=0)
    if not job.optimizer_on_device:
        return Point("weights become flat", parts(("weights of one group, before they are views of its flat", first)))
    there = masters if job.plan.precision.master else 0
    points = [
        Point("weights become flat", parts(("weights of one group before they are flat", max(0, first - there)))),
        Point("gradients of zero, to make the states", parts(("gradients of zero", masters))),
    ]
    if job.options.offload_optimizer != "none":
        points[1] = Point("gradients on the host", gradients=masters)
    return highest(points)


def save(job: Job, layout: Layout) -> Point:
    """Return what saving gathers: stage 3 with ``stage3_gather_16bit_weights_on_model_save`` only.

    The weights are gathered module by module and go to the host one after another; a job on the host keeps all.
    """
    if not (isinstance(layout, Partitioned) and job.options.gather_weights_on_save):
        return Point("state is written from where it lies")
    sizes = [share(kind.numel, job.ranks) * job.ranks * kind.itemsize for kind in job.kinds]
    if job.plan.host and job.rank == 0:
        held = sum(job.sizes)
        name = "16-bit weights of the whole model (stage3_gather_16bit_weights_on_model_save)"
        return Point("weights are gathered", (), parts((name, held)))
    name = "largest module's weights, gathered (stage3_gather_16bit_weights_on_model_save)"
    return Point("weights are gathered", (), parts((name, max(sizes, default=0))))
