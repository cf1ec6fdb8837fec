"""ZeRO-3 inside forward and backward: gathered parameters beside activations, gradients and the reduction's copies.

Source: DeepSpeed 0.19.8, ``__add_grad_to_ipg_bucket``, ``__avg_scatter_grads`` and ``partition_grads`` in
runtime/zero/stage3.py, ``reduce_scatter_coalesced`` in runtime/comm/coalesced_collectives.py.
"""

from __future__ import annotations

from typing import Final

from ranktop.budget.activations.saved import Activations
from ranktop.budget.composition import Point, highest, parts, saved_parts, total
from ranktop.budget.inventory import Kind
from ranktop.budget.terms import DTYPE_BYTES, Part
from ranktop.budget.zero.gather import Gathered, Limits, gathered
from ranktop.budget.zero.job import Job
from ranktop.budget.zero.layout import persistent, share
from ranktop.budget.zero.progress import Progress

NORM_PIECE: Final = 250_000_000
"""Elements of a partition whose norm is taken at once (``_constant_buffered_norm2``)."""

LIVE: Final = "gathered parameters (stage3_max_live_parameters, stage3_max_reuse_distance)"
FLAT: Final = "buffers of gathers under way (stage3_prefetch_bucket_size)"

Pieces = tuple[tuple[str, int], ...]
"""Names and bytes."""

_Moment = tuple[int, int, int, int, Pieces, int]
"""Parameter (-1 after the last), position of the trace, gradients outside of the bucket, what is gathered, copies and
their bytes."""


def bucket(job: Job) -> tuple[Part, ...]:
    """Return the bucket that gradients are reduced from: kept from the engine's start on, whatever its fill."""
    options = job.options
    if not options.contiguous_gradients or not job.groups:
        return ()
    dtype = options.communication_dtype
    item = DTYPE_BYTES[dtype] if dtype else job.groups[0][0].itemsize
    return (Part("gradient bucket, reduce_bucket_size, kept", options.reduce_bucket_size * item),)


def modules(kinds: list[Kind], persist: list[bool]) -> tuple[tuple[int, ...], ...]:
    """Return the parameters that must be gathered, by module: a weight with its bias, a norm with its bias."""
    found: list[list[int]] = []
    for index, kind in enumerate(kinds):
        if persist[index]:
            continue
        last = found[-1] if found else []
        first = kinds[last[0]] if last else None
        fits = first is not None and len(last) == 1 and last[0] == index - 1 and len(kind.shape) == 1
        if fits and first is not None and first.shape[:1] == kind.shape:
            last.append(index)
        else:
            found.append([index])
    return tuple(tuple(module) for module in found)


