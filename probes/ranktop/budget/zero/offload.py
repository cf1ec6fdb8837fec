"""ZeRO-Offload and ZeRO-Infinity: what a rank keeps in the host's memory and on disk, and the staging on its device.

Source: DeepSpeed 0.19.8, ``__init__`` and ``initialize_optimizer_states`` in runtime/zero/stage_1_and_2.py and
stage3.py, runtime/swap_tensor/optimizer_utils.py and partitioned_param_swapper.py.
"""

from __future__ import annotations

from typing import Final

from ranktop.budget.composition import amount, parts
from ranktop.budget.optimizers.states import Piece, optimizer_amount
from ranktop.budget.terms import Amount, Part
from ranktop.budget.zero.flat import Flat
from ranktop.budget.zero.job import Job, Layout
from ranktop.budget.zero.whole import Partitioned

_KEPT: Final = "nothing is offloaded"


def staging(job: Job) -> tuple[Part, ...]:
    """Return the buffers that offloading keeps on the device; a job on the host holds the host's there too."""
    options = job.options
    if options.stage not in (1, 2) or options.offload_optimizer == "none":
        return ()
    largest = max((kind.numel * kind.itemsize for group in job.groups for kind in group), default=0)
    found = parts(("buffer for one gradient on its way to the host (the largest)", largest), seen=True)
    if job.plan.host:
        found += _flat_buffers(job, Flat(job))
    return found


def _flat_buffers(job: Job, layout: Flat) -> tuple[Part, ...]:
    """Host buffers of stages 1 and 2: updated weights before they are copied back, one gradient."""
    largest = max((kind.numel * kind.itemsize for group in job.groups for kind in group), default=0)
    return parts(
        ("updated weights of this rank's part", sum(f.partition * k.itemsize for f, k in layout.flats)),
        ("buffer for one gradient on the host (the largest)", largest),
        seen=True,
    )


def off_device(job: Job, layout: Layout) -> tuple[Amount, Amount]:
    """Return this rank's bytes in the host's memory and on NVMe."""
    options = job.options
    if (options.offload_optimizer, options.offload_parameters) == ("none", "none"):
        return Amount(0, _KEPT), Amount(0, _KEPT)
    states = _states(job, layout)
    if states is None:
        reason = f"the states of {job.plan.optimizer.name or 'this optimizer'} are not known"
        return Amount(None, reason), Amount(None, reason)
    disk: tuple[Part, ...] = ()
    if isinstance(layout, Flat):
        host = _flat(job, layout, states)
    elif isinstance(layout, Partitioned):
        host, disk = _partitioned(job, layout, states)
    else:
        return Amount(0, _KEPT), Amount(0, _KEPT)
    pinned = "page-locked (pin_memory)" if options.pin_memory else "not page-locked (pin_memory false)"
    rule = layout.rule(f"what is offloaded, {pinned}")
    return amount(host, rule), amount(disk, layout.rule("swap files")) if disk else Amount(0, "nothing on disk")


def _states(job: Job, layout: Layout) -> int | None:
    """Bytes of the optimizer's states for the parts that this rank updates."""
    pieces = [Piece((n,), job.master_bytes(k), k.group, whole=False) for n, k in layout.updated()]
    return optimizer_amount(pieces, job.plan).bytes


def _masters(job: Job, layout: Layout) -> int:
    return sum(n * job.master_bytes(k) for n, k in layout.updated())


def _flat(job: Job, layout: Flat, states: int) -> tuple[Part, ...]:
    masters = _masters(job, layout)
    sums = layout.buffer() if job.accumulating and not layout.mixed else 0
    return parts(
        ("master weights", masters),
        ("gradients in the master weights' dtype", masters),
        ("optimizer state", states),
        ("gradients of earlier micro-batches", sums),
    ) + _flat_buffers(job, layout)


def _partitioned(job: Job, layout: Partitioned, states: int) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    options = job.options
    masters = _masters(job, layout)
    gradients = sum(n * job.gradient_bytes(kind) for n, kind in layout.totals)
    host: tuple[Part, ...] = ()
    disk: tuple[Part, ...] = ()
    if options.offload_optimizer == "cpu":
        host = parts(
            ("master weights", masters),
            ("gradients in the master weights' dtype", masters),
            ("optimizer state", states),
            ("gradient partitions", gradients),
        )
    elif options.offload_optimizer == "nvme":
        largest = max((n * job.master_bytes(kind) for n, kind in layout.totals), default=0)
        buffers = ("swap buffers of the largest sub-group (buffer_count)", options.optimizer_buffer_count * largest)
        host = parts(("gradient partitions", gradients), buffers)
        disk = parts(
            ("master weights", masters),
            ("optimizer state", states),
            ("gradients in the master weights' dtype", masters),
        )
    more, on_disk = _weights(job, layout)
    return host + more, disk + on_disk


def _weights(job: Job, layout: Partitioned) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Partitions of the parameters: in one flat buffer on the host, or beyond ``max_in_cpu`` elements on NVMe."""
    options = job.options
    if options.offload_parameters == "none":
        return (), ()
    if options.offload_parameters == "cpu":
        return parts(("parameter partitions", layout.partitions)), ()
    elements = sum(n for n, _ in layout.totals)
    item = layout.subs[0][1].itemsize if layout.subs else 0
    kept = min(elements, options.max_in_cpu)
    buffers = options.nvme_buffer_count * options.nvme_buffer_size * item
    return (
        parts(
            ("parameter partitions kept on the host (max_in_cpu)", kept * item),
            ("swap buffers for parameters (buffer_count x buffer_size)", buffers),
        ),
        parts(("parameter partitions", layout.partitions - kept * item)),
    )