class Sharded:
    """Forward and backward of one rank at stage 3, whatever its activations."""

    def __init__(self, job: Job, kept: int, buffers: tuple[Part, ...]) -> None:
        self.job, self.kept = job, kept
        self.buffers = buffers + bucket(job)
        options = job.options
        persist = persistent(job.numels, options.persistence_threshold, options.model_persistence_threshold)
        self.modules = modules(job.kinds, persist)
        self.item = job.item
        limits = Limits(
            ranks=job.ranks,
            prefetch=options.prefetch_bucket_size,
            live=options.max_live_parameters,
            reuse=options.max_reuse_distance,
            traced=not job.first_step,
        )
        self.gathered: Gathered = gathered(self.modules, tuple(job.numels), limits)
        self._found = self._reductions()
        self._sizes = [gradients + live + more for _, _, gradients, live, _, more in self._found]
        self._order = [index for index, *_ in self._found]

    def _whole(self, position: int) -> tuple[Part, ...]:
        """Return what gathering holds at a position of the trace."""
        if not self.modules:
            return ()
        found = self.gathered
        return parts((LIVE, found.live[position] * self.item), (FLAT, found.flat[position] * self.item))

    def between(self) -> tuple[Part, ...]:
        """Return what stays gathered between forward and backward."""
        if not self.modules:
            return ()
        return parts((LIVE, self.gathered.between * self.item), (FLAT, self.gathered.between_flat * self.item))

    def forward(self, alive: Activations) -> Point:
        """Return forward's highest point: module by module, and around the loss."""
        loss = saved_parts(alive) + parts(("temporaries of the loss", alive.loss_forward))
        points = [Point("loss, in forward", loss, self.buffers + self.between(), self.kept)]
        if self.modules:
            points.append(self._modules_forward(alive))
        return highest(points)

    def _modules_forward(self, alive: Activations) -> Point:
        """Return the module of forward at which gathered parameters and activations so far are most."""
        progress, found = Progress(self.job, alive), self.gathered
        most, best = -1, (0, 0, 0)
        for position, module in enumerate(self.modules):
            saved = int(progress.left(module[0]) * alive.blocks)
            block = alive.block_forward if progress.start <= module[0] < progress.end else 0
            size = (found.live[position] + found.flat[position]) * self.item + saved + block
            if size > most:
                most, best = size, (position, saved, block)
        position, saved, block = best
        so_far = parts(
            ("blocks that have run forward", saved),
            ("temporaries of the block in forward", block),
            ("outside and inputs", alive.outside + alive.inputs),
        )
        return Point("forward", so_far, self.buffers + self._whole(position), self.kept)

    def backward(self, alive: Activations) -> Point:
        """Return backward's highest point: at the loss, or where a parameter's gradient meets a full bucket."""
        loss = saved_parts(alive) + parts(("gradients of the logits", alive.loss_backward))
        points = [Point("loss, in backward", loss, self.buffers + self.between(), self.kept)]
        points.append(self._reduced(Progress(self.job, alive)))
        return highest(points)

    def _reductions(self) -> list[_Moment]:
        """Go through the parameters as backward does; the last moment, after them, is that of what still waits."""
        job, limit = self.job, self.job.options.reduce_bucket_size
        position_of = {
            p: 2 * len(self.modules) - 1 - number for number, module in enumerate(self.modules) for p in module
        }
        position = len(self.modules)
        waiting: list[int] = []
        elements = own = 0
        found: list[_Moment] = []
        numels, sizes, updates, running = job.numels, job.sizes, job.updates, self.gathered.running
        contiguous = job.options.contiguous_gradients
        for index in reversed(range(len(numels))):
            position = position_of.get(index, position)
            if not updates[index]:
                continue
            full = bool(waiting) and elements + numels[index] > limit
            copies = self._copies(waiting) if full else ()
            live = running[position] * self.item if self.modules else 0
            found.append((index, position, own + sizes[index], live, copies, sum([more for _, more in copies])))
            if full:
                waiting, elements, own = [], 0, 0
            waiting.append(index)
            elements += numels[index]
            if elements > limit or not contiguous:
                own += sizes[index]
        copies = self._copies(waiting) if waiting else ()
        found.append((-1, position, own, 0, copies, sum([more for _, more in copies])))
        return found

    def _reduced(self, progress: Progress) -> Point:
        """Return the highest of these moments with these activations, the first of equals."""
        activations = [*progress.sizes(), progress.ended()]
        sizes = [size + activations[index] for size, index in zip(self._sizes, self._order, strict=True)]
        at = sizes.index(max(sizes))
        index, position, gradients, _, copies, _ = self._found[at]
        adding = progress.adding(0)
        if len(self._found) > 1 and self._order[-2] == 0 and adding[1]:
            # While a tied weight's gradient is made, before any hook runs.
            first = self._found[-2]
            if sizes[-2] - first[5] + adding[1] > max(sizes[:-1]) and not sizes[-2] - first[5] + adding[1] < sizes[-1]:
                index, position, gradients, copies = *first[:3], (adding,)
        return self._point(progress, index, position, gradients, copies)

    def _point(self, progress: Progress, index: int, position: int, gradients: int, copies: Pieces) -> Point:
        alive = progress.parts(index) if index >= 0 else parts(("inputs", progress.ended()))
        whole: tuple[Part, ...] = ()
        if index >= 0 and self.modules:
            whole = parts((LIVE, self.gathered.running[position] * self.item))
        pending = parts(("gradients not yet in the bucket", gradients))
        name = "a full bucket is reduced" if total(parts(*copies)) else "backward"
        return Point(name, alive, self.buffers + whole + pending + parts(*copies), self.kept)

    def _copies(self, waiting: list[int]) -> tuple[tuple[str, int], ...]:
        """Return the copies that reducing a bucket makes: interleaved by rank, unless it is one even piece."""
        job = self.job
        kinds = [job.kinds[i] for i in waiting]
        dtype = job.options.communication_dtype
        item = DTYPE_BYTES[dtype] if dtype else kinds[0].itemsize
        padded = sum(share(kind.numel, job.ranks) * job.ranks for kind in kinds) * item
        alone = len(kinds) == 1 and kinds[0].numel % job.ranks == 0
        found = [("copy of the bucket while it is reduced", 0 if alone else padded)]
        if item != kinds[0].itemsize and (not job.options.contiguous_gradients or alone):
            found.append(("cast to communication_data_type", sum(kind.numel for kind in kinds) * item))
        gloo = ("copy that gloo's reduce-scatter makes", padded if job.plan.host else 0)
        part = max(share(kind.numel, job.ranks) for kind in kinds)
        norm = ("norm of a gradient partition in fp64", 8 * min(part, NORM_PIECE))
        if job.options.offload_optimizer != "none" and norm[1] > gloo[1]:
            return (*found, norm)
        found.append(gloo)
        return tuple(found)
